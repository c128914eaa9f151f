"""Model id, folder or file -> one frozen :class:`onboard.facts.api.ModelFacts`: the only reader of raw HF configs."""

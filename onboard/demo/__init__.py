"""Real weights without a download from a model hub, and a demonstration that serves them."""

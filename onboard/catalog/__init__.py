"""Architecture facts of well-known models, bundled: ``names``, ``find``, ``entry``."""

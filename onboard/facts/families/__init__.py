"""What a config alone does not say: how each family of models reads its settings. One registry by ``model_type``."""

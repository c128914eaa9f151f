"""Facts of a model -> a package of its own: code, answers, files, and their update."""

"""Checks that a person runs: is the installation right, does a model work, how fast is it."""

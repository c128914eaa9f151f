"""Tiny random models of transformers: what a package is detected from and proved against."""

"""Kernels of operations on NKI: importing this package registers them all, one module for each kind of operation.

A module wraps its kernels (``wrap_nki``) and registers each with the rule that says when it applies.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

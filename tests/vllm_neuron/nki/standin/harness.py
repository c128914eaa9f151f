"""Runs single instructions inside a kernel of the stand-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vllm_neuron.nki.standin import jit, nisa, nl


def run(body: Callable[..., Any], *arrays: np.ndarray, programs: int | None = None) -> Any:
    """Call ``body(*hbm_tensors)`` as a kernel; what it returns comes back as arrays."""
    kernel = jit(body)
    return kernel(*arrays) if programs is None else kernel[programs](*arrays)


def tile(source: Any, dtype: Any = None, buffer: Any = None) -> Any:
    """A tile with a copy of an HBM tensor."""
    t = nl.ndarray(source.shape, dtype=dtype or source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=source)
    if buffer is None or buffer is nl.sbuf:
        return t
    p = nl.ndarray(source.shape, dtype=dtype or source.dtype, buffer=buffer)
    nisa.tensor_copy(dst=p, src=t)
    return p


def empty(shape: tuple[int, ...], dtype: Any = "float32", buffer: Any = None) -> Any:
    """A new tile."""
    return nl.ndarray(shape, dtype=dtype, buffer=buffer or nl.sbuf)


def out(t: Any) -> Any:
    """An HBM output with a copy of a tile."""
    if t.buffer == "psum":
        s = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=s, src=t)
        t = s
    result = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=t)
    return result


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Random numbers of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)

"""What the kernel tests share: random tensors, runs on one or two cores where only kernels count, and the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch import Tensor

import vllm_neuron.functional as NF

# Relative L2 error of a kernel against its reference.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 1e-3}


@pytest.fixture(scope="session")
def on_cores() -> Callable[[int], AbstractContextManager[None]]:
    """``with on_cores(2):`` operations run NKI kernels or fail, on a logical core of two."""

    @contextmanager
    def run(cores: int) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, NF.use_kernels("require"):
            patch.setenv("NEURON_LOGICAL_NC_CONFIG", str(cores))
            yield

    return run


@pytest.fixture(scope="session")
def agree() -> Callable[[Tensor, Tensor], None]:
    """``agree(kernel's result, reference's)``: same shape and type, and the relative L2 error of that type."""

    def check(found: Tensor, expected: Tensor) -> None:
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        size = expected.float().norm().item()
        error = (found.float() - expected.float()).norm().item() / max(size, 1e-30)
        assert error <= LIMITS[expected.dtype], f"relative L2 error {error:.2e}"

    return check


@pytest.fixture(scope="session")
def normal() -> Callable[..., Tensor]:
    """``normal(seed, *shape, dtype=..., scale=...)``: a random tensor."""

    def make(seed: int, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    return make

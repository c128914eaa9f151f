"""The adapter of the public kernel library, against a fake one with its documented signatures and layouts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import vllm_neuron.functional as NF
from vllm_neuron.functional.on_nki import library as adapter
from vllm_neuron.nki import library
from vllm_neuron.nki.backend import CORES_VARIABLE

COMMON = """
import numpy as np

class Kernel:
    def __init__(self, func, grid=1):
        self.func, self.grid = func, grid
    def __getitem__(self, grid):
        return Kernel(self.func, grid)
    def __call__(self, **arguments):
        SEEN.append((self.func.__name__, self.grid))
        return self.func(**arguments)

SEEN = []

def product(x, w, bias, dtype):
    y = x.astype(np.float32) @ w.astype(np.float32)
    if bias is not None:
        assert bias.shape == (1, w.shape[1])
        y = y + bias.astype(np.float32)
    return y.astype(dtype)
"""
TYPES = """
from enum import Enum

class QKVOutputLayout(Enum):
    BSD = 0
    NBSd = 1
"""
QKV = """
from nkilib.fake import Kernel, product
from nkilib.core.utils.common_types import QKVOutputLayout

@Kernel
def qkv(input, fused_qkv_weights, output_layout=QKVOutputLayout.BSD, bias=None, quantization_type=None, norm_eps=1e-6):
    assert input.ndim == 3 and input.shape[0] == 1 and output_layout is QKVOutputLayout.BSD
    return product(input, fused_qkv_weights, bias, input.dtype)
"""
CTE = """
from nkilib.fake import Kernel, product

@Kernel
def output_projection_cte(attention, weight, bias=None, quantization_type=None, input_scales=None):
    batch, heads, size, tokens = attention.shape
    assert batch == 1 and size == 128 and weight.shape[0] == heads * size and attention.flags.c_contiguous
    x = attention[0].transpose(2, 0, 1).reshape(tokens, heads * size)
    return product(x, weight, bias, attention.dtype)[None]
"""
TKG = """
from nkilib.fake import Kernel, product

@Kernel
def output_projection_tkg(attention, weight, bias=None, TRANSPOSE_OUT=False, OUT_IN_SB=False):
    size, batch, heads, tokens = attention.shape
    assert batch == 1 and size == 128 and weight.shape[0] == heads * size and tokens <= 128
    x = attention[:, 0].transpose(2, 1, 0).reshape(tokens, heads * size)
    return product(x, weight, bias, attention.dtype)
"""
FILES = {
    "fake.py": COMMON,
    "core/utils/common_types.py": TYPES,
    "core/qkv/qkv.py": QKV,
    "core/output_projection/output_projection_cte.py": CTE,
    "core/output_projection/output_projection_tkg.py": TKG,
}


class Installed:
    """A fake library in a folder of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        for folder in [root / "nkilib", *(p for p in (root / "nkilib").rglob("*") if p.is_dir())]:
            (folder / "__init__.py").touch()
        self.version("1.0.14300+abc")
        monkeypatch.syspath_prepend(str(root))

    def write(self, name: str, text: str) -> None:
        path = self.root / "nkilib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def version(self, text: str) -> None:
        folder = self.root / "nki_library-1.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nki-library\nVersion: {text}\n")

    @property
    def seen(self) -> list[Any]:
        return sys.modules["nkilib.fake"].SEEN


def forget() -> None:
    library.problem_of.cache_clear()
    adapter._wrapped.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "nkilib"]:
        del sys.modules[name]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    forget()
    yield Installed(tmp_path, monkeypatch)
    forget()


def weight(inputs: int, outputs: int) -> torch.Tensor:
    return (torch.randn(inputs, outputs) / inputs**0.5).bfloat16()


def x(tokens: int, width: int) -> torch.Tensor:
    return torch.randn(tokens, width).bfloat16()


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    assert found.shape == expected.shape and error < 5e-3


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("operation", "tokens", "inputs", "outputs", "function"),
    [
        (NF.qkv_proj, 5, 256, 192, "qkv"),
        (NF.o_proj, 512, 256, 96, "output_projection_cte"),
        (NF.o_proj, 7, 384, 128, "output_projection_tkg"),
    ],
)
def test_layouts_of_the_calls(
    installed: Installed, operation: Any, tokens: int, inputs: int, outputs: int, function: str, bias: bool
) -> None:
    arguments = (x(tokens, inputs), weight(inputs, outputs), torch.randn(outputs).bfloat16() if bias else None)
    for cores in (1, 2):
        with NF.use_kernels("require"), pytest.MonkeyPatch.context() as patch:
            patch.setenv(CORES_VARIABLE, str(cores))
            assert_close(operation(*arguments), operation.reference(*arguments))
        assert installed.seen[-1] == (function, cores)


def test_shapes_are_known_without_running_it(installed: Installed) -> None:
    with NF.use_kernels("require"), FakeTensorMode():
        assert NF.qkv_proj(x(5, 256), weight(256, 192)).shape == (5, 192)
        assert NF.o_proj(x(600, 256), weight(256, 96)).shape == (600, 96)
        assert NF.o_proj(x(4, 256), weight(256, 128)).shape == (4, 128)
    assert not installed.seen


@pytest.mark.parametrize(
    ("operation", "tokens", "inputs", "outputs", "dtype"),
    [
        (NF.qkv_proj, 5, 200, 96, torch.bfloat16),
        (NF.qkv_proj, 5, 128, 192, torch.bfloat16),
        (NF.qkv_proj, 5, 256, 192, torch.float32),
        (NF.o_proj, 200, 256, 96, torch.bfloat16),
        (NF.o_proj, 8, 192, 128, torch.bfloat16),
    ],
)
def test_what_the_library_does_not_take_goes_to_our_own_kernel(
    installed: Installed, operation: Any, tokens: int, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    arguments = (x(tokens, inputs).to(dtype), weight(inputs, outputs).to(dtype))
    with NF.use_kernels("require"):
        answers = operation.explain(*arguments)
        assert_close(operation(*arguments), operation.reference(*arguments))
    assert not any(answer for name, answer in answers.items() if name.startswith("nkilib."))
    assert answers and all("nkilib" not in str(answer) for answer in answers.values())


def problem() -> str:
    forget()
    found = library.QKV.problem()
    return "" if found is None else " ".join(found)


def test_what_keeps_the_library_out(installed: Installed) -> None:
    assert problem() == ""
    installed.version("1.0.14243")
    assert problem() == "nkilib version 1.0.14243 1.0.14244 or later"
    installed.version("1.1")
    assert problem() == ""
    installed.write("core/qkv/qkv.py", QKV.replace("fused_qkv_weights", "weights"))
    assert "no argument fused_qkv_weights" in problem()
    installed.write("core/qkv/qkv.py", "  broken")
    assert "IndentationError" in problem()


def test_without_it_nothing_is_refused() -> None:
    forget()
    before = NF.refusals()
    with NF.use_kernels("require"):
        NF.qkv_proj(x(5, 256), weight(256, 192))
        assert "not installed" in str(NF.qkv_proj.explain(x(5, 256), weight(256, 192))["nkilib.qkv"])
    assert NF.refusals() == before


def test_each_operation_is_called_or_says_why_not() -> None:
    called = {call.operation for call in library.CALLS}
    assert not called & set(library.NOT_CALLED)
    assert called | set(library.NOT_CALLED) <= set(NF.OPERATIONS)

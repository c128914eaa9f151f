"""The Python of the page on operations runs, word for word."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from tests.docs.commands import ROOT
from vllm_neuron.functional.dispatch import use_kernels
from vllm_neuron.functional.on_nki.limits import grid, one_type
from vllm_neuron.functional.operation import Operation, Support, no
from vllm_neuron.utils.nki_utils import wrap_nki


def test_the_kernel_of_the_page_runs() -> None:
    text = (ROOT / "docs/add-an-operation.md").read_text()
    blocks = [b for b in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if "double" in b]
    assert len(blocks) == 2

    def double(x: Tensor) -> Tensor:
        return 2 * x

    operation = Operation(double)
    names = {"double": operation, "Tensor": Tensor, "Support": Support, "no": no}
    names |= {"one_type": one_type, "grid": grid, "wrap_nki": wrap_nki}
    for block in blocks:
        exec(compile(block, "docs/add-an-operation.md", "exec"), names)
    with use_kernels("require"):
        assert operation(torch.ones(3, 4, dtype=torch.bfloat16)).eq(2).all()
        assert operation.explain(torch.ones(200, 4))["nki.double"].limit == "at most 128"

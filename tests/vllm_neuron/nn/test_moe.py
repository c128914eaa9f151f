"""MoE against the sparse block of each family of transformers, from a hub checkpoint, on 1, 2 and 4 ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig

import vllm_neuron.functional as NF
from onboard.probe.reference import Reference
from tests.vllm_neuron.nn.moe_cases import CASES, COMMON, LAYER, Case, E, H, I
from vllm_neuron.model.loading.load import load_model
from vllm_neuron.model.loading.table import Drop, Table
from vllm_neuron.nn import MLP, GatedMLP, MoE
from vllm_neuron.parallel import Group, run_in_threads


@dataclass
class Family:
    """A saved reference with an input and an output of its sparse block."""

    case: Case
    folder: Path
    x_TH: Tensor
    y_TH: Tensor

    def ours(self, group: Group, **options: bool) -> MoE:
        """Our block, loaded for the current rank."""
        c = self.case
        with torch.device("meta"):
            kind = GatedMLP if c.options.get("gated", True) else MLP
            shared = None if c.shared is None else kind(H, c.shared, act=c.act, **c.shared_options)
            block = MoE(
                H,
                experts=E,
                top_k=c.top_k,
                intermediate_size=I,
                act=c.act,
                router=c.router,
                shared=shared,
                **c.options,
                **options,
            )
        model = nn.ModuleDict({str(LAYER): block})
        table = Table(*c.rows, Drop("*", why="other parts of the model"))
        load_model(
            model, table, self.folder, rank=group.rank, world_size=group.world_size, dtype=torch.float32, progress=False
        )
        return block


@pytest.fixture(scope="module", params=CASES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    case = CASES[request.param]
    config = AutoConfig.for_model(case.model_type, **({} if case.model_type == "dbrx" else COMMON) | case.config)
    reference = Reference(config)
    folder = tmp_path_factory.mktemp(case.model_type)
    reference.save(folder)
    block = reference.model.get_submodule(case.block)
    x = torch.randn(1, 29, H, generator=torch.Generator().manual_seed(3)) * 2
    with torch.no_grad():
        y = block(x)
    y = y[0] if isinstance(y, tuple) else y
    yield Family(case, folder, x[0], y.reshape(-1, H))


def error(found: Tensor, wanted: Tensor) -> float:
    """Largest relative error of a row."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_equals_the_sparse_block_of_transformers(family: Family, ranks: int) -> None:
    found = run_in_threads(ranks, lambda group: family.ours(group)(family.x_TH.clone()))
    assert max(error(y, family.y_TH) for y in found) <= 1e-5


def test_the_reference_operations_alone_compute_the_same(family: Family) -> None:
    with NF.use_kernels("off"):
        found = run_in_threads(1, lambda group: family.ours(group)(family.x_TH.clone()))
    assert error(found[0], family.y_TH) <= 1e-5


@pytest.mark.parametrize("ranks", [2, 4])
def test_D9_whole_experts_on_ranks_of_their_own(family: Family, ranks: int) -> None:
    found = run_in_threads(ranks, lambda group: family.ours(group, whole_experts=True)(family.x_TH.clone()))
    assert max(error(y, family.y_TH) for y in found) <= 1e-5


@pytest.mark.parametrize("family", [name for name, c in CASES.items() if c.router.correction_bias], indirect=True)
def test_the_correction_bias_decides(family: Family) -> None:
    def without(group: Group) -> Tensor:
        block = family.ours(group)
        assert block.router.correction_bias is not None
        block.router.correction_bias.zero_()
        y: Tensor = block(family.x_TH.clone())
        return y

    assert error(run_in_threads(1, without)[0], family.y_TH) > 1e-2

"""MoE against the sparse block of each family of transformers, from a hub checkpoint, on 1, 2 and 4 ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig

import vllm_neuron.functional as NF
from onboard.probe.reference import Reference
from tests.vllm_neuron.nn.moe_cases import CASES, COMMON, LAYER, Case, E, H, I
from vllm_neuron.model.loading.load import load_model
from vllm_neuron.model.loading.table import Drop, Table
from vllm_neuron.nn import MLP, GatedMLP, MoE, RouterConfig
from vllm_neuron.parallel import Group, run_in_threads
from vllm_neuron.parallel.neuron_parallel_state import use_tp_group
from vllm_neuron.utils.weight_loader import TensorSlice, get_weight_loader


@dataclass
class Family:
    """A saved reference with an input and an output of its sparse block."""

    case: Case
    folder: Path
    x_TH: Tensor
    y_TH: Tensor

    def ours(self, group: Group, **options: Any) -> MoE:
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


class Counted:
    """A group that counts its sums."""

    def __init__(self, group: Group) -> None:
        self.group, self.sums = group, 0
        self.rank, self.world_size = group.rank, group.world_size

    def all_reduce(self, x: Tensor) -> Tensor:
        self.sums += 1
        return self.group.all_reduce(x)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_biases_of_experts_and_of_the_shared_one_are_in_the_one_sum_once(ranks: int) -> None:
    g = torch.Generator().manual_seed(0)
    whole: dict[str, Tensor] = {}
    x = torch.randn(6, 8, generator=g)

    def build(group: Group) -> tuple[Tensor, int]:
        counted = Counted(group)
        with use_tp_group(cast(Group, counted)):
            shared = GatedMLP(8, 12, act="silu", bias=True)
            router = RouterConfig(normalize=True, bias=True)
            block = MoE(
                8, experts=4, top_k=2, intermediate_size=12, act="silu", router=router, bias=True, shared=shared,
                shared_gate=True,
            )  # fmt: skip
            for name, parameter in block.named_parameters():
                if name not in whole:
                    whole[name] = torch.randn(parameter.shape, generator=g)
                stored = get_weight_loader(parameter).load([TensorSlice(whole[name])], group.rank)
                parameter.data.copy_(stored)
            return block(x.clone()), counted.sums

    wanted = run_in_threads(1, build)[0][0]
    for found, sums in run_in_threads(ranks, build):
        assert sums == 1
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)

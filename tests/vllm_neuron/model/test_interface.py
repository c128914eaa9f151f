"""The frame of a decoder: what a subclass may replace."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Map, Table
from vllm_neuron.nn import LearnedPositions, LMHead, RMSNorm, Rotary, RotaryConfig, VocabDimShardedEmbedding
from vllm_neuron.step import Phase, Step

V, H, ROWS = 11, 8, 20


class Double(nn.Module):
    """A layer without attention."""

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H]."""
        return 2 * x_TH


class Plain(DecoderModel):
    """Two layers in the usual frame."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.embed = VocabDimShardedEmbedding(V, H)
        self.layers = nn.ModuleList([Double(), Double()])
        self.norm = RMSNorm(H, eps=1e-2)
        self.head = LMHead(H, V)


class Positioned(Plain):
    """Learned positions are added to what enters the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = LearnedPositions(ROWS, H)

    def embed_tokens(self, step: Step) -> Tensor:
        """[T, H]."""
        return super().embed_tokens(step) + self.positions(step.positions_T)


def test_what_enters_the_first_layer_can_be_replaced() -> None:
    generator = torch.Generator().manual_seed(0)
    models = Plain(), Positioned()
    for parameter in models[1].parameters():
        parameter.data.normal_(0.0, 1.0, generator=generator)
    models[0].load_state_dict({k: v for k, v in models[1].state_dict().items() if not k.startswith("positions")})
    step = Step(Phase.DECODE, torch.tensor([3, 3, 10]), torch.tensor([0, 7, 19]), (), rows=3)

    plain, positioned = (model(step) for model in models)
    tokens, rows = models[1].embed(step.token_ids_T), models[1].positions(step.positions_T)
    torch.testing.assert_close(plain, models[1].norm(4 * tokens))
    torch.testing.assert_close(positioned, models[1].norm(4 * (tokens + rows)))
    assert torch.equal(plain[0], plain[1]) and not torch.equal(positioned[0], positioned[1])
    torch.testing.assert_close(models[1].compute_logits(positioned), models[1].head(positioned))


LONG: dict[str, object] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 4.0],
}


class Long(Plain):
    """With a table of positions that goes past its original context."""

    CHECKPOINT = Table(Map("embed", "embed"), Map("norm", "norm"), Map("head", "head"))

    def __init__(self) -> None:
        super().__init__()
        self.max_position, self.tie_word_embeddings = 96, False
        self.rotary = Rotary(RotaryConfig.from_parameters(LONG, 4, 96))


def test_longrope_served_within_its_original_context_takes_the_short_factors(tmp_path: Path) -> None:
    """A server that is told a shorter length computes what transformers does with sequences of that length."""
    save_file({k: torch.zeros_like(v) for k, v in Plain().state_dict().items()}, tmp_path / "model.safetensors")
    for length, rows, factors in (
        (500, 96, (2.0, 4.0)),
        (33, 33, (2.0, 4.0)),
        (32, 32, (1.0, 1.5)),
        (20, 20, (1.0, 1.5)),
    ):
        model = Long()
        model.limit_positions(length)
        model.load_weights(tmp_path, torch.float32, progress=False)
        assert model.max_position == rows == len(model.rotary.table)
        size = (1 + math.log(3) / math.log(32)) ** 0.5
        angles = 19 / torch.tensor(factors) / torch.tensor([1.0, 100.0])
        torch.testing.assert_close(model.rotary.table[19, :2], size * angles.cos())

"""The frame of a decoder: what a subclass may replace."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.nn import LearnedPositions, LMHead, RMSNorm, VocabDimShardedEmbedding
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

"""Rotary position embedding (Su et al. 2021): each pair of a head's elements is turned by an angle of its position.

The table row of a position holds ``[cos | sin]``, each of the rotary width R, made in float32 and cast once, so that
positions above 256 keep apart in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.functional.operation import operation


@operation
def rotary(x_TND: Tensor, table_T2R: Tensor, *, interleaved: bool = False) -> Tensor:
    """Turn the first R elements of each head; the rest pass through (partial rotary).

    Args:
        x_TND: [T, N, D].
        table_T2R: [T, 2 * R], the rows of the tokens' positions: cosines, then sines. In the half style (default) the
            sines of the first half come negated, which saves a negation here; :func:`rotary_table` does that.
        interleaved: pairs are (0, 1), (2, 3), ... (GPT-J) in place of (0, R/2), (1, R/2 + 1), ... (Llama).

    Returns:
        [T, N, D].
    """
    width = table_T2R.shape[-1] // 2
    cos, sin = table_T2R[:, None, :width], table_T2R[:, None, width:]
    x = x_TND if width == x_TND.shape[-1] else x_TND[..., :width]
    if interleaved:
        pairs = x.unflatten(-1, (width // 2, 2))
        swapped = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
        turned = x * cos + swapped * sin
    else:
        turned = x * cos + torch.roll(x, width // 2, dims=-1) * sin
    return turned if width == x_TND.shape[-1] else torch.cat((turned, x_TND[..., width:]), dim=-1)


def rotary_table(
    inverse_frequencies_R2: Tensor, positions: int, *, scale: float = 1.0, interleaved: bool = False
) -> Tensor:
    """The table that :func:`rotary` reads, float32 [positions, 2 * R].

    Args:
        inverse_frequencies_R2: float32 [R/2], radians a position.
        positions: rows to make, from position 0.
        scale: factor on both cosine and sine (the attention factor of yarn and longrope).
        interleaved: repeat each angle twice in place, as the interleaved style needs.
    """
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse_frequencies_R2.float())
    if interleaved:
        angles = angles.repeat_interleave(2, dim=-1)
        return torch.cat((angles.cos(), angles.sin()), dim=-1) * scale
    sin = angles.sin()
    cos = angles.cos()
    return torch.cat((cos, cos, -sin, sin), dim=-1) * scale

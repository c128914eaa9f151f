"""Norms, the embedding and the head: small blocks whose output tells what is wrong with them."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.accuracy.explain.scene import Part
from vllm_neuron.accuracy.judge import Finding

# How exactly one factor must explain a difference.
EXACT = 1e-3


def factor(ours: Tensor, theirs: Tensor) -> float | None:
    """The one number that ours is theirs times of, if there is one."""
    size = float(theirs.pow(2).sum())
    if not size or not ours.isfinite().all():
        return None
    found = float((ours * theirs).sum()) / size
    left = float((ours - found * theirs).norm()) / max(float(ours.norm()), 1e-30)
    return found if left < EXACT and abs(found - 1) > 10 * left else None


def explain_norm(ours: Tensor, theirs: Tensor, finding: Finding) -> Part:
    """A norm: each row off by a factor of its own (eps), or each channel (weight).

    Args:
        ours, theirs: [R, H].
        finding: what the comparison said.
    """
    by_row = (ours * theirs).sum(-1, keepdim=True) / theirs.pow(2).sum(-1, keepdim=True).clamp_min(1e-30)
    by_channel = (ours * theirs).sum(0) / theirs.pow(2).sum(0).clamp_min(1e-30)
    error = (ours - theirs).norm()
    if (ours - by_row * theirs).norm() < 0.1 * error:
        small = theirs.new_tensor([float(by_row.min()), float(by_row.max())]).tolist()
        return Part("eps", f"each token is off by a factor of its own, {small[0]:.5g} to {small[1]:.5g}", finding.row)
    if (ours - by_channel * theirs).norm() < 0.1 * error:
        return Part("weight", "each channel is off by a factor of its own", finding.row)
    return Part("", finding.words, finding.row)


def explain_embedding(ours: Tensor, theirs: Tensor, finding: Finding) -> Part:
    """What enters the first layer: one factor, or other rows."""
    found = factor(ours, theirs)
    if found is not None:
        return Part("scale", f"{found:.5g} times what enters the reference's first layer", finding.row)
    return Part("rows", f"other rows of the table: {finding.words}", finding.row)


def explain_head(ours: Tensor, theirs: Tensor, finding: Finding) -> Part:
    """Logits of the reference's last hidden states: a soft cap or factor, or other weights."""
    found = factor(ours, theirs)
    if found is not None:
        return Part("scale", f"logits are {found:.5g} times the reference's", finding.row)
    order = theirs.argsort(dim=-1)
    steps = ours.gather(-1, order).diff(dim=-1)
    slack = 1e-4 * ours.abs().amax(dim=-1, keepdim=True)
    if bool((steps > -slack).all()) and bool(torch.isfinite(ours).all()):
        return Part("softcap", f"logits in the reference's order, of other sizes: {finding.words}", finding.row)
    return Part("weight", f"other logits for the reference's hidden states: {finding.words}", finding.row)

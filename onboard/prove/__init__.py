"""The proof of a package: it computes what transformers computes, by numbers, or says where it does not."""

from onboard.prove.package import Package
from onboard.prove.proof import BAR, Check, Divergence, OpenFeature, Proof, Status, Verdict
from onboard.prove.run import prove, prove_package

__all__ = [
    "BAR",
    "Check",
    "Divergence",
    "OpenFeature",
    "Package",
    "Proof",
    "Status",
    "Verdict",
    "prove",
    "prove_package",
]

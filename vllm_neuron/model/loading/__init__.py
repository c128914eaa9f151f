"""Checkpoint to parameters: a table says which key fills which parameter, and nothing is left unaccounted for."""

from vllm_neuron.model.loading.checkpoint import Checkpoint, TensorInfo
from vllm_neuron.model.loading.load import LoadReport, load_model
from vllm_neuron.model.loading.plan import Plan
from vllm_neuron.model.loading.table import Drop, Fuse, Map, Split, StackExperts, Table, Tie

__all__ = [
    "Checkpoint",
    "Drop",
    "Fuse",
    "LoadReport",
    "Map",
    "Plan",
    "Split",
    "StackExperts",
    "Table",
    "TensorInfo",
    "Tie",
    "load_model",
]

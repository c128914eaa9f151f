"""Groups of ranks and their collectives, behind one small protocol."""

from vllm_neuron.parallel.group import Group, SingleGroup, TorchGroup
from vllm_neuron.parallel.neuron_parallel_state import get_tp_group, use_tp_group
from vllm_neuron.parallel.threads import ThreadGroup, run_in_threads

__all__ = ["Group", "SingleGroup", "ThreadGroup", "TorchGroup", "get_tp_group", "run_in_threads", "use_tp_group"]

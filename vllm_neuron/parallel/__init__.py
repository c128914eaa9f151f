"""Groups of ranks and their collectives, behind one small protocol."""

from vllm_neuron.parallel import all2all, neuron_parallel_state
from vllm_neuron.parallel.group import Group, SingleGroup, TorchGroup
from vllm_neuron.parallel.neuron_parallel_state import get_tp_group, use_tp_group
from vllm_neuron.parallel.threads import ThreadGroup, run_in_threads

__all__ = [
    "Group",
    "SingleGroup",
    "ThreadGroup",
    "TorchGroup",
    "all2all",
    "get_tp_group",
    "neuron_parallel_state",
    "run_in_threads",
    "use_tp_group",
]

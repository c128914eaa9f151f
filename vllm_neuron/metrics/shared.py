"""Counters of several processes in one ``/metrics``, through prometheus_client's files for that.

vLLM 0.32 answers ``/metrics`` in the API server's process from that process's registry, and what a worker counts never
gets there. With several API servers it sets ``PROMETHEUS_MULTIPROC_DIR``, and reads the files below it. Here a worker
always writes such a file: into that directory when there is one, else into one of our own, which the first process of
the server makes, hands down by an environment variable, reads with prometheus_client's collector, and removes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from vllm_neuron import envs

OURS = "VLLM_NEURON_METRICS_DIR"
THEIRS = "PROMETHEUS_MULTIPROC_DIR"


class _File:
    """This process's counters; reopened under another name in a fork."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.values: MmapedDict | None = None

    def write(self, metric: str, description: str, labels: Mapping[str, str], value: float) -> None:
        folder = envs.foreign(THEIRS) or envs.VLLM_NEURON_METRICS_DIR
        if not folder:
            return
        path = Path(folder) / f"counter_neuron-{os.getpid()}.db"
        if path != self.path or self.values is None:
            if not path.parent.is_dir():
                return
            self.path, self.values = path, MmapedDict(str(path))
        names = sorted(labels)
        key = mmap_key(metric, f"{metric}_total", names, [labels[name] for name in names], description)
        self.values.write_value(key, float(value), 0.0)


_file = _File()
_read: set[str] = set()


def export(metric: str, description: str, labels: Mapping[str, str], value: float) -> None:
    """Set a counter of this process; the server shows the sum over its processes as ``<metric>_total``.

    Does nothing when no server shares counters (a library call outside vLLM).
    """
    _file.write(metric, description, labels, value)


def share() -> None:
    """Make the directory, once for a server and its children, and let this process's registry read it.

    Called in every process of vLLM before it starts others. The process that made the directory removes it.
    """
    if envs.foreign(THEIRS):
        return
    folder = envs.VLLM_NEURON_METRICS_DIR
    if not folder:
        folder = tempfile.mkdtemp(prefix="vllm-neuron-metrics-")
        envs.set_foreign(OURS, folder, only_if_unset=False)
        atexit.register(_remove, folder, os.getpid())
    Path(folder).mkdir(parents=True, exist_ok=True)
    if folder not in _read:
        MultiProcessCollector(REGISTRY, path=folder)
        _read.add(folder)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)

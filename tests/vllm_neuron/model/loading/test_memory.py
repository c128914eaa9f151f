"""Host memory of one rank of a 600 MB checkpoint, measured by the kernel in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

RANKS = 4
MB = 10**6

CHILD = """
import json, sys, torch
from pathlib import Path
from torch import nn
from vllm_neuron.model.loading import Fuse, Map, Table, load_model
from vllm_neuron.utils.weight_loader import (
    fused_gate_up_weight_loader, fused_qkv_weight_loader, set_weight_loader, sharding_weight_loader)

folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
H, I, V, R = 1024, 4096, 32000, 4

def holder(shape, loader):
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(shape, device="meta", dtype=dtype), requires_grad=False)
    set_weight_loader(module.weight, loader)
    return module

def layer():
    module = nn.Module()
    module.qkv = holder((3 * H // R, H), fused_qkv_weight_loader(H // R, H // R, 0, R))
    module.o = holder((H, H // R), sharding_weight_loader(1, H // R, R))
    module.gate_up = holder((2 * I // R, H), fused_gate_up_weight_loader(I // R, 0, R))
    module.down = holder((H, I // R), sharding_weight_loader(1, I // R, R))
    return module

model = nn.Module()
model.embed = holder((V // R, H), sharding_weight_loader(0, V // R, R))
model.layers = nn.ModuleList(layer() for _ in range(7))
table = Table(
    Map("embed", "embed"),
    Fuse("layers.{i}.qkv", "layers.{i}.{q,k,v}"),
    Map("layers.{i}.o", "layers.{i}.o"),
    Fuse("layers.{i}.gate_up", "layers.{i}.{gate,up}"),
    Map("layers.{i}.down", "layers.{i}.down"),
)

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
report = load_model(model, table, folder, rank=2, world_size=R, dtype=dtype, progress=False)
print(json.dumps({"peak": memory("VmHWM") - before, "shard": report.bytes, "read": report.bytes_read,
                  "seconds": report.seconds, "mean": float(model.layers[3].o.weight.float().mean())}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 MB of float32 in two shards; every tensor holds a number of its own."""
    folder = tmp_path_factory.mktemp("large")
    hidden, inner = 1024, 4096
    shapes = {"embed.weight": (32000, hidden)}
    for i in range(7):
        shapes |= {f"layers.{i}.{p}.weight": (hidden, hidden) for p in "qkvo"}
        shapes |= {f"layers.{i}.{p}.weight": (inner, hidden) for p in ("gate", "up")}
        shapes |= {f"layers.{i}.down.weight": (hidden, inner)}
    tensors = {name: torch.full(shape, float(n)) for n, (name, shape) in enumerate(shapes.items())}
    assert sum(tensor.nbytes for tensor in tensors.values()) > 550 * MB
    for number, names in enumerate((list(tensors)[::2], list(tensors)[1::2]), 1):
        save_file({name: tensors[name] for name in names}, folder / f"model-{number:05}-of-00002.safetensors")
    return folder


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak from Linux's /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_ranks_host_memory_stays_near_its_own_shard(checkpoint: Path, dtype: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(checkpoint), dtype], capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    whole = sum(file.stat().st_size for file in checkpoint.iterdir())
    assert found["mean"] == 1 + 3 * 7 + 3
    assert found["shard"] == pytest.approx(whole / RANKS * (1 if dtype == "float32" else 0.5), rel=0.01)
    # Slices of whole rows, or of a page and more, are read alone: down's 4 kB runs are, o's 1 kB runs are not.
    assert found["read"] < 1.15 * whole / RANKS
    assert found["peak"] <= 1.3 * found["shard"] + 200 * MB
    assert found["peak"] <= found["shard"] + 64 * MB

"""`onboard diff` against the script that people run today, as cold processes in turn, in one run.

The script loads both configs through transformers' ``AutoConfig``, prints two columns cut at 28 characters, builds both
models on the meta device and prints their named modules. Its configs are read from folders that this benchmark writes,
so that no network is timed. Both run once before the clock starts, so that compiled bytecode is there for both as after
an installation, and the files are in the page cache. One JSON object goes to stdout; the aims are in it.

    python benchmarks/diff_vs_guide_script.py [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAIR = ("meta-llama/Llama-3.1-8B", "google/gemma-4-31B-it")
COLD_SECONDS, RATIO, GROWTH = 0.7, 20.0, 1.2

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "intermediate_size": 21504, "vocab_size": 262144, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "sliding_window": 1024, "max_position_embeddings": 262144, "attention_k_eq_v": True,
        "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10, "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    },
}  # fmt: skip

SCRIPT = """
import sys
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

configs = [AutoConfig.from_pretrained(path) for path in sys.argv[1:3]]
both = [config.to_dict() for config in configs]
for key in sorted(set(both[0]) | set(both[1])):
    left, right = (str(values.get(key, "-"))[:28] for values in both)
    print(f"{key[:28]:28} {left:28} {right:28}")
for config in configs:
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:
            model = AutoModel.from_config(config)
    for name, module in model.named_modules():
        print(name, type(module).__name__)
"""


def seconds(command: list[str]) -> float:
    """Wall time of one process that must end well; its output is thrown away.

    Raises:
        subprocess.CalledProcessError: it failed, so its time means nothing.
    """
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - start


def onboard(*args: str) -> list[str]:
    """The command line of `onboard diff`."""
    return [sys.executable, "-m", "onboard.cli.main", "diff", *args]


def write(folder: Path, name: str, config: dict[str, Any]) -> str:
    """A model folder that holds only a config."""
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def variants(folder: Path) -> dict[str, tuple[str, str]]:
    """Pairs for the growth with size: two small models, two of 1,000 layers, two of more than 1T parameters."""
    qwen = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128}
    moe = {**qwen, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 1024,
           "num_experts_per_tok": 8, "moe_intermediate_size": 8192, "num_hidden_layers": 64}  # fmt: skip
    sizes = {"small": ({}, qwen), "1000 layers": ({"num_hidden_layers": 1000}, {**qwen, "num_hidden_layers": 1000}),
             "1T parameters": ({"hidden_size": 32768, "intermediate_size": 131072, "num_attention_heads": 256,
                                "num_hidden_layers": 128}, moe)}  # fmt: skip
    return {
        name: (write(folder, f"{name} a", {**LLAMA, **left}), write(folder, f"{name} b", right))
        for name, (left, right) in sizes.items()
    }


def main() -> None:
    """Time both in turn and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of the script; onboard runs five times as often")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths = [write(folder, "llama", LLAMA), write(folder, "gemma4", GEMMA4)]
        guide = [sys.executable, "-c", SCRIPT, *paths]
        for command in (guide, onboard(*PAIR)):
            seconds(command)
        script: list[float] = []
        ours: list[float] = []
        for _ in range(runs):
            script.append(seconds(guide))
            ours += [seconds(onboard(*PAIR)) for _ in range(5)]
        pairs = variants(folder)
        sized: dict[str, list[float]] = {name: [] for name in pairs}
        for _ in range(runs * 4):
            for name, (left, right) in pairs.items():
                sized[name].append(seconds(onboard(left, right)))
    growth = {name: min(times) / min(sized["small"]) for name, times in sized.items() if name != "small"}
    ratio = statistics.median(script) / statistics.median(ours)
    print(json.dumps({
        "pair": PAIR,
        "script_seconds": {"median": round(statistics.median(script), 3), "all": [round(t, 3) for t in script]},
        "onboard_seconds": {"median": round(statistics.median(ours), 3), "worst": round(max(ours), 3)},
        "ratio": round(ratio, 1),
        "growth": {name: round(value, 3) for name, value in growth.items()},
        "aims": {"onboard_seconds": COLD_SECONDS, "ratio": RATIO, "growth": GROWTH},
        "reached": statistics.median(ours) < COLD_SECONDS and ratio >= RATIO and max(growth.values()) <= GROWTH,
    }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()

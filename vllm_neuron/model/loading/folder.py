"""Which files of a checkpoint folder hold its tensors, and whether they can be read here at all."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_neuron.errors import CheckpointError, UnsupportedError
from vllm_neuron.model.loading.safetensors_file import FLOATS, TensorInfo

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_FILE = re.compile(r"[^/\\\0]+\.safetensors")
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")

# Last parts of tensor names that only quantised checkpoints have -> the method.
QUANTISED_NAMES = {
    "qweight": "gptq or awq",
    "qzeros": "gptq or awq",
    "weight_packed": "compressed-tensors",
    "weight_scale_inv": "fp8",
    "weight_scale": "fp8 or compressed-tensors",
    "SCB": "bitsandbytes",
    "absmax": "bitsandbytes",
    "gate_up_proj_blocks": "mxfp4",
    "down_proj_blocks": "mxfp4",
}
QUANTISED_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: unreadable, not JSON, or not an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path.name, f"{type(error).__name__}: {error}", "a JSON object") from error
    if not isinstance(found, dict):
        raise CheckpointError(path.name, type(found).__name__, "a JSON object")
    return found


def read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name -> file name as the folder's index says, or None without an index.

    Raises:
        CheckpointError: a malformed index, or one that names a path and not a file of the folder.
    """
    if not (folder / INDEX).is_file():
        return None
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{INDEX}: weight_map", listed, "an object: tensor name -> file name")
    for tensor, name in listed.items():
        if not isinstance(name, str) or _FILE.fullmatch(name) is None:
            raise CheckpointError(f"{INDEX}: {tensor}", name, "a safetensors file's plain name, inside the folder")
    return listed


def checkpoint_files(folder: Path, index: Mapping[str, str] | None) -> list[Path]:
    """The files to read: those of the index, else ``model.safetensors``, else every safetensors file.

    Raises:
        CheckpointError: a file is missing, or the folder has none that can be read.
    """
    if index is not None:
        names = sorted(set(index.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            action = f"Fetch the missing file{'s' if len(missing) > 1 else ''}; {INDEX} names {len(names)} in all."
            raise CheckpointError("checkpoint: missing shard", ", ".join(missing), f"a file in {folder}", action)
        return [folder / name for name in names]
    if not folder.is_dir():
        raise CheckpointError("checkpoint", str(folder), "a folder", "Pass the folder that holds config.json.")
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not files:
        raise _no_files(folder)
    if folder / SINGLE in files:
        if len(files) > 1:
            others = [path.name for path in files if path.name != SINGLE]
            logger.warning("Reading %s; not reading %s, which no index names.", SINGLE, ", ".join(others))
        return [folder / SINGLE]
    _refuse_incomplete_set(files)
    return files


def _refuse_incomplete_set(files: list[Path]) -> None:
    names = {path.name for path in files}
    for name in sorted(names):
        found = _SHARD.fullmatch(name)
        if found is None:
            continue
        count = int(found["count"])
        wanted = [f"{found['stem']}-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
        missing = [shard for shard in wanted if shard not in names]
        if missing:
            raise CheckpointError("checkpoint: missing shard", ", ".join(missing), f"all {count} shards in the folder")


def _no_files(folder: Path) -> CheckpointError:
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED and path.is_file())
    if pickled:
        return CheckpointError(
            "checkpoint",
            ", ".join(pickled),
            "safetensors files; pickled files are never opened, since that can run code",
            "Convert once where you trust them, with transformers: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder).",
        )
    wrong = sorted(path.name for path in folder.glob("*.safetensors"))
    if wrong:
        return CheckpointError("checkpoint", ", ".join(wrong), "files, not directories or broken links")
    return CheckpointError("checkpoint", str(folder), "a folder with *.safetensors files")


def refuse_quantised(folder: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse a checkpoint whose weights are quantised, by its config or by what its tensors are.

    Raises:
        UnsupportedError: naming the method.
    """
    action = "Use the bf16, fp16 or fp32 weights of this model."
    expected = "an unquantised checkpoint"
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    for where, section in {"": config, "text_config.": config.get("text_config")}.items():
        settings = section.get("quantization_config") if isinstance(section, dict) else None
        if settings:
            method = settings.get("quant_method", "not named") if isinstance(settings, dict) else settings
            raise UnsupportedError(f"{where}quantization_config.quant_method", method, expected, action)
    for name, method in QUANTISED_FILES.items():
        if (folder / name).is_file():
            raise UnsupportedError("checkpoint: quantisation", f"{method} ({name})", expected, action)
    for name, info in tensors.items():
        leaf = name.rpartition(".")[2]
        if leaf in QUANTISED_NAMES:
            raise UnsupportedError("checkpoint: quantisation", f"{QUANTISED_NAMES[leaf]} ({name})", expected, action)
        if info.dtype not in FLOATS and (leaf == "weight" or info.dtype.startswith(("F8", "F6", "F4"))):
            method = "fp8" if info.dtype.startswith("F8") else info.dtype
            raise UnsupportedError("checkpoint: quantisation", f"{method} ({name} is {info.dtype})", expected, action)

"""From the GGUF file of an installed package to an ordinary Hugging Face folder."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard.demo.sources import Source, join
from onboard.demo.staging import staged
from onboard.report.console import Progress
from vllm_neuron.errors import CheckpointError, ConfigError

MARKER = "onboard-demo-model.json"
CONVERSION = 1  # raise it when the written files change, so that older folders are written again

# Keys that tell how the folder was made, not what the model is.
LEFTOVERS = {
    "config.json": ("quantization_config", "_model_name_or_path", "unk_token_id"),
    "generation_config.json": ("_from_model_config",),
    "tokenizer_config.json": ("is_local", "local_files_only"),
}


@dataclass(frozen=True)
class Written:
    """A finished demo model folder; `reused` when it was there already. Sizes are in bytes."""

    folder: Path
    source: Source
    reused: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        return {
            "name": self.source.name,
            "model": self.source.model,
            "architecture": self.source.architecture,
            "folder": str(self.folder),
            "bytes": sum(f.stat().st_size for f in self.folder.iterdir() if f.is_file()),
            "reused": self.reused,
            "licence": self.source.licence,
            "sha256": self.source.sha256,
        }


def write(source: Source, folder: Path, *, force: bool, progress: Progress) -> Written:
    """Write one demo model into `folder`, or find it there.

    Args:
        source: which model.
        folder: the model folder itself. It appears complete or not at all.
        force: write again although the folder holds this model already.
        progress: shows the steps.

    Raises:
        ConfigError: the folder holds something else, or the libraries for the conversion are missing.
        CheckpointError: the package is missing or damaged, or its content did not convert completely.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError("--to", str(folder), "a folder, or a path that does not exist yet", "Choose another path.")
    if folder.is_dir() and any(folder.iterdir()):
        marker = _marker(folder)
        if marker.get("name") != source.name:
            raise ConfigError(
                "--to", str(folder), f"a new folder or one with {source.name} in it", "Choose another folder with --to."
            )
        if not force and marker == _new_marker(source):
            return Written(folder, source, reused=True)
    source.files()
    with staged(folder) as stage:
        _fill(stage, source, progress)
    return Written(folder, source, reused=False)


def _marker(folder: Path) -> dict[str, Any]:
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _new_marker(source: Source) -> dict[str, Any]:
    facts = {"name": source.name, "model": source.model, "sha256": source.sha256, "licence": source.licence}
    return facts | {"conversion": CONVERSION}


def _fill(stage: Path, source: Source, progress: Progress) -> None:
    joined = stage / "joined.gguf"
    with progress.step("checking the weights", sum(f.stat().st_size for f in source.files())) as advance:
        gguf = join(source, joined, advance)
    with progress.step("reading GGUF") as advance:
        model, tokenizer = _read(gguf, source)
    with progress.step("writing safetensors") as advance:
        _save(model, tokenizer, stage, source)
    joined.unlink(missing_ok=True)
    with progress.step("checking the folder") as advance:
        _check(stage, source, advance)
    (stage / MARKER).write_text(json.dumps(_new_marker(source), indent=2) + "\n")


def _read(gguf: Path, source: Source) -> tuple[Any, Any]:
    try:
        import accelerate  # noqa: F401 - transformers' GGUF reader needs it, and gguf, without saying so first
        import gguf as _  # noqa: F401
        import torch
        import transformers
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ConfigError(
            "python packages",
            str(error),
            "torch, transformers, accelerate and gguf",
            "Run: pip install 'neuron-onboard[cpu,demo]'",
        ) from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    with contextlib.redirect_stderr(io.StringIO()):  # the reader draws a bar of its own, also in a pipe
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            **where,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
            output_loading_info=True,
        )
    model, info = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(str(name) for name in info[kind])
        if names:
            raise CheckpointError(
                f"{source.name}: {kind}",
                names,
                "every tensor of the GGUF file in its place",
                f"transformers {transformers.__version__} reads this file differently; install the version of "
                "'neuron-onboard[cpu,demo]'.",
            )
    return model, AutoTokenizer.from_pretrained(str(gguf.parent), **where)


def _save(model: Any, tokenizer: Any, stage: Path, source: Source) -> None:
    config = model.config
    config.architectures = [source.architecture]
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")  # GGUF stores it in fp32
    model.save_pretrained(stage, safe_serialization=True)
    tokenizer.model_max_length = source.context
    tokenizer.add_bos_token = source.adds_bos
    tokenizer.save_pretrained(stage)
    for name, keys in LEFTOVERS.items():
        path = stage / name
        kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in keys}
        path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    for path in stage.iterdir():
        path.chmod(0o644)


def _check(stage: Path, source: Source, advance: Callable[[int], None]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(stage), local_files_only=True)
    text, expected = source.probe
    ids = list(tokenizer(text)["input_ids"])
    back = tokenizer.decode(ids, skip_special_tokens=True)
    if tuple(ids) != expected or back != text:
        raise CheckpointError(
            f"{source.name}: tokens of {text!r}",
            {"ids": ids, "decoded": back},
            f"{expected} and the same text back",
            "The installed transformers reads this tokenizer differently; install 'neuron-onboard[cpu,demo]'.",
        )
    advance(1)

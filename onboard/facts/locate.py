"""Where a model's config is: a path, the local HF cache, the hub."""

from __future__ import annotations

import socket
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard import catalog
from onboard.facts import rawjson
from vllm_neuron import envs
from vllm_neuron.errors import ConfigError, UnsupportedError

CONNECT_SECONDS = 4.0
OTHERS = (
    ("adapter_config.json", "a PEFT adapter; give the base model that its adapter_config.json names"),
    ("model_index.json", "a diffusers pipeline"),
    ("params.json", "a checkpoint in Mistral's or Meta's own format; convert it to the HF format"),
    ("tokenizer.json", "a tokenizer without a model"),
    ("tokenizer_config.json", "a tokenizer without a model"),
    ("tokenizer.model", "a tokenizer without a model"),
)


@dataclass(frozen=True)
class Found:
    """A config that was read: its origin, the file, and the content."""

    origin: str
    path: Path
    raw: dict[str, Any]


def is_path(model: str) -> bool:
    """Whether the name is meant as a path: it exists, or is written like one."""
    return model.startswith((".", "/", "~")) or model.endswith(".json") or _exists(Path(model))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def from_path(model: str) -> Found:
    """The config at a path.

    Raises:
        ConfigError: nothing there, or damaged.
        UnsupportedError: a folder of something else, which is named.
    """
    path = Path(model).expanduser()
    if "\x00" in model or not _exists(path):
        raise ConfigError("model", model, "a folder with a config.json, or such a file", "Check the path.")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise _other_folder(path)
        path = path / "config.json"
    elif path.name == "adapter_config.json":
        raise UnsupportedError("model", model, "a model's config.json", f"This is {OTHERS[0][1]}.")
    return Found("file", path, rawjson.read(path))


def _other_folder(path: Path) -> UnsupportedError:
    looks = next((what for name, what in OTHERS if (path / name).is_file()), None)
    if looks is None and any(path.glob("*.gguf")):
        looks = "a GGUF file, whose metadata this does not read"
    words = f"This looks like {looks}." if looks else "There is no config.json in it."
    return UnsupportedError("model", str(path), "a folder with a config.json of a decoder", words)


def cache_folder() -> Path:
    """The hub's cache on this machine."""
    given = envs.foreign("HF_HUB_CACHE") or envs.foreign("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    home = envs.foreign("HF_HOME") or str(Path(envs.foreign("XDG_CACHE_HOME", "~/.cache")) / "huggingface")
    return Path(home).expanduser() / "hub"


def from_cache(model: str, revision: str | None) -> Found | None:
    """The config of a model that was downloaded before, else None."""
    repo = cache_folder() / ("models--" + model.replace("/", "--"))
    wanted = revision or "main"
    ref = repo / "refs" / wanted
    try:
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else wanted
        path = repo / "snapshots" / commit / "config.json"
        return Found("cache", path, rawjson.read(path)) if path.is_file() else None
    except (OSError, ValueError):
        return None


def offline() -> bool:
    """Whether the hub may not be asked."""
    return envs.foreign("HF_HUB_OFFLINE").strip().lower() in ("1", "true", "yes", "on")


def from_hub(model: str, revision: str | None) -> Found:
    """The config from the hub.

    Raises:
        ConfigError: no such model or revision, no access (with the command that logs in), or no network.
        UnsupportedError: huggingface_hub is not installed.
    """
    try:
        import httpx
        from huggingface_hub import constants, errors, hf_hub_download
    except ImportError:
        raise UnsupportedError("model", model, "a path, a catalog name or a cached model",
                               "Run `pip install huggingface_hub` to ask the hub.") from None  # fmt: skip
    _require_answer(model, str(constants.ENDPOINT))
    try:
        path = Path(hf_hub_download(model, "config.json", revision=revision))
    except errors.GatedRepoError:
        action = "Accept its terms on its page on the hub, then run `hf auth login`."
        raise ConfigError("model", model, "a model that this account may read", action) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError("model", model, "a model on the hub",
                          "Check the name; for a private one run `hf auth login`.") from None  # fmt: skip
    except errors.RevisionNotFoundError:
        raise ConfigError("revision", revision, f"a branch, tag or commit of {model}", "Check --revision.") from None
    except errors.LocalEntryNotFoundError:
        raise _no_answer(model, "no copy on this machine") from None
    except errors.EntryNotFoundError:
        raise UnsupportedError("model", model, "a repository with a config.json",
                               "It may be an adapter, a tokenizer or a pipeline.") from None  # fmt: skip
    except errors.HFValidationError:
        raise ConfigError("model", model, "a path, or a model id such as org/name", "Check the name.") from None
    except (OSError, httpx.HTTPError) as error:
        raise _no_answer(model, type(error).__name__) from None
    return Found("hub", path, rawjson.read(path))


def _require_answer(model: str, endpoint: str) -> None:
    """One quick try to reach the hub, since its own client tries for half a minute before it says that it can't."""
    proxied = any(envs.foreign(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    address = urllib.parse.urlsplit(endpoint)
    if proxied or not address.hostname:
        return
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise _no_answer(model, type(error).__name__) from None


def _no_answer(model: str, why: str) -> ConfigError:
    near = catalog.suggest(model)
    hint = f" The catalog has {', '.join(near)}." if near else ""
    return ConfigError("model", model, "an answer of the hub", f"{why}: check the network, or give a folder.{hint}")

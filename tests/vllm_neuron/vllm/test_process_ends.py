"""How processes of the plugin begin and end."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vllm_neuron
from vllm_neuron.vllm import shims
from vllm_neuron.vllm.worker.neuron_worker import _leave_at_once


def test_a_rank_leaves_at_once_and_loses_no_output() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        sys.stdout = os.fdopen(writing, "w")
        print("last words", end="")
        _leave_at_once()
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "last words"


@pytest.mark.skipif(any(Path("/dev").glob("neuron*")), reason="has a Neuron device")
def test_the_plugin_declines_and_says_what_to_set(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.delenv("VLLM_NEURON_CPU_MODE", raising=False)
    monkeypatch.setattr(logging.getLogger("vllm_neuron"), "propagate", True)
    assert vllm_neuron.register() is None
    assert "no /dev/neuron* device" in caplog.text and "VLLM_NEURON_CPU_MODE=1" in caplog.text


@pytest.mark.parametrize(
    ("signalled", "errored", "fails"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_status_of_the_server(monkeypatch: pytest.MonkeyPatch, signalled: bool, errored: bool, fails: bool) -> None:
    """After a signal the engine counts as errored too, because it was stopped."""
    closed = []

    async def dummy_shutdown() -> None:
        closed.append("dummy")

    async def shutdown() -> None:
        closed.append("server")

    async def serve_http(app: Any) -> Any:
        return shutdown() if signalled else dummy_shutdown()

    entry = SimpleNamespace(serve_http=serve_http)
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.launchers.api_server.entry", entry)
    shims._dead_engine_fails_the_server()
    wrapped = entry.serve_http
    shims._dead_engine_fails_the_server()
    assert entry.serve_http is wrapped is not serve_http
    app = SimpleNamespace(state=SimpleNamespace(engine_client=SimpleNamespace(errored=errored)))

    async def run() -> None:
        closing = await entry.serve_http(app)
        await closing

    if fails:
        with pytest.raises(SystemExit) as caught:
            asyncio.run(run())
        assert caught.value.code == 1
    else:
        asyncio.run(run())
    assert closed == ["server" if signalled else "dummy"]


def test_the_shim_knows_vllms_names() -> None:
    """If vLLM renames what the shim relies on, this says so before a server exits with the wrong status."""
    import inspect

    from vllm.entrypoints.launchers import launcher
    from vllm.entrypoints.launchers.api_server import entry

    assert callable(entry.serve_http)
    assert "return dummy_shutdown()" in inspect.getsource(launcher.serve_http)

"""Real ``vllm serve`` processes on the loopback, asked by the openai client and ended by signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.vllm_neuron.vllm.conftest import prompts_of

START_SECONDS = 150
GRAMMARS = {"backend": "xgrammar", "disable_any_whitespace": True}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


class Server:
    """One server; ``stop`` ends it, and ``left`` names its processes that are alive."""

    def __init__(self, folder: Path, log: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = log
        arguments = [str(Path(sys.executable).with_name("vllm")), "serve", str(folder), "--host", "127.0.0.1"]
        arguments += ["--port", str(self.port), "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "4"]
        arguments += ["--served-model-name", "tiny", "--kv-cache-memory-bytes", str(1 << 24)]
        arguments += ["--structured-outputs-config", json.dumps(GRAMMARS), *options]
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        with log.open("w") as output:
            self.process = subprocess.Popen(arguments, stdout=output, stderr=output, env=environment)
        self.family = [psutil.Process(self.process.pid)]

    def wait_until_ready(self) -> None:
        """Until it answers.

        Raises:
            AssertionError: it ended, or takes too long; the log is in the message.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                self.family += self.family[0].children(recursive=True)
                return
        raise AssertionError(self.log.read_text()[-4000:])

    def workers(self) -> list[psutil.Process]:
        """The processes of the ranks."""
        return [p for p in self.family if "Worker" in " ".join(p.cmdline())]

    def left(self) -> list[psutil.Process]:
        """Processes of this server that still run."""
        return [p for p in self.family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        """End what is left."""
        for process in self.left():
            process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(checkpoint: Any, cpu_mode: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(checkpoint("llama").folder, tmp_path_factory.mktemp("server") / "log.txt")
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.kill()


def openai_client(server: Server) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    return openai_client(server)


def test_completion_equals_transformers(client: Any, checkpoint: Any) -> None:
    prompt = [1, 40, 50, 60]
    answer = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=8, logprobs=2,
                                       extra_body={"ignore_eos": True, "return_token_ids": True})  # fmt: skip
    checkpoint("llama").assert_greedy(prompt, answer.choices[0].token_ids)
    assert answer.usage.completion_tokens == 8 and len(answer.choices[0].logprobs.token_logprobs) == 8


def test_streamed_chat_equals_whole(client: Any) -> None:
    common: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "the fox"}], "seed": 4}
    common |= {"max_tokens": 12, "extra_body": {"allowed_token_ids": list(range(70, 90))}}
    whole = client.chat.completions.create(**common)
    parts = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**common, stream=True)]
    assert len(parts) > 3 and "".join(parts) == whole.choices[0].message.content != ""


def test_structured_output(client: Any) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "is it so?"}],
        max_tokens=100,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "ok", "schema": SCHEMA}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["ok"], bool)


def test_refused_requests_are_the_clients_fault(client: Any) -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match="thinking_token_budget"):
        client.completions.create(model="tiny", prompt="x", extra_body={"thinking_token_budget": 3})
    with pytest.raises(BadRequestError, match="watermarking: got True"):
        client.completions.create(model="tiny", prompt="x", extra_body={"watermarking": True})
    with pytest.raises(BadRequestError, match="256"):
        client.completions.create(model="tiny", prompt=[5] * 400)


def test_metrics_and_log(server: Server, client: Any) -> None:
    client.completions.create(model="tiny", prompt=[5, 6], max_tokens=2)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    made = [float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total{")]
    assert made and made[0] >= 2
    ours = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm_neuron_")}
    assert ours['vllm_neuron_kernel_calls_total{kernel="torch.sdpa",operation="attention_decode"}'] >= 2
    assert ours['vllm_neuron_step_tokens_total{phase="decode"}'] >= 1
    log = server.log.read_text()
    for words in ("vllm_neuron runs in CPU mode", "Warm-up:", "Loaded 27 parameters"):
        assert words in log
    assert "Unknown vLLM environment variable detected: VLLM_NEURON" not in log


def test_sigterm_ends_it_cleanly(server: Server) -> None:
    """The last test of the module: it ends the server."""
    assert len(server.left()) >= 2
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0
    assert not psutil.wait_procs(server.left(), timeout=5)[1]
    assert "Traceback" not in server.log.read_text()


def assert_two_ranks_agree_with_one(running: Server, checkpoint: Any) -> None:
    """Greedy tokens of both ranks' work, in a batch, past the largest context of a rank's block."""
    prompts = prompts_of(3, 40, 130, 200)
    answer = openai_client(running).completions.create(
        model="tiny", prompt=prompts, temperature=0, max_tokens=12,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        checkpoint("llama").assert_greedy(prompt, choice.token_ids)


def test_two_ranks_and_a_killed_one_ends_the_server(checkpoint: Any, cpu_mode: None, tmp_path: Path) -> None:
    running = Server(checkpoint("llama").folder, tmp_path / "log.txt", "--tensor-parallel-size", "2")
    try:
        running.wait_until_ready()
        assert len(running.workers()) == 2
        assert_two_ranks_agree_with_one(running, checkpoint)
        running.workers()[1].kill()
        assert running.process.wait(timeout=30) != 0
        assert not psutil.wait_procs(running.left(), timeout=10)[1]
        log = running.log.read_text()
        assert "died unexpectedly" in log and "The server ends with status 1" in log
        assert "AttributeError" not in log
    finally:
        running.kill()


def test_version_of_the_cpu_wheel(cpu_mode: None) -> None:
    command = [str(Path(sys.executable).with_name("vllm")), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("0.32")

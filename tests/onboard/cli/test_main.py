"""The command line itself: laziness, exit codes, errors as text and as JSON."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
import types

import pytest

from onboard.cli import main as cli
from onboard.cli.exits import MEANINGS, Exit
from onboard.cli.lazy import LazyCommand
from onboard.errors import RunError
from vllm_neuron.errors import ConfigError

ONBOARD = [sys.executable, "-m", "onboard.cli.main"]
HEAVY = ("torch", "transformers", "vllm", "numpy", "rich")


@pytest.fixture
def command(monkeypatch):
    """Add a command `boom` whose body is the given function."""

    def add(body):
        def boom(format: str = "text") -> None:
            body()

        module = types.ModuleType("onboard_test_boom")
        module.boom = boom
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "boom", LazyCommand(module.__name__, "Fails."))

    return add


def _raise(error):
    def body():
        raise error

    return body


def test_help_lists_every_command_and_exit_code(capsys):
    assert cli.run(["--help"]) == Exit.OK
    text = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert f"  {name} " in text
        assert entry.help.split()[0] in text
    for code, meaning in MEANINGS.items():
        assert f"{code.value:>3}  {meaning}" in text


def test_no_arguments_show_the_help(capsys):
    assert cli.run([]) == Exit.OK
    assert capsys.readouterr().out.startswith("Usage: onboard")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_in_the_table_loads_and_has_help(name, capsys):
    assert cli.run([name, "--help"]) == Exit.OK
    assert f"Usage: onboard {name}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in sorted(cli.COMMANDS))])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from onboard.cli.main import run; run(sys.argv[1:]); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_help_is_quick():
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([*ONBOARD, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    assert statistics.median(times) < 1.0  # 0.1 s on an idle machine; the bound leaves room for a busy one


def test_unknown_command_names_the_nearest(capsys):
    assert cli.run(["doctr"]) == Exit.USAGE
    assert "Did you mean 'doctor'?" in capsys.readouterr().err


def test_usage_error_is_json_when_json_is_asked_for(capsys):
    assert cli.run(["doctor", "--format", "json", "--nope"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == Exit.USAGE
    assert "--nope" in document["message"]


def test_neuron_error_is_a_message_and_exit_3(command, capsys):
    command(_raise(ConfigError("field", 3, "four", "Set four.")))
    assert cli.run(["boom"]) == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: field: got 3, expected four. Set four.\n"


@pytest.mark.parametrize("option", [["--format", "json"], ["--format=json"]])
def test_neuron_error_as_json_has_its_parts(command, capsys, option):
    command(_raise(ConfigError("field", 3, "four", "Set four.")))
    assert cli.run(["boom", *option]) == Exit.BAD_INPUT
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "error": "ConfigError",
        "field": "field",
        "value": "3",
        "expected": "four",
        "action": "Set four.",
        "exit_code": 3,
    }


def test_failed_run_is_exit_5(command, capsys):
    command(_raise(RunError("server", 1, "zero")))
    assert cli.run(["boom"]) == Exit.FAILED


def test_unreadable_file_names_the_file(command, capsys, tmp_path):
    command(lambda: (tmp_path / "absent").read_text())
    assert cli.run(["boom"]) == Exit.BAD_INPUT
    err = capsys.readouterr().err
    assert str(tmp_path / "absent") in err and "Check the path" in err


def test_interrupt_is_exit_130(command, capsys):
    command(_raise(KeyboardInterrupt()))
    assert cli.run(["boom"]) == Exit.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_own_bug_shows_the_traceback_and_is_exit_70(command, capsys):
    command(_raise(ZeroDivisionError("by zero")))
    assert cli.run(["boom"]) == Exit.BUG
    err = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in err
    assert "bug of onboard" in err


def _program(body: str) -> list[str]:
    """A program whose command `boom` has this body and whose exit code is the one of `onboard`."""
    code = (
        "import sys, types; from onboard.cli import main as cli; from onboard.cli.lazy import LazyCommand\n"
        f"def boom() -> None:\n    {body}\n"
        "sys.modules['m'] = m = types.ModuleType('m'); m.boom = boom\n"
        "cli.COMMANDS['boom'] = LazyCommand('m', 'x')\nsys.argv = ['onboard', 'boom']\ncli.main()\n"
    )
    return [sys.executable, "-c", code]


def test_closed_pipe_is_quiet():
    writer = subprocess.Popen(
        _program("[print('x' * 80) for _ in range(10**5)]"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer.stdout.readline()
    writer.stdout.close()
    assert writer.wait(timeout=30) == Exit.PIPE_CLOSED
    assert writer.stderr.read() == b""


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["catalog", "list"],
        ["catalog", "list", "--format", "json"],
        ["diff", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"],
        ["diff", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "--exit-code"],
        ["diff", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "--format", "json"],
        ["diff", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "--format", "html"],
        ["inspect", "Qwen/Qwen3-8B", "--format", "markdown"],
        ["inspect", "no/such", "--format", "json"],
        ["inspect", "--no-such-option", "--format", "json"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_output_that_takes_nothing_is_an_error_and_no_bug(args, unbuffered):
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run([*ONBOARD, *args], stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert done.returncode == Exit.FAILED, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: standard output: got 'No space left on device', expected ")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("args", [["--help"], ["diff", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"],
                                  ["inspect", "no/such", "--format", "json"]], ids=" ".join)  # fmt: skip
def test_a_pipe_without_a_reader_is_quiet(args):
    reading, writing = os.pipe()
    os.close(reading)
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*ONBOARD, *args], stdout=writing, stderr=subprocess.PIPE, text=True, env=env, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.PIPE_CLOSED, "")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)])
def test_signals_unwind_the_command(sent, code):
    body = (
        "import time\n    try:\n        print('up', flush=True); time.sleep(60)\n    finally:\n        print('tidied')"
    )
    child = subprocess.Popen(_program(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    os.kill(child.pid, sent)
    out, err = child.communicate(timeout=30)
    assert child.returncode == code
    assert out == "tidied\n"
    assert "Traceback" not in err


def test_version(capsys):
    assert cli.run(["--version"]) == Exit.OK
    assert capsys.readouterr().out.startswith("onboard ")

"""Where kernels run, against fake modules with the documented interfaces: no real nki and no device is here.

The fake ``nki`` is a package of its own in a child process, since what is real is settled at import.
"""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vllm_neuron import envs
from vllm_neuron.errors import ConfigError, KernelError, UnsupportedError
from vllm_neuron.nki import api, backend, standin
from vllm_neuron.nki.wrap import wrap_nki

FAKE_TOP = '''
import numpy as np
from vllm_neuron.nki.standin.launch import Kernel as Inner

class Kernel:
    """As jit makes it: callable on a device only, indexed by the grid."""
    def __init__(self, func, grid=1):
        self.func, self.grid = func, grid
    def __getitem__(self, grid):
        return Kernel(self.func, grid)
    def __call__(self, *args, **kwargs):
        raise RuntimeError("no device")

def jit(function):
    return Kernel(function)

SEEN = []

def _run(how, func, grid, kwargs):
    """On copies, as a simulator may."""
    SEEN.append((how, grid))
    inner = Inner(func)
    return inner[grid](**{k: v.copy() if isinstance(v, np.ndarray) else v for k, v in kwargs.items()})

def simulate(kernel):
    return lambda **kwargs: _run("simulate", kernel.func, kernel.grid, kwargs)

def cpu_simulate(kernel):
    class Launcher:
        def __getitem__(self, grid):
            return lambda **kwargs: _run("cpu_simulate", kernel.func, grid, kwargs)
    return Launcher()
'''
FAKE_SIMULATOR = """
import nki

def simulate_kernel(func, args, kwargs, lnc=1):
    assert args == ()
    return nki._run("simulate_kernel", func.func, lnc, kwargs)

def as_documented(func, args, kwargs, _lnc=1):
    return nki._run("simulate_kernel", func.func, _lnc, kwargs)
"""
CHILD = """
import torch, nki
from vllm_neuron.errors import KernelError
from vllm_neuron.nki import api, backend
from vllm_neuron.nki.wrap import wrap_nki
from vllm_neuron.functional.on_nki.norm import RMS_NORM
assert api.IS_REAL and api.nki is nki and backend.host_route() is backend.Route.SIMULATOR
assert type(RMS_NORM.kernel) is nki.Kernel

@nki.jit
def store_kernel(cache, x):
    api.nisa.dma_copy(dst=cache, src=x)
    return cache

store = wrap_nki(store_kernel, outputs=lambda cache, x: "cache", mutates=("cache",))
for name in (None, "simulate", "cpu_simulate", "simulate_kernel"):
    if name == "simulate_kernel":
        nki.simulator.simulate_kernel = nki.simulator.as_documented
    elif name:
        delattr(nki, name)
    for grid in (1, 2):
        cache, x = torch.zeros(4, 8, dtype=torch.bfloat16), torch.rand(4, 8).bfloat16()
        assert store[grid](cache, x) is cache and torch.equal(cache, x)
for outputs in (None, lambda cache, x: (x.shape, x.dtype)):
    try:
        wrap_nki(store_kernel, outputs=outputs, mutates=("cache",))(torch.zeros(4, 8), torch.ones(4, 8))
    except KernelError as error:
        assert "outputs: got 'nothing of cache" in str(error), error
    else:
        raise AssertionError("a write was lost")
import vllm_neuron.functional as NF
with NF.use_kernels("require"):
    x = torch.rand(5, 64)
    torch.testing.assert_close(NF.rms_norm(x, None, eps=1e-6), NF.rms_norm.reference(x, None, eps=1e-6))
print(nki.SEEN)
"""


def test_the_real_simulator_under_its_three_names(tmp_path: Path) -> None:
    package = tmp_path / "nki"
    package.mkdir()
    (package / "__init__.py").write_text(FAKE_TOP)
    (package / "language.py").write_text("from vllm_neuron.nki.standin.language import *\n")
    (package / "isa.py").write_text("from vllm_neuron.nki.standin.isa import *\n")
    (package / "simulator.py").write_text(FAKE_SIMULATOR)
    root = str(Path(backend.__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=envs.child({"PYTHONPATH": f"{tmp_path}:{root}"}),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    names = ("simulate", "cpu_simulate", "simulate_kernel", "simulate_kernel")
    assert ran.stdout.strip().startswith(str([(name, grid) for name in names for grid in (1, 2)])[:-1])


def test_without_nki_the_standin_runs() -> None:
    assert not api.IS_REAL and backend.host_route() is backend.Route.STANDIN
    assert api.nki is standin.nki


def test_the_empty_package_of_the_public_index_is_not_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = types.ModuleType("nki")
    monkeypatch.setitem(sys.modules, "nki", stub)
    assert api.real() is None
    for name in ("language", "isa"):
        monkeypatch.setitem(sys.modules, f"nki.{name}", types.ModuleType(f"nki.{name}"))
    assert api.real() is None
    monkeypatch.setattr(stub, "jit", lambda f: f, raising=False)
    assert api.real() is not None


def test_an_installed_standin_is_not_the_real_one() -> None:
    standin.install()
    try:
        assert api.real() is None
    finally:
        standin.uninstall()


@api.nki.jit
def plain_kernel(x: Any, scale: float = 1.0) -> Any:
    out = api.nl.ndarray(x.shape, dtype=x.dtype, buffer=api.nl.shared_hbm)
    api.nisa.dma_copy(dst=out, src=x)
    return out


class Framework(types.ModuleType):
    """A framework's ``nki_hop``: ``wrap_nki(kernel)[grid](**arguments)``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen: list[Any] = []

    def wrap_nki(self, kernel: Any) -> Any:
        framework = self

        class Caller:
            def __getitem__(self, grid: int) -> Any:
                def call(**arguments: Any) -> Any:
                    framework.seen.append((kernel, grid, list(arguments)))
                    return arguments["x"]

                return call

        return Caller()


def install(monkeypatch: pytest.MonkeyPatch, name: str) -> Framework:
    parts = name.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    made = Framework(name)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def on_device(*shape: int) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(*shape, device="xla")


@pytest.mark.parametrize("name", backend.FRAMEWORKS)
def test_device_tensors_go_to_the_framework(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    framework = install(monkeypatch, name)
    wrapped, x = wrap_nki(plain_kernel), on_device(2, 4)
    assert wrapped[2](x) is x and wrapped[1](scale=2.0, x=x) is x
    assert framework.seen == [(plain_kernel, 2, ["x", "scale"]), (plain_kernel, 1, ["x", "scale"])]


def test_a_compiled_graph_calls_the_framework_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "DEVICE_TYPES", ("cpu",))
    framework = install(monkeypatch, backend.FRAMEWORKS[0])
    wrapped = wrap_nki(plain_kernel)
    compiled = torch.compile(lambda x: wrapped[2](x + 1, scale=3.0), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2, 4)).eq(2).all()
    assert [(grid, names) for _, grid, names in framework.seen] == [(2, ["x", "scale"])]


@api.nki.jit
def typed_kernel(x: Any, dtype: Any = None) -> Any:
    return x


def test_a_framework_gets_element_types_of_nki(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "DEVICE_TYPES", ("cpu",))
    given: list[Any] = []

    class Caller:
        def __getitem__(self, grid: int) -> Any:
            return lambda **arguments: given.append(arguments["dtype"]) or arguments["x"]

    framework = install(monkeypatch, backend.FRAMEWORKS[0])
    monkeypatch.setattr(framework, "wrap_nki", lambda kernel: Caller())
    wrapped, x = wrap_nki(typed_kernel), torch.ones(2, 4)
    wrapped(x, torch.bfloat16)
    assert given == [api.nl.bfloat16]
    with pytest.raises(KernelError, match=r"dtype: got 'torch\.float64'"):
        wrapped(x, torch.float64)
    compiled = torch.compile(lambda x: wrapped(x + 1, torch.float16), fullgraph=True, backend="eager")
    assert compiled(x).eq(2).all() and given[1:] == [api.nl.float16]


def test_the_framework_that_is_imported_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "torch_neuronx"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "nki_hop.py").write_text("raise AssertionError('imported beside another framework')")
    monkeypatch.syspath_prepend(str(tmp_path))
    lite = install(monkeypatch, backend.FRAMEWORKS[1])
    wrap_nki(plain_kernel)(on_device(2, 4))
    assert lite.seen


def test_a_device_without_a_framework_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match=r"torch_neuronx\.nki_hop or libtorch_neuronx_lite"):
        wrap_nki(plain_kernel)(on_device(2, 4))


def test_unknown_arguments_do_not_reach_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = install(monkeypatch, backend.FRAMEWORKS[0])
    with pytest.raises(TypeError, match=r"'scal'.*'scale'"):
        wrap_nki(plain_kernel)[2](on_device(2, 4), scal=1.0)
    with pytest.raises(KernelError, match="int64"):
        wrap_nki(plain_kernel)[2](on_device(2, 4).long())
    assert not framework.seen


def test_logical_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.CORES_VARIABLE, raising=False)
    assert backend.logical_cores() == (2 if backend.device_present() else 1)
    for text in ("1", "2"):
        monkeypatch.setenv(backend.CORES_VARIABLE, text)
        assert backend.logical_cores() == int(text)
    monkeypatch.setenv(backend.CORES_VARIABLE, "4")
    with pytest.raises(ConfigError, match="1 or 2"):
        backend.logical_cores()

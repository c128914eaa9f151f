"""The stand-in as a package: names, installation, counts, objects, tests that break a primitive."""

import importlib
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import UnsupportedError
from vllm_neuron.nki import standin
from vllm_neuron.nki.standin import counting, jit, last_counts, nisa, nl
from vllm_neuron.nki.standin.isa import matmul, vector


@pytest.fixture
def uninstalled():
    yield
    standin.uninstall()


def test_installed_only_on_request(uninstalled):
    assert "nki" not in sys.modules
    standin.install()
    standin.install()
    nki = importlib.import_module("nki")
    language = importlib.import_module("nki.language")
    assert nki.IS_STANDIN and nki.jit is jit and language is nl and importlib.import_module("nki.isa") is nisa
    standin.uninstall()
    assert not {"nki", "nki.language", "nki.isa"} & set(sys.modules)


def test_a_real_nki_is_never_shadowed(tmp_path, monkeypatch, uninstalled):
    package = tmp_path / "nki"
    package.mkdir()
    for name in ("__init__", "language", "isa"):
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnsupportedError, match="nki"):
        standin.install()
    assert "nki" not in sys.modules


def test_the_empty_package_of_the_public_index_is_not_a_real_one(tmp_path, monkeypatch, uninstalled):
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    standin.install()
    assert importlib.import_module("nki").IS_STANDIN


def test_other_modules_of_the_name_stay(monkeypatch):
    monkeypatch.setitem(sys.modules, "nki.isa", nl)
    with pytest.raises(UnsupportedError, match=r"nki\.isa"):
        standin.install()
    standin.uninstall()
    assert sys.modules["nki.isa"] is nl


def test_it_says_what_it_is():
    assert "not AWS's" in standin.__doc__
    assert "stand-in" in repr(jit(lambda x: x))


def test_importing_it_takes_neither_torch_nor_vllm():
    code = "import sys, vllm_neuron.nki.standin; print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (nisa, "nc_matmul_mx", "MX types of trn3"),
        (nisa, "tensor_tensr", "Did you mean 'tensor_tensor'"),
        (nl, "bfloat17", "Did you mean 'bfloat16'"),
        (nl, "qqqq", "has no 'qqqq' here"),
    ],
)
def test_missing_names_say_so(module, name, message):
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=message):
        getattr(module, name)


def test_older_names_of_engines():
    assert nisa.constants.engine.tensor is nisa.engine.tensor is nisa.tensor_engine


def test_types_are_strings():
    assert nl.bfloat16 == "bfloat16" and str(nl.float8_e4m3) == "float8_e4m3"
    assert {nl.float32: 1}["float32"] == 1
    assert nl.bfloat16 != nl.float16 and isinstance(nl.bfloat16, str)


def test_counts_of_calls_are_collected_by_kernel():
    @jit
    def first(x):
        return out(tile(x))

    @jit
    def second(x):
        t = tile(x)
        nisa.activation(dst=t, op=nl.exp, data=t)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        return out(t)

    x = normal(64, 100)
    with counting() as outer:
        first(x)
        with counting(events=True) as inner:
            second[2](x)
    second(x)
    assert [c.kernel for c in outer.calls] == ["first", "second"]
    assert list(inner.by_kernel()) == ["second"]
    counts = inner.calls[0]
    assert counts.programs == 2
    assert counts.instructions == {"tensor": 0, "vector": 2, "scalar": 2, "gpsimd": 0, "dma": 4, "sync": 0}
    assert counts.cycles["scalar"] == 2 * 100
    assert [e.name for e in counts.events if e.program == 0] == ["dma_copy", "activation", "tensor_scalar", "dma_copy"]
    assert last_counts().programs == 1 and not last_counts().events


def test_a_failed_call_leaves_no_counts():
    with counting() as collected, pytest.raises(Exception, match="return"):
        run(lambda x: None, normal(2, 2))
    assert not collected.calls


@dataclass
class Config(nl.NKIObject):
    size: int
    name: str = "x"
    hidden = 7


class Plain(nl.NKIObject):
    size: int = 3
    other = None

    def double(self):
        return 2 * self.size


@dataclass
class Lists(nl.NKIObject):
    items: list = field(default_factory=list)
    name: str = ""


@dataclass
class Derived(Config):
    extra: float = 0.5


def test_objects_have_a_lenient_keyword_constructor():
    assert Config(size=3).size == 3
    assert Config(name="y", hidden=1).hidden == 1
    assert Config(4, "z").name == "z"
    assert Plain(other=2).double() == 6
    assert Plain(size=5).double() == 10
    assert Derived(size=1, extra=2.0, hidden=3).extra == 2.0
    assert Lists(name="a").items == [] and Lists().items is not Lists().items
    with pytest.raises(TypeError, match="sise"):
        Config(sise=3)


def test_objects_may_hold_arrays_for_a_kernel():
    @jit
    def kernel(config):
        return out(tile(config.weights))

    class Weights(nl.NKIObject):
        weights = None

    x = normal(4, 4)
    assert np.array_equal(kernel(Weights(weights=x)), x)


def softmax_rows(x):
    """A kernel that leans on accumulate, transpose, select and reduce."""
    data = tile(x)
    turned = empty((16, 32), buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=data)
    columns = empty((16, 32))
    nisa.tensor_copy(dst=columns, src=turned)
    masked = empty((16, 32))
    nisa.affine_select(
        dst=masked,
        pattern=[[-1, 32]],
        offset=20,
        channel_multiplier=0,
        on_true_tile=columns,
        on_false_value=-1.0e30,
        cmp_op=nl.greater_equal,
    )
    largest = empty((16, 1))
    nisa.tensor_reduce(dst=largest, op=nl.maximum, data=masked, axis=1, negate=True)
    nisa.activation(dst=masked, op=nl.exp, data=masked, bias=largest)
    product = empty((32, 32), buffer=nl.psum)
    for half in (0, 8):
        part = empty((8, 32))
        nisa.dma_copy(dst=part, src=masked[half : half + 8])
        nisa.nc_matmul(dst=product, stationary=part, moving=part)
    return out(product)


def softmax_rows_reference(x):
    masked = np.where(np.arange(32) <= 20, x.T, np.float32(-1e30))
    weights = np.exp(masked - masked.max(axis=1, keepdims=True))
    return weights.T @ weights


def test_a_kernel_that_leans_on_the_primitives():
    x = normal(32, 16)
    assert np.allclose(run(softmax_rows, x), softmax_rows_reference(x), rtol=1e-5, atol=1e-6)


def never_accumulate(original):
    return lambda t, product, accumulate: original(t, product, False)


def wrong_transpose(original):
    def transpose(dst, data, **kwargs):
        original(dst=dst, data=data, **kwargs)
        dst.array[...] = dst.array[:, ::-1].copy()

    return transpose


def wrong_constant(original):
    return lambda **kwargs: original(**{**kwargs, "on_false_value": 0.0})


def wrong_reduce(original):
    return lambda op, values, axes, argument: original(nl.minimum if op is nl.maximum else op, values, axes, argument)


@pytest.mark.parametrize(
    ("module", "name", "damage"),
    [
        (matmul, "accumulate_into", never_accumulate),
        (nisa, "nc_transpose", wrong_transpose),
        (nisa, "affine_select", wrong_constant),
        (vector, "reduce_free", wrong_reduce),
    ],
)
def test_breaking_a_primitive_breaks_the_kernel(monkeypatch, module, name, damage):
    monkeypatch.setattr(module, name, damage(getattr(module, name)))
    x = normal(32, 16)
    assert not np.allclose(run(softmax_rows, x), softmax_rows_reference(x), rtol=1e-2, atol=1e-2)

"""Products and transposes."""

import ml_dtypes
import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin import last_counts, nisa, nl

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_nc_matmul_contracts_over_partitions(dtype):
    a, b = normal(64, 32, dtype=dtype), normal(64, 100, seed=1, dtype=dtype)

    def kernel(s, m):
        p = empty((32, 100), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(s), moving=tile(m))
        return out(p)

    expected = a.astype(np.float64).T @ b.astype(np.float64)
    assert np.allclose(run(kernel, a, b), expected, rtol=1e-5, atol=1e-4)


def test_first_product_overwrites_and_later_ones_accumulate():
    a, b = normal(128, 16), normal(128, 24, seed=1)

    def kernel(s, m):
        s, m = tile(s), tile(m)
        results = []
        for mode in (None, True, False):
            p = empty((16, 24), buffer=nl.psum)
            nisa.nc_matmul(dst=p, stationary=s, moving=m)
            nisa.nc_matmul(dst=p, stationary=s, moving=m, accumulate=mode)
            results.append(out(p))
        return results

    once = a.T @ b
    for result, times in zip(run(kernel, a, b), (2, 2, 1), strict=True):
        assert np.allclose(result, times * once, rtol=1e-5, atol=1e-4)


def test_written_flags_are_kept_for_each_element():
    a, b = normal(128, 16), normal(128, 24, seed=1)

    def kernel(s, m):
        s, m = tile(s), tile(m)
        p = empty((16, 24), buffer=nl.psum)
        nisa.nc_matmul(dst=p[:, 0:8], stationary=s, moving=m[:, 0:8])
        nisa.nc_matmul(dst=p, stationary=s, moving=m)
        return out(p)

    expected = a.T @ b
    expected[:, :8] *= 2
    assert np.allclose(run(kernel, a, b), expected, rtol=1e-5, atol=1e-4)


def test_accumulating_onto_nothing_is_refused():
    def kernel(s, m):
        p = empty((16, 24), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(s), moving=tile(m), accumulate=True)
        return out(p)

    with pytest.raises(KernelError, match=r"accumulate=True.*never written"):
        run(kernel, normal(8, 16), normal(8, 24))


def test_double_row_contracts_over_the_pair_too():
    fp8 = ml_dtypes.float8_e4m3
    a, b = normal(64, 2, 16, dtype=fp8), normal(64, 2, 24, seed=1, dtype=fp8)

    def kernel(s, m):
        p = empty((16, 24), buffer=nl.psum)
        mode = nisa.matmul_perf_mode.double_row
        nisa.nc_matmul(dst=p, stationary=tile(s), moving=tile(m), perf_mode=mode)
        return out(p)

    expected = np.einsum("kpm,kpn->mn", a.astype(np.float32), b.astype(np.float32))
    assert np.allclose(run(kernel, a, b), expected, rtol=1e-5, atol=1e-4)
    assert last_counts().matmul_cycles == 64


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32])
def test_nc_transpose_is_exact(dtype):
    x = normal(60, 3, 20) * 10
    x[3, 1] = np.nan if dtype is not np.int32 else 5
    x = x.astype(dtype)

    def kernel(a):
        data = tile(a)
        p = empty((60, 60), data.dtype, nl.psum)
        nisa.nc_transpose(dst=p, data=data)
        small = empty((20, 32), data.dtype)
        nisa.nc_transpose(dst=small, data=data[0:32, 0, :], engine=nisa.engine.vector)
        return out(p), out(small)

    whole, small = run(kernel, x)
    assert whole.tobytes() == np.ascontiguousarray(x.reshape(60, 60).T).tobytes()
    assert small.tobytes() == np.ascontiguousarray(x[:32, 0].T).tobytes()


def test_matmul_with_is_transpose_keeps_bits():
    x = normal(16, 24, dtype=BF16)

    def kernel(a):
        identity = nl.shared_identity_matrix(16, dtype=nl.bfloat16)
        p = empty((24, 16), nl.bfloat16, nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(a), moving=identity, is_transpose=True)
        return out(p)

    assert run(kernel, x).tobytes() == np.ascontiguousarray(x.T).tobytes()


@pytest.mark.parametrize(
    ("stationary", "moving", "message"),
    [
        ((64, 129), (64, 8), r"nc_matmul\.stationary.*free size 129.*at most 128"),
        ((64, 8), (64, 513), r"nc_matmul\.moving.*free size 513.*at most 512"),
        ((64, 8), (32, 8), r"nc_matmul\.moving.*32 partitions.*64 partitions"),
    ],
)
def test_tile_limits_of_a_product(stationary, moving, message):
    def kernel(s, m):
        p = empty((8, 8), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(s), moving=tile(m))
        return out(p)

    with pytest.raises(KernelError, match=message):
        run(kernel, normal(*stationary), normal(*moving))


def test_mixed_fp32_and_bf16_is_refused():
    def kernel(s, m):
        p = empty((8, 8), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(s), moving=tile(m))
        return out(p)

    with pytest.raises(KernelError, match="both fp32, or none"):
        run(kernel, normal(8, 8), normal(8, 8, dtype=BF16))


def test_product_goes_to_one_bank_of_psum():
    def kernel(s, m):
        p = empty((8, 1024), buffer=nl.psum)
        nisa.nc_matmul(dst=p[:, 256:768], stationary=tile(s), moving=tile(m))
        return out(p)

    with pytest.raises(KernelError, match=r"bytes 1024 to 3071 .* one PSUM bank of 2048"):
        run(kernel, normal(8, 8), normal(8, 512))


def test_buffers_of_the_tensor_engine():
    def from_psum(s, m):
        p = empty((8, 8), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(s, buffer=nl.psum), moving=tile(m))
        return out(p)

    def to_sbuf(s, m):
        t = empty((8, 8))
        nisa.nc_matmul(dst=t, stationary=tile(s), moving=tile(m))
        return out(t)

    with pytest.raises(KernelError, match=r"stationary.*psum.*in sbuf"):
        run(from_psum, normal(8, 8), normal(8, 8))
    with pytest.raises(KernelError, match=r"dst.*sbuf.*in psum"):
        run(to_sbuf, normal(8, 8), normal(8, 8))


def test_cycles_follow_moving_rows_and_type():
    def kernel(s, m):
        s, m = tile(s), tile(m)
        p = empty((64, 512), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=s, moving=m)
        q = empty((128, 64), s.dtype, nl.psum)
        nisa.nc_transpose(dst=q, data=m[0:64, 0:128])
        return out(p)

    for dtype, passes in ((BF16, 1), (np.float32, 4)):
        run(kernel, normal(64, 64, dtype=dtype), normal(64, 512, dtype=dtype))
        counts = last_counts()
        assert counts.matmul_cycles == 512 * passes
        assert counts.transpose_cycles == (64 if passes == 1 else 128)
        assert counts.instructions["tensor"] == 2


@pytest.mark.parametrize(
    ("kind", "psum", "message"),
    [("float8_e4m3fn", "float32", "before trn3"), ("bfloat16", "bfloat16", "bfloat16 on trn3")],
)
def test_what_only_trn3_has(monkeypatch, kind, psum, message):
    def kernel(s, m):
        p = empty((8, 8), psum, nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(s), moving=tile(m))
        return out(p)

    dtype = getattr(ml_dtypes, kind)
    arrays = normal(8, 8, dtype=dtype), normal(8, 8, seed=1, dtype=dtype)
    with pytest.raises(KernelError, match=message):
        run(kernel, *arrays)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    expected = arrays[0].astype(np.float32).T @ arrays[1].astype(np.float32)
    assert np.allclose(run(kernel, *arrays).astype(np.float32), expected, rtol=1e-2, atol=1e-2)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    with pytest.raises(KernelError, match="one of trn1"):
        run(kernel, *arrays)


def test_versions_are_ordered(monkeypatch):
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    assert nisa.nc_version.gen2 < nisa.nc_version.gen3 <= nisa.nc_version.gen4
    assert nisa.nc_version.gen4 > nisa.nc_version.gen3 >= nisa.nc_version.gen3
    assert nisa.get_nc_version() is nisa.nc_version.gen3


@pytest.mark.parametrize(
    ("position", "size", "message"),
    [
        ((32, 0), (32, 128), None),
        ((0, 0), (64, 64), None),
        ((0,), (32, 128), "both"),
        ((0, 0), (), "both"),
        ((16, 0), (32, 128), "multiple"),
        ((96, 0), (64, 128), "multiple"),
        ((0, 0), (48, 128), "multiple"),
        ((0, 0), (32, 32), "at least 40"),
    ],
)
def test_parts_of_the_array(position, size, message):
    def kernel(s, m):
        p = empty((40, 8), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=tile(s), moving=tile(m), tile_position=position, tile_size=size)
        return out(p)

    a, b = normal(32, 40), normal(32, 8, seed=1)
    if message is None:
        assert np.allclose(run(kernel, a, b), a.T @ b, rtol=1e-5, atol=1e-4)
    else:
        with pytest.raises(KernelError, match=message):
            run(kernel, a, b)

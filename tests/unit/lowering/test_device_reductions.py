"""Warp and block reductions and scans of the prelude, executed by the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from emulation import kernel, launch, module

from tinygrad_cuda.backend.emu.runtime import EmulatedModule

REDUCTIONS = {
    "sum_f": ("float", "tgc_sum_op()"),
    "sum_d": ("double", "tgc_sum_op()"),
    "sum_l": ("long long", "tgc_sum_op()"),
    "sum_c": ("signed char", "tgc_sum_op()"),
    "product": ("double", "tgc_product_op()"),
    "max": ("float", "tgc_max_op()"),
    "min": ("float", "tgc_min_op()"),
    "all": ("int", "tgc_and_op()"),
    "any": ("int", "tgc_or_op()"),
    "last": ("int", "[](int, int later) { return later; }"),
}


@pytest.fixture(scope="module")
def reductions() -> EmulatedModule:
    text = ""
    for name, (c, op) in REDUCTIONS.items():
        fields = f"const {c}* a; {c}* out;"
        for what in ("reduce", "scan"):
            text += kernel(
                f"{name}_{what}",
                fields,
                f"""{c} value = tgc_load(p.a, threadIdx.x);
                tgc_store(p.out, threadIdx.x, tgc_block_{what}(value, {op}, smem));""",
            )
    text += kernel(
        "argmax",
        "const float* a; long long* high; long long* low;",
        """tgc_pair<float> pair = {tgc_load(p.a, threadIdx.x), (long long)threadIdx.x};
        tgc_store(p.high, threadIdx.x, tgc_block_reduce(pair, tgc_argmax_op(), smem).index);
        tgc_store(p.low, threadIdx.x, tgc_block_reduce(pair, tgc_argmin_op(), smem).index);""",
    )
    text += kernel(
        "welford",
        "const double* a; double* n; double* mean; double* m2; long long count;",
        """tgc_welford<double> w = {0, 0, 0};
        for (int i = threadIdx.x; i < p.count; i += blockDim.x)
          w = tgc_welford_add(w, tgc_load(p.a, i));
        w = tgc_block_reduce(w, tgc_welford_op(), smem);
        tgc_store(p.n, threadIdx.x, w.n);
        tgc_store(p.mean, threadIdx.x, w.mean);
        tgc_store(p.m2, threadIdx.x, w.m2);""",
    )
    for what in ("reduce", "scan"):
        text += kernel(
            f"repeated_{what}",
            "long long* out;",
            f"""for (int round = 0; round < 4; round++) {{
              long long value = threadIdx.x * (round + 1);
              tgc_store(p.out, round * (int)blockDim.x + threadIdx.x,
                        tgc_block_{what}(value, tgc_sum_op(), smem));
            }}""",
        )
    return module(text)


DTYPES = {"float": "f4", "double": "f8", "long long": "i8", "int": "i4", "signed char": "i1"}
BLOCKS = [32, 64, 96, 160, 992, 1024]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_block_reductions(reductions: EmulatedModule, name: str, block: int, order: int) -> None:
    rng = np.random.default_rng(block)
    dtype = np.dtype(DTYPES[REDUCTIONS[name][0]])
    if dtype.kind == "f":
        x = (rng.uniform(0.9, 1.1, block)).astype(dtype)
    else:
        x = rng.integers(-100, 100, block).astype(dtype)
    out = np.zeros_like(x)
    shared = 32 * dtype.itemsize
    launch(reductions, f"{name}_reduce", x, out, block=block, shared=shared, order=order)
    function = {
        "product": np.prod,
        "max": np.max,
        "min": np.min,
        "all": np.bitwise_and.reduce,
        "any": np.bitwise_or.reduce,
        "last": lambda x: x[-1],
    }.get(name, lambda x: np.sum(x, dtype=dtype))
    assert (out == out[0]).all()  # every thread, to the bit
    np.testing.assert_allclose(out[0], function(x), rtol=1e-5 if dtype == "f4" else 1e-12)


@pytest.mark.parametrize("block", BLOCKS)
def test_block_scan(reductions: EmulatedModule, block: int) -> None:
    x = np.random.default_rng(block).integers(-100, 100, block)
    out = np.zeros_like(x)
    launch(reductions, "sum_l_scan", x, out, block=block, shared=256)
    np.testing.assert_array_equal(out, np.cumsum(x))
    launch(
        reductions,
        "last_scan",
        x.astype("i4"),
        last := np.zeros(block, "i4"),
        block=block,
        shared=128,
    )
    np.testing.assert_array_equal(last, x)


@pytest.mark.parametrize("order", range(4))
def test_scratch_is_free_again_on_return(reductions: EmulatedModule, order: int) -> None:
    """Nobody may still read the partial results when the next reduction writes its own."""
    x = np.arange(1, 5)[:, None] * np.arange(256)
    out = np.zeros_like(x)
    launch(reductions, "repeated_reduce", out, block=256, shared=256, order=order)
    np.testing.assert_array_equal(out, np.broadcast_to(x.sum(1, keepdims=True), x.shape))
    launch(reductions, "repeated_scan", out, block=256, shared=256, order=order)
    np.testing.assert_array_equal(out, np.cumsum(x, 1))


def test_max_and_min_let_nan_through(reductions: EmulatedModule) -> None:
    for name in ("max_reduce", "min_reduce"):
        for position in (0, 31, 32, 95):
            x = np.arange(96, dtype=np.float32)
            x[position] = np.nan
            out = np.zeros_like(x)
            launch(reductions, name, x, out, block=96, shared=128)
            assert np.isnan(out).all()


@pytest.mark.parametrize("block", BLOCKS)
def test_arg_reductions_take_the_first_and_prefer_nan(
    reductions: EmulatedModule, block: int
) -> None:
    rng = np.random.default_rng(block)
    ties = rng.integers(0, 4, block).astype(np.float32)
    with_nan = ties.copy()
    with_nan[[block // 3, block - 1]] = np.nan
    for x in (ties, with_nan, rng.standard_normal(block).astype(np.float32)):
        high, low = np.zeros(block, np.int64), np.zeros(block, np.int64)
        launch(reductions, "argmax", x, high, low, block=block, shared=32 * 16)
        assert (high == np.argmax(x)).all()
        assert (low == np.argmin(x)).all()


@pytest.mark.parametrize("count", [1, 40, 5000])
@pytest.mark.parametrize("block", [32, 96, 1024])
def test_welford(reductions: EmulatedModule, block: int, count: int) -> None:
    x = np.random.default_rng(count).standard_normal(count) + 1e6
    n, mean, m2 = np.zeros((3, block))
    launch(reductions, "welford", x, n, mean, m2, count, block=block, shared=32 * 24)
    for result in (n, mean, m2):
        assert (result == result[0]).all()
    assert n[0] == count
    np.testing.assert_allclose(mean[0], x.mean(), rtol=1e-14)
    np.testing.assert_allclose(m2[0], x.var() * count, rtol=1e-8, atol=1e-12)

"""float16 and bfloat16: a node rounds wherever it is computed, one operation of PyTorch once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
import tinygrad_cuda.nn.functional as F
from tinygrad_cuda import Tensor

Array = np.ndarray[Any, Any]
Program = Callable[..., Tensor]

HALVES = [tc.float16, tc.bfloat16]


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _leaves(device: str, dtype: tc.dtype, *arrays: Array) -> list[Tensor]:
    return [tc.tensor(array, device=device).to(dtype).requires_grad_() for array in arrays]


# Kernels ------------------------------------------------------------------------------------------

CHAINS: list[Program] = [
    lambda x, y, z: (x * x + x) * x - x,
    lambda x, y, z: (x @ y) * z + z,
    lambda x, y, z: ((x @ y) * z).sum(1),
    lambda x, y, z: x.sum(1, keepdim=True) * x + x,
    lambda x, y, z: x.sum(0) * x + x,
    lambda x, y, z: (x * x).amax(1) * 3,
    lambda x, y, z: x / (x * x + x).sum(1, keepdim=True),
    lambda x, y, z: (x * 200) * 200 / 304,
    lambda x, y, z: (x.abs().sqrt() * x).abs().sqrt(),
    lambda x, y, z: (x * x)[tc.tensor([3, 1, 2], device=x.device)] * x[:3],
]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_kernel_rounds_where_numpy_does(dtype: tc.dtype) -> None:
    """Bit for bit: an intermediate in a register rounds as one in memory does."""
    arrays = [_normal(33, 20), _normal(20, 24, seed=1), _normal(33, 24, seed=2)]

    def run(device: str) -> list[Array]:
        leaves = _leaves(device, dtype, *arrays)
        return [found.detach().float().numpy() for found in [make(*leaves) for make in CHAINS]]

    for actual, expected in zip(run("emu"), run("cpu"), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_look_at_an_intermediate_changes_nothing(dtype: tc.dtype) -> None:
    (x,) = _leaves("emu", dtype, _normal(40, 12))
    found = []
    for look in (False, True):
        inner = x * x + x
        if look:
            inner.detach().numpy()
        found.append((inner * x - x).detach().float().numpy())
    np.testing.assert_array_equal(*found)


# Compositions -------------------------------------------------------------------------------------

ONE_OPERATION: dict[str, Program] = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": F.elu,
    "selu": F.selu,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "hardswish": F.hardswish,
    "glu": F.glu,
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "layer_norm": lambda x: F.layer_norm(x, (24,)),
    "group_norm": lambda x: F.group_norm(x, 4),
    "rms_norm": lambda x: F.rms_norm(x, (24,), eps=1e-3),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "mean": lambda x: x.mean(1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "norm": lambda x: x.norm(dim=1),
    "3-norm": lambda x: x.norm(3, dim=1),
    "mse_loss": lambda x: F.mse_loss(x, x.detach().flip(0)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x.detach().flip(0)),
    "cross_entropy": lambda x: F.cross_entropy(x, tc.arange(20, device="cpu")),
    "addcmul": lambda x: tc.addcmul(x, x.detach(), x.detach(), value=0.3),
    "lerp": lambda x: tc.lerp(x, x.detach().flip(0), 0.3),
    "alpha": lambda x: tc.add(x, x.detach().flip(0), alpha=0.3),
    "cumsum": lambda x: x.cumsum(1),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2.5, mode="linear"),
    "x * 0.1": lambda x: x * 0.1,
    "numpy's 0.1": lambda x: x * np.float32(0.1),
    "addmm": lambda x: tc.addmm(
        x, tc.eye(20, dtype=x.dtype, device="cpu"), x.detach(), beta=0.3, alpha=0.7
    ),
    "x / 3": lambda x: x / 3.3,
    "0.1 - x": lambda x: 0.1 - x,
    "0.1 / x": lambda x: 0.1 / x,
    "x ** 0.3": lambda x: x.abs() ** 0.3,
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", list(ONE_OPERATION))
def test_one_operation_rounds_once(name: str, dtype: tc.dtype) -> None:
    """Value and gradient are those of float32, rounded: numbers are not rounded before."""
    function = ONE_OPERATION[name]
    (x,) = _leaves("cpu", dtype, _normal(20, 24))
    wide = x.detach().float().requires_grad_()
    actual, expected = function(x), function(wide)
    assert actual.dtype is dtype
    cotangent = tc.tensor(_normal(*expected.shape, seed=3), device="cpu").to(dtype)
    actual.backward(cotangent)
    expected.backward(cotangent.float())
    assert x.grad is not None and wide.grad is not None
    for own, right in ((actual.detach(), expected.detach()), (x.grad, wide.grad)):
        np.testing.assert_array_equal(own.float().numpy(), right.to(dtype).float().numpy())


# Range --------------------------------------------------------------------------------------------

MANY = 70_000  # more than float16 counts to
OVER_MANY: dict[str, Program] = {
    "mean": lambda x: x.mean(),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(),
    "mse_loss": lambda x: F.mse_loss(x, x.detach() * 0),
    "l1_loss": lambda x: F.l1_loss(x, x.detach() * 0),
    "cross_entropy": lambda x: F.cross_entropy(
        x.reshape(-1, 1).expand(MANY, 2) * tc.tensor([1.0, 2.0], device=x.device).to(x.dtype),
        tc.zeros(MANY, device=x.device).long(),
    ),
    "batch_norm": lambda x: F.batch_norm(x.reshape(-1, 1), None, None, training=True)[:9],
    "layer_norm": lambda x: F.layer_norm(x, (MANY,))[:9],
    "nanmean": lambda x: x.nanmean(),
    "std_mean": lambda x: tc.stack(tc.std_mean(x * 1e-2)) * 100,
    "cov": lambda x: tc.cov((x * 8).reshape(2, -1)),
    "corrcoef": lambda x: tc.corrcoef((x * 8).reshape(2, -1)),
    "renorm": lambda x: (x * 100).reshape(2, -1).renorm(2, 0, 1.0)[:, :9] * 100,
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(
        x.reshape(2, -1), x.detach().reshape(2, -1).flip(1), tc.ones(2, device=x.device)
    ),
    "scatter_reduce": lambda x: tc.zeros(2, device=x.device, dtype=x.dtype).scatter_reduce(
        0, tc.zeros(MANY, device=x.device).long(), x, "mean"
    ),
    "embedding_bag": lambda x: F.embedding_bag(
        tc.arange(MANY, device=x.device).reshape(1, -1), x.reshape(-1, 1), mode="mean"
    ),
}


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_counts_and_sums_leave_the_range_of_float16(device: str) -> None:
    array = _normal(MANY) + 1
    (x,) = _leaves(device, tc.float16, array)
    results = [function(x) for function in OVER_MANY.values()]
    for (name, function), actual in zip(OVER_MANY.items(), results, strict=True):
        expected = function(tc.tensor(array, device="cpu").half().float()).numpy()
        np.testing.assert_allclose(
            actual.detach().float().numpy(), expected, rtol=2e-3, atol=1e-3, err_msg=name
        )


SHARED: dict[str, Program] = {
    "nanmean": lambda x: x.nanmean(),
    "max": lambda x: x.max(),
    "amax": lambda x: x.reshape(1, -1).amax(1),
    "median": lambda x: x.median(),
    "scatter_reduce": lambda x: tc.zeros(1, device=x.device, dtype=x.dtype).scatter_reduce(
        0, tc.zeros(MANY, device=x.device).long(), x, "amax", include_self=False
    ),
    "index_reduce": lambda x: tc.zeros(1, device=x.device, dtype=x.dtype).index_reduce(
        0, tc.zeros(MANY, device=x.device).long(), x, "mean", include_self=False
    ),
}


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_a_gradient_is_shared_by_more_elements_than_float16_counts(device: str) -> None:
    """Equal elements share a gradient; PyTorch gives each ``1 / 70000``, rounded."""
    (x,) = _leaves(device, tc.float16, np.full(MANY, 3, np.float32))
    expected = np.full(MANY, np.float16(1 / MANY))
    for name, function in SHARED.items():
        (gradient,) = tc.autograd.grad(function(x).sum(), x)
        np.testing.assert_array_equal(gradient.numpy(), expected, err_msg=name)


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_the_mean_of_large_values_is_no_infinity(device: str) -> None:
    x = tc.full((1, 1, 4, 4, 4), 60000.0, dtype=tc.float16, device=device)
    bag = tc.zeros(1, 64, device=device).long()
    means = [
        x.mean(), x.nanmean(), F.avg_pool1d(x[0, 0, 0], 4), F.avg_pool2d(x[0], 2),
        F.avg_pool3d(x, 2), F.avg_pool2d(x[0], 3, 2, 1, count_include_pad=False),
        F.adaptive_avg_pool2d(x[0], 1), F.interpolate(x[0], (2, 2), mode="area"),
        F.embedding_bag(bag, x.reshape(64, 1), mode="mean"),
        tc.zeros(1, dtype=x.dtype, device=device).index_reduce(
            0, bag[0], x.reshape(-1), "mean", include_self=False
        ),
    ]  # fmt: skip
    for mean in means:
        assert set(mean.reshape(-1).tolist()) == {60000.0}


@pytest.mark.parametrize("device", ["cpu", "emu"])
@pytest.mark.parametrize("dtype", HALVES)
def test_rows_without_variance_have_finite_gradients(device: str, dtype: tc.dtype) -> None:
    (x,) = _leaves(device, dtype, np.full((4, 6), 3, np.float32))
    pieces = [
        F.layer_norm(x, (6,)), F.batch_norm(x, None, None, training=True), F.group_norm(x, 2),
        F.instance_norm(x[None]), x.std(1), x.var(1),
    ]  # fmt: skip
    for piece in pieces:
        assert piece.isfinite().all()
        (gradient,) = tc.autograd.grad(piece.sum(), x, retain_graph=True)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("narrow", [False, True])
def test_a_small_share_times_its_input_is_a_number_of_bfloat16(device: str, narrow: bool) -> None:
    """silu(-88) is -5.3e-37, though its sigmoid lies below float32's normal numbers."""
    x = tc.tensor([-88.0, -88.5, -60.0], device=device)
    x = x.to(tc.bfloat16) if narrow else x
    wanted = [-5.328e-37, -3.25e-37, -5.254e-25]
    result = F.silu(x).to(tc.bfloat16).float().numpy()
    np.testing.assert_allclose(result, wanted, rtol=0.02)

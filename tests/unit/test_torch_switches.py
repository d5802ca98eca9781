"""Small names that PyTorch programs use around the training: seeds, switches, decorators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings


def test_one_stream_whatever_it_is_called() -> None:
    draws = []
    for seed in (
        tc.manual_seed,
        tc.random.manual_seed,
        tc.cuda.manual_seed,
        tc.cuda.manual_seed_all,
    ):
        seed(5)
        draws.append(tc.rand(3, device="cpu").tolist())
    assert all(draw == draws[0] for draw in draws)


def test_fork_rng_takes_back_what_was_drawn() -> None:
    tc.manual_seed(3)
    expected = tc.rand(4, device="cpu").tolist()
    tc.manual_seed(3)
    with pytest.raises(ZeroDivisionError), tc.random.fork_rng():
        tc.rand(7, device="cpu")
        raise ZeroDivisionError
    assert tc.rand(4, device="cpu").tolist() == expected
    with tc.random.fork_rng(enabled=False):
        tc.rand(7, device="cpu")
    assert tc.random.get_rng_state().tolist() == tc.get_rng_state().tolist()
    assert tc.rand(4, device="cpu").tolist() != expected


def test_switches_say_what_is_true() -> None:
    tc.backends.cudnn.benchmark = True
    tc.backends.cudnn.deterministic = False
    tc.backends.cudnn.enabled = False
    tc.use_deterministic_algorithms(False)
    assert tc.are_deterministic_algorithms_enabled()
    assert tc.backends.cudnn.benchmark and not tc.backends.cudnn.deterministic
    assert not tc.backends.cudnn.enabled and not tc.backends.cudnn.is_available()
    tc.backends.cudnn.enabled = True
    assert tc.backends.cudnn.enabled and not tc.backends.cudnn.is_available()
    assert tc.cuda.is_bf16_supported() == tc.cuda.is_available()


def test_parts_are_found_without_importing_them() -> None:
    assert tc.utils.data.DataLoader is tc.data.DataLoader
    assert tc.utils.checkpoint.checkpoint.__name__ == "checkpoint"
    assert tc.asarray([1.0], device="cpu").tolist() == [1.0]


def test_anomaly_detection_under_torchs_names() -> None:
    x = tc.tensor([0.0], device="cpu", requires_grad=True)
    with pytest.raises(tc.NonFiniteError, match=r"\[log\]"), tc.autograd.detect_anomaly():
        x.log().tolist()
    with tc.autograd.detect_anomaly(check_nan=False):
        assert x.log().tolist() == [-np.inf]
    with tc.autograd.set_detect_anomaly(True):
        with tc.autograd.set_detect_anomaly(False):
            assert x.log().tolist() == [-np.inf]
        with pytest.raises(tc.NonFiniteError):
            x.log().tolist()
    assert x.log().tolist() == [-np.inf]
    tc.autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(tc.NonFiniteError):
            x.log().tolist()
    finally:
        tc.autograd.set_detect_anomaly(False)
    assert x.log().tolist() == [-np.inf]


def cubes(t: Any, once_differentiable: Any) -> Any:
    class Cube(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * g * x**2

    return Cube


def test_once_differentiable() -> None:
    """The gradient is there, and asking for its gradient is an error, as in torch."""
    once = tc.autograd.function.once_differentiable
    x = tc.tensor([2.0], device="cpu", requires_grad=True)
    cubes(tc, once).apply(x).sum().backward()
    assert x.grad.tolist() == [12.0]
    (g,) = tc.autograd.grad(cubes(tc, once).apply(x * 1).sum(), x, create_graph=True)
    assert g.tolist() == [12.0]
    w = tc.tensor([1.0], device="cpu", requires_grad=True)
    (g,) = tc.autograd.grad((cubes(tc, once).apply(x) * w).sum(), x, create_graph=True)
    assert g.tolist() == [12.0] and g.requires_grad
    with pytest.raises(tc.GradientError, match="differentiable once only"):
        g.sum().backward()


def test_once_differentiable_refuses_where_torch_does() -> None:
    torch = pytest.importorskip("torch")
    function = cubes(torch, torch.autograd.function.once_differentiable)
    x = torch.tensor([2.0], requires_grad=True)
    w = torch.tensor([1.0], requires_grad=True)
    (g,) = torch.autograd.grad((function.apply(x) * w).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_permission_for_less_precise_products() -> None:
    """The word is kept and read back under each of its names."""
    assert tc.get_float32_matmul_precision() == "highest"
    try:
        tc.set_float32_matmul_precision("high")
        assert tc.backends.cuda.matmul.allow_tf32
        tc.backends.cuda.matmul.allow_tf32 = False
        assert tc.get_float32_matmul_precision() == "highest"
        assert tc.backends.cudnn.allow_tf32
        tc.backends.cudnn.allow_tf32 = False
        assert not tc.backends.cudnn.allow_tf32 and not settings.cudnn_tf32
        with pytest.raises(tc.ArgumentError, match="highest, high, medium"):
            tc.set_float32_matmul_precision("low")
    finally:
        tc.set_float32_matmul_precision("highest")
        tc.backends.cudnn.allow_tf32 = True

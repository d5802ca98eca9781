"""Results, dtypes, gradients and refusals at the edges, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

Case = Callable[[Any], Any]


def outcome(case: Case, lib: Any) -> tuple[Any, ...]:
    result = case(lib)
    parts = result if isinstance(result, tuple) else (result,)
    return tuple((tuple(x.shape), str(x.dtype).rpartition(".")[2], x.tolist()) for x in parts)


def slope(lib: Any, loss: Callable[[Any], Any], values: Any, **options: Any) -> Any:
    """The gradient of a loss."""
    x = lib.tensor(values, requires_grad=True, **options)
    loss(x).backward()
    return x.grad


RIGHT: dict[str, Case] = {
    "means over no areas": lambda lib: lib.nn.functional.interpolate(
        lib.ones(1, 2, 1, 3), scale_factor=0.5, mode="area"
    ),
    "no pool": lambda lib: lib.nn.functional.adaptive_max_pool2d(lib.ones(1, 2, 3, 3), (0, 2)),
    "indices of no pool": lambda lib: lib.nn.functional.adaptive_max_pool2d(
        lib.ones(1, 2, 3, 3), (2, 0), return_indices=True
    ),
    "a byte mask": lambda lib: lib.arange(4)[lib.tensor([1, 0, 2, 1], dtype=lib.uint8)],
    "a 0-d byte": lambda lib: lib.tensor(3)[lib.tensor(2, dtype=lib.uint8)],
    "a 0-d int8": lambda lib: lib.arange(4)[lib.tensor(2, dtype=lib.int8)],
    "hstack of 0-d": lambda lib: lib.hstack([lib.tensor(1.0, dtype=lib.float64), lib.ones(2)]),
    "clamp by 0-d and others": lambda lib: lib.clamp(
        lib.arange(3), lib.tensor(0.5, dtype=lib.float64), lib.tensor([1.5, 1.5, 1.5])
    ),
    "clamp by two 0-d": lambda lib: lib.clamp(
        lib.arange(3), lib.tensor(0.5).half(), lib.tensor(1.5, dtype=lib.float64)
    ),
    "einsum of bools": lambda lib: lib.einsum(
        "i,j->ij", lib.tensor([True, False]), lib.tensor([True, True])
    ),
    "einsum sums integers": lambda lib: lib.einsum("ij->j", lib.ones(3, 2, dtype=lib.int8) * 100),
    "fold of bools": lambda lib: lib.nn.functional.fold(
        lib.ones(1, 4, 4, dtype=lib.bool), (3, 3), 2
    ),
    "hinge of integers": lambda lib: lib.nn.functional.hinge_embedding_loss(
        lib.tensor([3, -2]), lib.tensor([1, -1]), margin=1.5, reduction="sum"
    ),
    "the cosine of nothing": lambda lib: slope(
        lib,
        lambda x: lib.nn.functional.cosine_embedding_loss(
            x, lib.ones(2, 3), lib.tensor([1.0, -1.0])
        ),
        [[0.0] * 3] * 2,
    ),
    "a cosine of the margin": lambda lib: slope(
        lib,
        lambda x: lib.nn.functional.cosine_embedding_loss(
            x, lib.tensor([[0.0, 1.0]]), -lib.ones(1)
        ),
        [[1.0, 0.0]],
    ),
    "equal medians": lambda lib: slope(lib, lambda x: x.median(), [1.0, 3.0, 5.0, 3.0, 3.0]),
    "infinite medians": lambda lib: slope(lib, lib.nanmedian, [-float("inf")] * 2 + [1.0]),
    "a history without elements": lambda lib: (
        lib.cat([lib.zeros(0, requires_grad=True), lib.ones(2)]).requires_grad * lib.ones(1)
    ),
    "half divided by a number": lambda lib: tuple(
        quotient(lib.tensor([3.0, 7.0, -3.0, 101.5], dtype=dtype))
        for dtype in (lib.float16, lib.bfloat16)
        for quotient in (
            lambda x: x // 0.1,
            lambda x: x // 0.7,
            lambda x: x.div(0.1, rounding_mode="trunc"),
            lambda x: 5.3 // x,
        )
    ),
    "half divided by others": lambda lib: tuple(
        lib.div((lib.ones(2) * 6.5).to(a), lib.tensor([0.7, 0.45]).to(b), rounding_mode=mode)
        for a, b in (
            (lib.float16, lib.float32),
            (lib.float16, lib.bfloat16),
            (lib.float64, lib.float16),
            (lib.int32, lib.float16),
            (lib.float16, lib.float16),
        )
        for mode in ("floor", "trunc")
    ),
    "the median of no integers": lambda lib: tuple(
        lib.zeros(0, dtype=dtype).median() for dtype in (lib.bool, lib.int8, lib.int16, lib.int64)
    ),
    "numpy by force": lambda lib: lib.from_numpy(
        lib.ones(2, requires_grad=True).numpy(force=True) + 1
    ),
}

REFUSED: dict[str, Case] = {
    "a negative size": lambda lib: lib.nn.functional.conv_transpose1d(
        lib.ones(1, 2, 4), lib.ones(2, 1, 1), padding=3
    ),
    "quantile of nothing": lambda lib: lib.quantile(lib.ones(2, 0), 0.5, dim=0),
    "mode of empty rows": lambda lib: lib.mode(lib.ones(0, 0), 0),
    "median of empty rows": lambda lib: lib.median(lib.ones(0, 0), 1),
    "masks that do not fit": lambda lib: lib.ones(2, 2).masked_scatter(
        lib.ones(3, 2) > 0, lib.ones(7, 4)
    ),
    "systems that do not fit": lambda lib: lib.linalg.solve(lib.ones(2, 2, 2), lib.ones(3, 2, 1)),
    "distances of integers": lambda lib: lib.cdist(*[lib.ones(2, 3, dtype=lib.int8)] * 2),
    "distances of two dtypes": lambda lib: lib.cdist(lib.ones(2, 3), lib.ones(2, 3).double()),
    "margins of integers": lambda lib: lib.nn.functional.soft_margin_loss(
        lib.tensor([1]), lib.tensor([1])
    ),
    "quotients of integers": lambda lib: lib.addcdiv(*[lib.ones(2, dtype=lib.int32)] * 3),
    "slopes of another dtype": lambda lib: lib.nn.functional.prelu(
        lib.ones(2), lib.ones(1).double()
    ),
    "positions of int8": lambda lib: lib.arange(4)[lib.tensor([1], dtype=lib.int8)],
    "a negative byte": lambda lib: lib.nn.functional.pad(
        lib.ones(2, dtype=lib.uint8), (1, 1), value=-1
    ),
}


# torch warns of a byte mask.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_as_pytorch(name: str) -> None:
    with tc.device("cpu"):
        assert outcome(RIGHT[name], tc) == outcome(RIGHT[name], torch)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_by_pytorch(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        REFUSED[name](torch)
    with tc.device("cpu"), pytest.raises(tc.TgcError, match="expect:"):
        REFUSED[name](tc)


def test_a_transposed_convolution_may_have_no_output() -> None:
    """Some of PyTorch's kernels give the empty result, others refuse it."""
    x = tc.ones(1, 2, 2, 5, requires_grad=True, device="cpu")
    w = tc.ones(2, 2, 1, 2, device="cpu")
    y = tc.nn.functional.conv_transpose2d(x, w, tc.ones(2, device="cpu"), padding=1, dilation=2)
    assert tuple(y.shape) == (1, 2, 0, 5)
    y.sum().backward()
    assert x.grad is not None
    assert not x.grad.any()

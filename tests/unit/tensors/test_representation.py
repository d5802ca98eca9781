"""repr: the layout of PyTorch, and no work for what is not shown."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.tensors import representation

NAN, INF = float("nan"), float("inf")
SPREAD = np.random.default_rng(0).standard_normal

VALUES: list[Any] = [
    3, 2.5, 3.0, True, NAN, -INF, 0.0, 1e-6, 123456789.0,
    [1, 2, 3], [1.0, 2.5], [1.0, 2.0, 3.0], [True, False], [[1, -200], [30, 4]],
    [-1.0, 10.5], [0.0], [0.0, -0.0], [0.1, 0.25],
    [1e-5, 1.0], [1e10, 1.0], [123456.0, 1.0], [1e5, 2e5], [1000.0, 0.001], [99999.0, 1.0],
    [100000.5], [1e8], [12345678.0], [1.5, 1e8], [0.0001, 1.0], [1e-5, 2e-5], [1e-45],
    [NAN, 1.0], [INF, -INF, 1.5], [NAN], [INF, 1.0], [NAN, INF], [0.0, NAN],
    [5, 5000000000], [[0.5], [1000.25]],
    np.arange(8).reshape(2, 2, 2), np.arange(8.0).reshape(2, 2, 2), np.arange(30.0), np.arange(120),
    np.zeros((2, 3, 1, 2)), np.zeros((5, 5, 5, 5)), SPREAD((3, 30)), SPREAD((2, 3, 4)),
    np.zeros(0), np.ones((1, 1, 1)), np.array([[True], [False]]),
]  # fmt: skip


def both(values: Any, dtype: str | None = None) -> tuple[Any, Any]:
    """The same values as Tensors of both libraries."""
    torch = pytest.importorskip("torch")
    theirs = torch.tensor(values if not isinstance(values, np.ndarray) else values.tolist())
    if isinstance(values, np.ndarray):
        theirs = theirs.reshape(values.shape)
    if dtype is not None:
        theirs = theirs.to(getattr(torch, dtype))
    name = str(theirs.dtype).removeprefix("torch.")
    array = theirs.float().numpy() if name == "bfloat16" else theirs.numpy()
    return tc.tensor(array, dtype=name, device="cpu"), theirs


@pytest.mark.parametrize("values", VALUES, ids=lambda values: re.sub(r"\s+", " ", str(values))[:30])
def test_values_as_torch_prints_them(values: Any) -> None:
    ours, theirs = both(values)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int32", "int16", "int8", "uint8"]
)
def test_unusual_dtypes_are_named(dtype: str) -> None:
    for values in ([1.0, 2.5, 100.0], [0.0]):
        ours, theirs = both(values, dtype)
        assert repr(ours).replace("tinygrad_cuda.", "torch.") == repr(theirs)


@pytest.mark.parametrize("shape", [(1001,), (2000,), (40, 50), (30, 30, 30), (2, 600), (600, 2)])
def test_large_tensors_show_edges_and_their_shape(shape: tuple[int, ...]) -> None:
    """The numbers stand as torch prints them; the shape is ours, since it can no longer be seen."""
    for values in (np.arange(np.prod(shape)), SPREAD(np.prod(shape)), np.zeros(np.prod(shape))):
        ours, theirs = both(values.reshape(shape))
        expected = repr(theirs)[:-1]
        text = repr(ours)
        assert text.startswith(expected)
        assert re.sub(r"\s+", " ", text[len(expected) :]) == f", shape={shape})"


def test_requires_grad_and_where_it_came_from() -> None:
    x = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    assert repr(x) == "tensor([1., 2.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 4.], grad_fn=<mul>)"
    assert repr(x.detach()) == "tensor([1., 2.])"
    with tc.no_grad():
        assert repr(x * 2) == "tensor([2., 4.])"


def test_empty_tensors_show_their_shape() -> None:
    assert repr(tc.zeros(0, device="cpu")) == "tensor([])"
    assert repr(tc.zeros(0, 3, device="cpu")) == "tensor([], shape=(0, 3))"
    text = repr(tc.zeros(2, 0, dtype=tc.int64, device="cpu"))
    assert text == "tensor([], shape=(2, 0), dtype=tinygrad_cuda.int64)"


def test_other_devices_are_named() -> None:
    pytest.importorskip("torch")
    try:
        x = tc.tensor(np.arange(2000), device="emu")
    except tc.DeviceError as error:
        pytest.skip(str(error))
    on_cpu = repr(tc.tensor(np.arange(2000), device="cpu"))
    assert repr(x) == on_cpu[:-1] + ", device='emu')"
    assert repr(x[:3]) == "tensor([0, 1, 2], device='emu')"


def test_notes_break_a_line_that_is_full() -> None:
    x = tc.tensor(np.linspace(1, 2, 8), device="cpu", requires_grad=True)
    assert repr(x).splitlines()[-1] == "       dtype=tinygrad_cuda.float64, requires_grad=True)"


def test_views_and_pending_values_print() -> None:
    x = tc.arange(6, device="cpu").reshape(2, 3)
    assert repr(x.T[1:, 0]) == "tensor([1, 2])"
    assert repr(x + 1) == "tensor([[1, 2, 3],\n        [4, 5, 6]])"
    assert f"{tc.tensor(2.0, device='cpu'):.3f}" == "2.000"


def test_only_edges_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1e8 elements 6 are formatted, of 1e7 in memory nothing is copied."""
    seen: list[int] = []
    formatter = representation._formatter

    def counted(array: Any, dtype: Any) -> Any:
        seen.append(array.size)
        return formatter(array, dtype)

    monkeypatch.setattr(representation, "_formatter", counted)
    repr(tc.zeros(1, device="cpu").expand(10**8))
    cube = tc.tensor(np.zeros((1000, 100, 100), np.float32), device="cpu")
    rows = tc.tensor(np.zeros((2, 5 * 10**6), np.float32), device="cpu")
    tracemalloc.start()
    try:
        repr(cube)
        repr(rows)
        repr(cube.permute(2, 0, 1)[1:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == [6, 6**3, 12, 6**3]
    assert peak < 2**20


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("default", ["float32", "float64", "float16"])
def test_the_default_dtype_is_not_said(default: str) -> None:
    """Nor its complex dtype, int64 and bool; of nothing every other one is."""
    torch = pytest.importorskip("torch")
    shown: dict[Any, list[str]] = {torch: [], tc: []}
    for lib, texts in shown.items():
        lib.set_default_dtype(getattr(lib, default))
        try:
            for dtype in ("float32", "float64", "float16", "complex64", "complex128", "int64"):
                kind = getattr(lib, dtype)
                texts += [repr(lib.ones(2).to(kind)), repr(lib.zeros(0).to(kind))]
            texts.append(repr(lib.ones(2)))
        finally:
            lib.set_default_dtype(lib.float32)
    assert shown[tc] == [text.replace("torch.", "tinygrad_cuda.") for text in shown[torch]]

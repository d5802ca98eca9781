"""tc.compile against a plain run: what arguments and results are, and hold, besides values."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import CompileError, ShapeError

pytestmark = pytest.mark.usefixtures("device")


def base(number: int) -> Any:
    """Another (3, 4) Tensor for each number."""
    return tc.arange(12).float().reshape(3, 4).clone() + 100 * number


def shown(value: Any) -> Any:
    """A structure with lists for Tensors."""
    if isinstance(value, tc.Tensor):
        return value.tolist()
    return [shown(part) for part in value] if isinstance(value, tuple | list) else value


# Places in memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0 + x.storage_offset(),
        lambda x: x * 0 + x[2:].storage_offset(),
        lambda x: x * 0 + x.data_ptr(),
        lambda x: tc.as_strided(x, (2,), (1,), 0),
        lambda x: tc.as_strided_scatter(x, tc.zeros(2), (2,), (1,), 0),
    ],
)
def test_where_an_argument_begins_is_refused(function: Callable[[Any], Any]) -> None:
    """From the first call on: a later view begins elsewhere and has the same program."""
    compiled = tc.compile(function)
    for number in range(3):
        with pytest.raises(CompileError, match="a place in memory is asked for") as caught:
            compiled(base(0)[number])
        assert "test_compile_arguments.py" in str(caught.value)


def test_strides_behind_a_view_with_gaps_are_refused() -> None:
    compiled = tc.compile(lambda x: tc.as_strided(x, (2, 2), (1, 2)))
    with pytest.raises(CompileError, match="the memory behind a view of shape \\(3, 2\\)"):
        compiled(base(0)[:, 1:3])
    for number in range(3):
        rows = base(number)[1:].T
        assert shown(compiled(rows)) == shown(tc.as_strided(rows, (2, 2), (1, 2)))


def test_where_a_view_made_inside_begins() -> None:
    compiled = tc.compile(lambda x: x * 0 + x[1:].storage_offset())
    assert [compiled(base(number)).max().item() for number in range(3)] == [4.0] * 3


# Repeated elements --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.zero_() + 1,
        lambda x: x.fill_(7),
        lambda x: x[1:].masked_fill_(x[1:] > 1, -1.0),
        lambda x: x * 2,
        lambda x: x[1],
    ],
)
def test_an_expanded_argument_is_filled(function: Callable[[Any], Any]) -> None:
    def program(function: Callable[..., Any]) -> list[Any]:
        calls = []
        for number in range(4):
            rows = base(number)
            x = rows[number % 3].expand(2, 4)
            result = function(x)
            calls.append([shown(result), shown(x), shown(rows)])
            result.zero_()
            calls.append(shown(rows))
        return calls

    assert program(tc.compile(function)) == program(function)


def test_other_writes_to_an_expanded_argument_are_errors() -> None:
    compiled = tc.compile(lambda x: x.add_(1))
    for function in (compiled, compiled.function, compiled):
        with pytest.raises(ShapeError, match="several elements of this view are one element"):
            function(tc.ones(4).expand(3, 4))


# Python values ------------------------------------------------------------------------------------


def multiply(a: Any, b: Any) -> Any:
    return a * b


def test_a_partial_that_gets_another_state() -> None:
    product = functools.partial(multiply, 2)
    compiled = tc.compile(lambda x: product(x))
    calls = [compiled(tc.ones(1)).item() for _ in range(3)]
    product.__setstate__((multiply, (5,), {}, None))  # type: ignore[attr-defined]
    calls += [compiled(tc.ones(1)).item() for _ in range(3)]
    assert calls == [2.0] * 3 + [5.0] * 3


@pytest.mark.parametrize(
    "function", [lambda x: x * threading.active_count(), lambda x: x * len(threading.enumerate())]
)
def test_the_number_of_threads_is_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(CompileError, match="it calls threading"):
        tc.compile(function)(tc.ones(1))


def test_how_constants_are_printed() -> None:
    def length(x: Any) -> Any:
        return x * len(repr(tc.tensor([1 / 3])))

    compiled = tc.compile(length)
    calls, plain = [], []
    try:
        for precision in (2, 2, 8, 8, 8):
            tc.set_printoptions(precision=precision)
            calls.append(compiled(tc.ones(1)).item())
            plain.append(length(tc.ones(1)).item())
    finally:
        tc.set_printoptions(precision=4)
    assert calls == plain

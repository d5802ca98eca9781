"""tc.compile: views among the arguments, numbers drawn on the host, caught errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings

pytestmark = pytest.mark.usefixtures("device")

# A function, and its arguments in the call of a number.
Program = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


def weight(size: int = 4) -> Any:
    return tc.arange(size).float().clone() + 1


def the_viewed_is_written() -> Program:
    w = weight()

    def step(x: Any) -> Any:
        w.mul_(2)
        return x + 1

    return step, lambda k: (w[k % 2 : k % 2 + 1],)


def the_view_is_written() -> Program:
    w = weight()
    return lambda x: w.sum() + x.add_(1), lambda k: (w[:2],)


def views_that_overlap() -> Program:
    w = weight()

    def step(a: Any, b: Any) -> Any:
        a.add_(b)
        return a * 1, b * 1

    return step, lambda k: (w[:2], w[1:3])


def a_view_and_the_viewed() -> Program:
    w = weight()

    def step(a: Any, b: Any) -> Any:
        b.mul_(2)
        return a * 1

    return step, lambda k: (w[:2], w)


def views_of_two_tensors() -> Program:
    """The function writes one of them."""
    w, u = weight(), weight()

    def step(x: Any) -> Any:
        y = x * 3
        w[1:].add_(y.sum())
        return x + y

    return step, lambda k: ((w, u)[k % 2][:2],)


def a_view_of_a_view() -> Program:
    w = weight(6)

    def step(x: Any) -> Any:
        x[0].mul_(2)
        return w * 1

    return step, lambda k: (w.reshape(2, 3).t()[1:],)


def a_view_from_the_closure() -> Program:
    """It was computed before the first call."""
    w = weight()
    v = w[1:]
    (v + 1).tolist()
    v.tolist()

    def step(x: Any) -> Any:
        y = v * x
        w.add_(1)
        return y

    return step, lambda k: (tc.ones(1),)


def strides() -> Program:
    """They are part of the signature."""
    w = tc.arange(4).float().clone().reshape(2, 2)
    kinds = [w.t(), w, w.t().contiguous()]
    return lambda x: x * (2 if x.is_contiguous() else 3), lambda k: (kinds[k % 3],)


@pytest.mark.parametrize(
    "make",
    [
        the_viewed_is_written, the_view_is_written, views_that_overlap, a_view_and_the_viewed,
        views_of_two_tensors, a_view_of_a_view, a_view_from_the_closure, strides,
    ],
)  # fmt: skip
def test_views(make: Callable[[], Program]) -> None:
    """Results and arguments after each call are those of the plain function."""

    def run(compiled: bool) -> list[Any]:
        function, arguments = make()
        call = tc.compile(function) if compiled else function
        found = []
        for number in range(7):
            given = arguments(number)
            result = call(*given)
            results = result if isinstance(result, tuple) else (result,)
            found.append([x.tolist() for x in (*results, *given)])
        return found

    assert run(True) == run(False)


def test_a_view_that_is_returned() -> None:
    """It is the argument itself: a write to it reaches what it views."""
    w = weight()
    same, alone = tc.compile(lambda x: (x, x * 2)), tc.compile(lambda x: x)
    for number in range(4):
        view = w[number : number + 1]
        assert same(view)[0] is view and alone(view) is view


def test_writes_to_a_view_need_few_traces() -> None:
    w, calls = weight(), []

    def step(x: Any) -> Any:
        calls.append(None)
        return x.add_(1).sum()

    compiled = tc.compile(step)
    assert [compiled(w[:2]).item() for _ in range(6)] == [5.0 + 2 * n for n in range(6)]
    # One that finds the write, and one for the views as they are.
    assert settings.slow or len(calls) == 2


def drawn(draw: Callable[[], Any], compiled: bool) -> list[Any]:
    tc.manual_seed(3)
    call = tc.compile(draw) if compiled else draw
    found: list[Any] = []
    for number in range(6):
        if number == 4:
            tc.manual_seed(9)
        found += [x.tolist() for x in call()]
        found += [tc.rand(1).item()] * (number % 2)
    return [*found, tc.get_rng_state().tolist()]


def test_numbers_that_numpy_draws() -> None:
    """Each replay draws the next ones of the stream: permutations and Poisson numbers."""
    data, rates = weight(5), tc.full((3,), 4.0)
    generator = tc.Generator()

    def draw() -> Any:
        order = tc.randperm(5)
        generator.manual_seed(7)
        own = tc.randperm(3, generator=generator, dtype=tc.int32)
        return data[order], order, tc.randperm(5).add_(1), tc.rand(2), own

    assert drawn(draw, True) == drawn(draw, False)
    # Rates that are made inside are a constant; others are looked at, which is refused.
    assert drawn(lambda: (tc.poisson(tc.full((3,), 4.0)),), True) == drawn(
        lambda: (tc.poisson(tc.full((3,), 4.0)),), False
    )
    with pytest.raises(tc.CompileError, match="looked at"):
        tc.compile(lambda: tc.poisson(rates))()


def test_a_look_at_a_permutation_raises() -> None:
    with pytest.raises(tc.CompileError, match="looked at"):
        tc.compile(lambda x: x[tc.randperm(3).tolist()])(weight(3))


def test_a_look_that_is_caught_raises() -> None:
    """Otherwise the trace would be that of the handler, which a plain call does not run."""

    def step(x: Any) -> Any:
        try:
            return x * x.item()
        except Exception:
            return x

    compiled = tc.compile(step)
    for _ in range(2):
        with pytest.raises(tc.CompileError, match=r"looked at(.|\n)*x \* x\.item\(\)"):
            compiled(tc.full((1,), 3.0))

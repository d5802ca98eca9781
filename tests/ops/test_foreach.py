"""`_foreach_*` beside torch's: values, in-place writes, gradients, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensors.foreach import NAMES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("on_cpu")

SHAPES = ((3, 4), (5,), (), (0, 2))
GIVEN = tuple(
    np.array(np.random.default_rng(n).uniform(0.1, 0.9, shape)) for n, shape in enumerate(SHAPES)
)
OTHERS = tuple(np.array(x + 0.5) for x in GIVEN)
NUMBERS = (0.5, 2, -1.5, 3.0)
# What stands behind the first list; arrays stand for Tensors.
ONE = [(0.5,), (NUMBERS,), (OTHERS,)]
OPERANDS: dict[str, list[tuple[Any, ...]]] = {
    **dict.fromkeys(("maximum", "minimum", "clamp_min", "clamp_max", "pow", "sub"), ONE),
    **{name: [*ONE, (np.array(1.5),)] for name in ("add", "mul", "div")},
    "lerp": [(OTHERS, 0.3), (OTHERS, GIVEN), (OTHERS, NUMBERS)],
    "addcmul": [(OTHERS, GIVEN), (OTHERS, GIVEN, 0.5), (OTHERS, GIVEN, NUMBERS)],
    "addcdiv": [(OTHERS, GIVEN), (OTHERS, GIVEN, np.array([0.5, 2, -1.5, 3.0]))],
    "copy": [(OTHERS,)],
    "sqrt": [()],
    "norm": [(), (1,), (float("inf"),)],
}
CASES = [
    (name, operands)
    for name in NAMES
    if name not in ("max", "mm") and hasattr(torch, f"_foreach_{name}")  # 2.11 has fewer
    for operands in OPERANDS.get(name.rstrip("_"), [()])
]


def made(library: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return library.tensor(value)
    if isinstance(value, tuple):
        return [made(library, part) for part in value]
    return value


def called(library: Any, name: str, operands: Any, tensors: Any, **options: Any) -> Any:
    function = getattr(library, f"_foreach_{name}")
    return function(tensors, *(made(library, value) for value in operands), **options)


def check(found: Any, want: Any) -> None:
    assert len(found) == len(want)
    for one, other in zip(found, want):
        assert str(one.dtype).rpartition(".")[2] == str(other.dtype).rpartition(".")[2]
        np.testing.assert_allclose(one.detach().cpu().numpy(), other.detach().numpy(), 1e-12)


@pytest.mark.parametrize(("name", "operands"), CASES, ids=lambda value: str(value)[:30])
def test_values(name: str, operands: tuple[Any, ...]) -> None:
    """Of both forms; those with "_" return the list and write to its Tensors."""
    given = GIVEN if not (name == "norm" and operands == (float("inf"),)) else GIVEN[:3]
    results = []
    for library in (tc, torch):
        tensors = made(library, given)
        result = called(library, name, operands, tensors)
        assert type(result) is (list if name.endswith("_") else tuple)
        assert not name.endswith("_") or result is tensors
        results.append(result)
    check(*results)


@pytest.mark.parametrize("name", ["add", "mul", "lerp", "addcdiv", "sqrt", "norm", "maximum"])
def test_gradients(name: str) -> None:
    results = []
    for library in (tc, torch):
        leaves = [x.requires_grad_() for x in made(library, GIVEN[:3])]
        operands = OPERANDS[name][0 if name == "addcdiv" else -1]
        behind = [value[:3] if isinstance(value, tuple) else value for value in operands]
        total = sum(x.sum() for x in called(library, name, behind, leaves))
        total.backward()
        results.append([x.grad for x in leaves])
    check(*results)


def test_options_and_other_forms() -> None:
    """alpha, value, a dtype, a number to the power of each, products, the largest."""
    pairs = [
        [called(lib, "add", (OTHERS,), made(lib, GIVEN), alpha=2) for lib in (tc, torch)],
        [called(lib, "addcmul", (OTHERS, GIVEN), made(lib, GIVEN), value=3) for lib in (tc, torch)],
        [lib._foreach_pow(2.0, made(lib, GIVEN)) for lib in (tc, torch)],
        [lib._foreach_max(made(lib, GIVEN[:3])) for lib in (tc, torch)],
        [lib._foreach_norm(made(lib, GIVEN), 2, dtype=lib.float64) for lib in (tc, torch)],
    ]
    for found, want in pairs:
        check(found, want)


@pytest.mark.parametrize("given", [(), [], "ab", tc.ones(2), [1.0], [tc.ones(2), None]], ids=repr)
def test_no_lists_of_tensors(given: Any) -> None:
    with pytest.raises(ArgumentError, match="it takes a list of Tensors"):
        tc._foreach_add(given, 1)


def test_lists_of_other_lengths() -> None:
    """Nothing has been written."""
    x = [tc.ones(2), tc.ones(2)]
    with pytest.raises(ArgumentError, match="different lengths"):
        tc._foreach_add_(x, [tc.ones(2)])
    assert [one.tolist() for one in x] == [[1.0, 1.0]] * 2


def test_names_that_are_none() -> None:
    with pytest.raises(AttributeError):
        tc._foreach_nothing  # noqa: B018

"""Quick forms of float32 values: only where a half type's rounding loses their error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import Inputs, launches, softmax, spread, times

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering.codegen.expression import expression

HALF = dtypes.bfloat16


def _text(function: Callable[[Node], tuple[Node, ...]]) -> str:
    """The kernels of a function of half values that are widened first."""
    new = Inputs()
    x = ew.cast(new(300, 512, dtype=HALF), dtype=dtypes.float32)
    return "\n".join(launch.text for launch in launches(new.program(*function(x))))


def _narrow(x: Node) -> Node:
    return ew.cast(x, dtype=HALF)


def _loss(x: Node) -> Node:
    """The log of a row's powers, which another kernel sums: float32 values lie in memory."""
    top = spread(rd.max(x, axes=(1,)), x.shape)
    total = ew.log(rd.sum(ew.exp(ew.sub(x, top)), axes=(1,)))
    return rd.sum(total, axes=(0, 1))


def _power(x: Node) -> Node:
    return ew.exp(ew.sub(x, spread(rd.max(x, axes=(1,)), x.shape)))


@pytest.mark.parametrize(
    ("function", "power", "quotient"),
    [
        (lambda x: (_narrow(softmax(x, (1,))),), True, True),
        (lambda x: (_narrow(_loss(x)),), True, None),
        (lambda x: (softmax(x, (1,)),), False, False),
        (lambda x: (_narrow(softmax(x, (1,))), softmax(x, (1,))), False, False),
        # A sum with a power of 1 shows no error of the others; a float32 gradient does.
        (lambda x: (_loss(x),), True, None),
        (lambda x: (_loss(x), _narrow(_power(x))), True, None),
        (lambda x: (_loss(x), _power(x)), False, None),
        (lambda x: (_loss(ew.add(x, x)),), False, None),
        (lambda x: (rd.sum(_power(x), axes=(0,)),), False, None),
        # The difference cancels, and shows what the power has lost.
        (lambda x: (_narrow(ew.sub(ew.exp(x), common.full_like(x, 1))),), False, None),
        (lambda x: (_narrow(ew.exp(ew.sub(x, times(x, 0.5)))),), False, None),
        # A comparison and a rounding make another value of an error.
        (lambda x: (ew.gt(_power(x), common.full_like(x, 0.5)),), False, None),
        (lambda x: (_narrow(ew.floor(_power(x))),), False, None),
    ],
)
def test_a_float32_value_is_quick_where_only_its_rounding_is_seen(
    function: Callable[[Node], tuple[Node, ...]], power: bool, quotient: bool | None
) -> None:
    text = _text(function)
    assert "tgc_exp" in text
    assert ("tgc_exp_short(" in text) is power
    assert ("tgc_exp(" in text) is not power
    if quotient is not None:
        assert ("tgc_divide_short(" in text) is quotient
        assert ("tgc_divide(" in text) is not quotient


def test_a_cast_that_is_stored_rounds_once() -> None:
    """What lies in a vector for the store is the value before the cast, rounded in pairs."""
    text = _text(lambda x: (_narrow(softmax(x, (1,))),))
    cast = next(line for line in text.splitlines() if "tgc_cast<tgc_bfloat16>" in line)
    name = cast.split(" = ")[0].split()[-1]
    assert "tgc_rounded<tgc_bfloat16>" in text
    assert text.count(f"{name};") == 0


@pytest.mark.parametrize(
    ("dtype", "form"),
    [("float16", "tgc_exp_short"), ("bfloat16", "tgc_exp_bfloat16"), ("float32", "tgc_exp_short")],
)
def test_each_dtype_has_its_quick_form(dtype: str, form: str) -> None:
    """bfloat16 has its own, with subnormal results; float32 takes float16's where it may."""
    x = Inputs()(3, dtype=getattr(dtypes, dtype))
    assert expression(ew.exp(x), ["x"], short=True) == f"{form}(x)"


@pytest.mark.parametrize(("rounded", "quick"), [(True, True), (False, False)])
def test_a_sigmoid_behind_a_product_is_quick_where_only_its_rounding_is_seen(
    rounded: bool, quick: bool
) -> None:
    """In the epilogue of each tier: its error is that of any float32 operation."""
    for size in (64, 2048):  # by register tiles, by matrix units
        new = Inputs()
        x = new(size, size, dtype=HALF)
        made = ew.cast(contraction.matmul(x, new(size, size, dtype=HALF)), dtype=dtypes.float32)
        made = ew.mul(made, ew.sigmoid(made))
        (launch,) = launches(new.program(_narrow(made) if rounded else made))
        assert ("tgc_sigmoid_bfloat16(" in launch.text) == quick
        assert ("tgc_sigmoid(" in launch.text) != quick

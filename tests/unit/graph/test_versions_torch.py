"""`check_versions` over torch's own samples: what each function saves, by writing to all there is.

Each operand is written in place between forward and backward, where all operands require grad and
where one alone does, and each result; a gradient must be refused exactly where torch refuses it.
Apart from test_versions.py, since this file skips where torch's samples are not those of 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_torch_samples import NOT_LOOKED_AT, RANDOM, function_of
from torch_samples import collection, flat, full_name, samples, torch

import tinygrad_cuda as tc
from tinygrad_cuda.replay.switches import switches

pytestmark = pytest.mark.filterwarnings("ignore")

PREFIX = "nn.functional."
SAMPLES, LARGEST, RESULTS, OPERANDS = 40, 401, 3, 5
# Exactly these differ, each for a reason.
EXCEPTIONS: dict[str, str] = {
    "svd_lowrank": "torch saves what it makes of the factors; here they are results of their own",
    "pca_lowrank": "as svd_lowrank",
}
# Not compared: the programs are others.
OTHERS = (
    "nn.functional.linear_cross_entropy", "nn.functional.triplet_margin_with_distance_loss",
    "nn.functional.multi_head_attention_forward", "nn.functional.dropout", "nn.functional.rrelu",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "as_strided_scatter",
    "nn.functional.avg_pool2d", "slice", "masked_fill", "repeat", "unfold",
)  # fmt: skip
OPS = {
    full_name(op): op
    for op in collection.op_db
    if torch.float64 in op.dtypes
    and op.supports_autograd
    and (op.name.startswith(PREFIX) or not op.name.startswith(NOT_LOOKED_AT))
    and not op.name.startswith((*OTHERS, *RANDOM))
}


class Call(NamedTuple):
    """A sample: arguments, and the tensors among them."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    operands: list[Any]


class Case(NamedTuple):
    """Which operands require grad, which operand or result is written, and of which dtype."""

    gradual: tuple[int, ...]
    result: bool
    number: int
    half: bool


def function(name: str, op: Any) -> Callable[..., Any]:
    if not name.startswith(PREFIX):
        return function_of(name, op)
    found: Callable[..., Any] = getattr(tc.nn.functional, op.name.removeprefix(PREFIX))
    if op.name.startswith(f"{PREFIX}embedding"):
        # torch calls these through functions of its own.
        return lambda weight, rows, **options: found(rows, weight, **options)
    return found


def tensors_in(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, list | tuple | dict):
        for part in parts:
            yield from tensors_in(part)


def calls(op: Any) -> Iterator[Call]:
    """Of the first of its samples, of one in the middle and of the last."""
    found = list(samples(op, True, SAMPLES, LARGEST))
    for number in sorted({0, len(found) // 2, len(found) - 1} if found else ()):
        sample = found[number]
        args = (sample.input, *sample.args)
        operands = list({id(x): x for x in tensors_in((args, sample.kwargs))}.values())
        if len(operands) <= OPERANDS and any(x.requires_grad for x in operands):
            yield Call(args, sample.kwargs, operands)


def cases(call: Call, halves: bool) -> Iterator[Case]:
    gradual = [k for k, x in enumerate(call.operands) if x.requires_grad]
    for half in (False, True) if halves else (False,):
        for chosen in {tuple(gradual), *((k,) for k in gradual)}:
            for number in range(len(call.operands)):
                yield Case(chosen, False, number, half)
        for number in range(RESULTS):
            yield Case(tuple(gradual), True, number, half)


def handed(library: Any, value: Any, made: dict[int, Any]) -> Any:
    """The arguments with other tensors, in the words of a library."""
    if isinstance(value, torch.Tensor):
        return made[id(value)]
    if isinstance(value, dict):
        given = {k: v for k, v in value.items() if not isinstance(v, torch.memory_format)}
        return {key: handed(library, part, made) for key, part in given.items()}
    if isinstance(value, list | tuple):
        parts = [handed(library, part, made) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if library is tc and isinstance(value, torch.dtype):
        return getattr(tc, str(value).removeprefix("torch."))
    return value


def operands_of(library: Any, call: Call, case: Case) -> list[Any]:
    """The operands as results, so that they may be written."""
    found = []
    for number, operand in enumerate(call.operands):
        values = np.array(operand.detach().numpy())
        one = tc.tensor(values, device="cpu") if library is tc else torch.tensor(values)
        one = one.bfloat16() if case.half and one.is_floating_point() else one
        found.append(one.requires_grad_().clone() if number in case.gradual else one)
    return found


def refused(
    library: Any, function: Callable[..., Any], call: Call, case: Case, order: str
) -> bool | None:
    """Whether the gradient is; None where there is none, or nothing to write.

    Args:
        order: "first"; "second", of the gradient of the square, or "constant", of that of the sum.
    """
    operands = operands_of(library, call, case)
    made = {id(x): y for x, y in zip(call.operands, operands)}
    library.manual_seed(0)
    result = function(*handed(library, call.args, made), **handed(library, call.options, made))
    results = [x for x in flat(result) if isinstance(x, library.Tensor)]
    gradual = [x for x in results if x.requires_grad]
    written = results if case.result else operands
    if not gradual or case.number >= len(written) or not written[case.number].numel():
        return None
    total = sum((x * x if order == "second" else x).sum() for x in gradual)
    if order != "first":
        leaves = [operands[number] for number in case.gradual]
        found = library.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        total = sum(x.sum() for x in found if x is not None and x.requires_grad)
        if not isinstance(total, library.Tensor):
            return False
    detached = written[case.number].detach()
    detached.copy_(detached.clone())
    try:
        total.backward()
    except (RuntimeError, tc.GradientError) as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return True
    return False


def expected(op: Any, call: Call, case: Case, order: str) -> bool | None:
    """torch's answer; None also where it cannot say."""
    try:
        return refused(torch, op.op, call, case, order)
    except Exception:  # no derivative, no write to what is expanded
        return None


def differences(name: str, op: Any, order: str = "first") -> list[str]:
    found = []
    with tc.autograd.check_versions(True):
        for number, call in enumerate(calls(op)):
            for case in cases(call, halves=number == 1 and order == "first"):
                theirs = expected(op, call, case, order)
                if theirs is None:
                    continue
                try:
                    ours = refused(tc, function(name, op), call, case, order)
                except (tc.DTypeError, tc.ShapeError):
                    break  # a kernel for halves, or the broadcasting of a loss: refused here
                if ours != theirs:
                    found.append(f"{case}: ours {ours}, torch {theirs}")
            if order != "first":
                break
    return found


@pytest.mark.parametrize("name", OPS)
def test_a_gradient_is_refused_where_torch_refuses_it(name: str) -> None:
    found = differences(name, OPS[name])
    assert bool(found) == (name in EXCEPTIONS), found


# The gradient of these is composed of other functions than torch's; for a constant cotangent they
# save more or less. Exactly these differ.
COMPOSED = frozenset((
    "addcdiv", "atan2", "index_reduce.prod", "ldexp", "linalg.det", "linalg.lstsq",
    "linalg.lstsq.grad_oriented", "nn.functional.instance_norm",
    "nn.functional.multilabel_soft_margin_loss", "nn.functional.poisson_nll_loss", "norm.inf",
    "scatter_reduce.prod", "special.xlog1py", "xlogy",
))  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_a_gradient_of_a_gradient_is_refused_where_torch_refuses_it(name: str) -> None:
    # The determinant of one number is the number itself in torch.
    assert bool(differences(name, OPS[name], "second")) == (name == "linalg.det")
    assert bool(differences(name, OPS[name], "constant")) == (name in COMPOSED)


@pytest.mark.parametrize("name", ["layer_norm", "binary_cross_entropy_with_logits"])
def test_a_composed_function_is_one_operation_without_a_template_too(name: str) -> None:
    with switches.only():
        assert not differences(PREFIX + name, OPS[PREFIX + name], "constant")


# Shapes of two operands; a contracted size of 1 has torch sum the first one before the product.
CONTRACTED = (
    ((1,), (1,)), ((3,), (3,)), ((2, 1), (1,)), ((1,), (2, 1)), ((2, 1), (3, 1)), ((1, 1), (1,)),
    ((2, 3), (3,)), ((3,), (2, 3)), ((1, 3), (1, 3)), ((0,), (0,)), ((2, 2, 1), (3, 1)),
)  # fmt: skip


@pytest.mark.parametrize("name", ["inner", "tensordot"])
@pytest.mark.parametrize(("a", "b"), CONTRACTED)
def test_contracted_sizes(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Which operands of a contraction over the last dimensions may be written afterwards."""
    operands = [torch.zeros(a), torch.zeros(b)]
    args = (*operands, ([-1], [-1])) if name == "tensordot" else tuple(operands)
    call = Call(args, {}, operands)
    with tc.autograd.check_versions(True):
        for gradual in ((0,), (1,), (0, 1)):
            for number in (0, 1):
                case = Case(gradual, False, number, False)
                theirs = refused(torch, getattr(torch, name), call, case, "first")
                assert refused(tc, getattr(tc, name), call, case, "first") == theirs, case

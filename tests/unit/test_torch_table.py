"""The table of programs against torch: values, dtypes, shapes and gradients, in both precisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch_table as table
from torch_table import INPUTS, Row

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*in beta and the API may change"),
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter"),
]

# Relative to the value and to the largest one: (values, gradients).
TOLERANCES = {"float32": (1e-5, 1e-4), "float64": (1e-10, 1e-8)}


def tensors(library: Any, row: Row, dtype: str, grad: bool) -> list[Any]:
    found = []
    for name in row.inputs:
        array = INPUTS[name]
        floating = array.dtype.kind == "f"
        array = array.astype(dtype) if floating else array
        tensor = tc.tensor(array, device="cpu") if library is tc else torch.tensor(array)
        found.append(tensor.requires_grad_() if grad and floating else tensor)
    return found


def outputs(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [tensor for part in result for tensor in outputs(part)]
    return [result]


def weighted(library: Any, results: list[Any]) -> Any:
    """A fixed weighted sum of what can be differentiated; None if nothing can."""
    total: Any = None
    for number, result in enumerate(results):
        if result.is_floating_point() and result.requires_grad:
            weights = np.random.default_rng([number, *result.shape]).uniform(
                -1, 1, tuple(result.shape)
            )
            weights = np.asarray(weights).astype(str(result.dtype).rpartition(".")[2])
            factor = tc.tensor(weights, device="cpu") if library is tc else torch.tensor(weights)
            part = (result * factor).sum()
            total = part if total is None else total + part
    return total


def close(found: Any, expected: Any, tolerance: float, what: str) -> None:
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(b)
    scale = np.max(np.abs(b[finite]), initial=0)
    np.testing.assert_allclose(
        a[finite], b[finite], rtol=tolerance, atol=tolerance * scale, err_msg=what
    )
    np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=what)


def alike(ours: list[Any], theirs: list[Any], tolerance: float) -> None:
    assert len(ours) == len(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs)):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert tuple(a.shape) == tuple(b.shape)
        assert a.dtype.name == str(b.dtype).removeprefix("torch.")
        exact = not b.is_floating_point()
        close(a.detach().numpy(), b.detach().numpy(), 0 if exact else tolerance, f"result {number}")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", table.GRADUAL)
def test_values_and_gradients(name: str, dtype: str) -> None:
    """Shapes and dtypes exactly, values and the gradients of all floating inputs to tolerance."""
    row = table.GRADUAL[name]
    inputs, reference = (tensors(library, row, dtype, True) for library in (tc, torch))
    ours = outputs(row.program(tc, *inputs))
    theirs = outputs(row.program(torch, *reference))
    values, gradients = TOLERANCES[dtype]
    alike(ours, theirs, values)
    total, expected = weighted(tc, ours), weighted(torch, theirs)
    assert (total is None) == (expected is None)
    if total is None:
        return
    total.backward()
    try:
        expected.backward()
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
        pytest.skip(f"torch {torch.__version__}: {error}")  # aminmax, before torch 2.13
    for a, b in zip(inputs, reference):
        if b.requires_grad:
            none = np.zeros(tuple(b.shape))
            close(
                none if a.grad is None else a.grad.numpy(),
                none if b.grad is None else b.grad.numpy(force=True),
                gradients, "gradient",
            )  # fmt: skip


@pytest.mark.parametrize("name", table.EXACT)
def test_special_values_integers_and_nothing(name: str) -> None:
    """NaN, infinities, signed zeros, integers, bools, and tensors without elements."""
    row = table.EXACT[name]
    ours, theirs = (
        outputs(row.program(library, *tensors(library, row, "float32", False)))
        for library in (tc, torch)
    )
    alike(ours, theirs, 1e-5)


@pytest.mark.parametrize("name", table.IN_PLACE)
def test_forms_in_place(name: str) -> None:
    """The first tensor and the result of the call are torch's."""
    row = table.IN_PLACE[name]
    found = []
    for library in (tc, torch):
        inputs = tensors(library, row, "float64", False)
        result = row.program(library, *inputs)
        found.append([result, inputs[0]])
    alike(found[0], found[1], 1e-10)


SECOND = ("inv", "solve", "det", "cholesky", "qr", "svdvals", "eigvalsh", "pinv", "matrix_exp",
          "logaddexp", "xlogy", "erfinv", "digamma", "hypot", "logcumsumexp", "quantile",
          "scatter_reduce prod True", "median even", "masked_scatter")  # fmt: skip


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    """The gradient of the squared gradient."""
    row = table.GRADUAL[name]
    found = []
    for library in (tc, torch):
        inputs = tensors(library, row, "float64", True)
        total = weighted(library, outputs(row.program(library, *inputs)))
        leaves = [x for x in inputs if x.requires_grad]
        first = library.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        square = sum((g * g * g).sum() for g in first if g is not None)
        if square.requires_grad:
            square.backward()
        found.append([x.grad for x in leaves])
    for a, b in zip(*found):
        none = np.zeros(1)
        close(none if a is None else a.numpy(), none if b is None else b.numpy(), 1e-7, "second")

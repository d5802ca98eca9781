"""jvp, vjp, jacobian, hessian, hvp and vhp against torch, and differentiated once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.autograd import functional
from tinygrad_cuda.engine.plan import cache

pytestmark = pytest.mark.usefixtures("on_cpu")
rng = np.random.default_rng(1)
A, B = rng.standard_normal((2, 3)), rng.standard_normal((3,))


# Functions of one or two inputs; the same text serves both libraries.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "one to one": (lambda a: (a * a).exp(), 1),
    "one to two": (lambda a: (a.sum(1), a.sin() * 2), 1),
    "two to one": (lambda a, b: (a @ b).tanh(), 2),
    "two to two": (lambda a, b: (a * b, b.exp().sum()), 2),
    "linear": (lambda a: a * 3, 1),
    "unused input": (lambda a, b: a.cos(), 2),
    "constant": (lambda a: (a.detach() * 2, a**3), 1),
    "matrix output": (lambda b: b.reshape(3, 1) * b**2, -1),
}
SCALARS: dict[str, tuple[Callable[..., Any], int]] = {
    "one": (lambda a: (a**3).sum(), 1),
    "two": (lambda a, b: ((a * b).sin() * a).sum(), 2),
    "separate": (lambda a, b: (a**2).sum() + (b**4).sum(), 2),
    "linear": (lambda a, b: (a * 2).sum() + (b**2).sum(), 2),
    "one element": (lambda b: (b.exp() * b[0]).sum().reshape(1), -1),
}


def point(lib: Any, kind: int) -> Any:
    a, b = lib.tensor(A), lib.tensor(B)
    return {1: a, 2: (a, b), -1: b}[kind]


def like(lib: Any, value: Any) -> Any:
    """A fixed vector of the shapes of a Tensor or a tuple."""
    values = np.random.default_rng(9)
    parts = value if isinstance(value, tuple) else (value,)
    found = tuple(lib.tensor(values.standard_normal(tuple(p.shape))) for p in parts)
    return found if isinstance(value, tuple) else found[0]


def flat(value: Any) -> list[Any]:
    return [x for part in value for x in flat(part)] if isinstance(value, tuple) else [value]


def compare(found: Any, wanted: Any) -> None:
    assert isinstance(found, tuple) == isinstance(wanted, tuple)
    for ours, theirs in zip(flat(found), flat(wanted), strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert not ours.requires_grad
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("what", ["jacobian", "vjp", "jvp"])
def test_first_derivatives_as_torch(what: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    func, kind = FUNCTIONS[name]

    def run(lib: Any, module: Any) -> Any:
        x = point(lib, kind)
        if what == "jacobian":
            return module.jacobian(func, x)
        y = func(*x) if isinstance(x, tuple) else func(x)
        return getattr(module, what)(func, x, like(lib, x if what == "jvp" else y))

    compare(run(tc, functional), run(torch, torch.autograd.functional))


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("what", ["hessian", "hvp", "vhp"])
def test_second_derivatives_as_torch(what: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    func, kind = SCALARS[name]

    def run(lib: Any, module: Any) -> Any:
        x = point(lib, kind)
        return getattr(module, what)(func, x, *([] if what == "hessian" else [like(lib, x)]))

    compare(run(tc, functional), run(torch, torch.autograd.functional))


@pytest.mark.parametrize("what", ["jacobian", "vjp", "jvp", "hessian", "hvp", "vhp"])
def test_results_are_differentiable(what: str) -> None:
    """With create_graph a gradient passes through them; it agrees with differences."""
    x = tc.tensor(B, requires_grad=True)
    v = tc.tensor(rng.standard_normal(3), requires_grad=True)

    def value(x: Any, v: Any) -> Any:
        func = (lambda x: (x**3 * x.sin()).sum()) if what[0] == "h" or what == "vhp" else (
            lambda x: x**2 * x.flip(0).exp()
        )  # fmt: skip
        function = getattr(functional, what)
        if what in ("jacobian", "hessian"):
            return function(func, x, create_graph=True) * v
        return function(func, x, v, create_graph=True)[1]

    assert tc.autograd.gradcheck(value, (x, v))


def test_without_create_graph_there_is_no_history() -> None:
    x = tc.tensor(B, requires_grad=True)
    value, product = functional.vjp(lambda x: (x * x).sum(), x)
    assert not value.requires_grad
    assert not product.requires_grad
    assert product.tolist() == (x * 2).tolist()
    with tc.no_grad():
        assert functional.jacobian(lambda x: (x * x).sum(), x).tolist() == (x * 2).tolist()


def test_same_tensor_inside_and_outside() -> None:
    """Only the argument counts as the point, with create_graph as well."""
    x = tc.tensor([2.0], requires_grad=True)
    found = functional.jacobian(lambda y: y * x, x, create_graph=True)
    assert found.tolist() == [[2.0]]
    (g,) = tc.autograd.grad(found.sum(), x)
    assert g.tolist() == [1.0]


def test_a_jacobian_is_one_plan() -> None:
    cache.clear()
    before = cache.made
    functional.jacobian(
        lambda x: (x * 3).sin() * x.sum(), tc.tensor(rng.standard_normal(20))
    ).numpy()
    assert cache.made - before == 1


def test_empty_output() -> None:
    found = functional.jacobian(lambda x: x[:0] * 2, tc.tensor(B))
    assert found.shape == (0, 3)


def test_strict_and_refusals() -> None:
    a, b = tc.tensor(A), tc.tensor(B)
    with pytest.raises(tc.GradientError, match="output 0 does not depend"):
        functional.jacobian(lambda x: tc.ones(2), a, strict=True)
    with pytest.raises(tc.GradientError, match="derivative 1 does not depend"):
        functional.vjp(lambda x, y: x.sum(), (a, b), strict=True)
    with pytest.raises(tc.ShapeError, match="other shapes than the outputs"):
        functional.vjp(lambda x: x * 2, a, b)
    with pytest.raises(tc.ArgumentError, match="v is missing"):
        functional.jvp(lambda x: x * 2, a)
    with pytest.raises(tc.ShapeError, match="not scalar"):
        functional.hessian(lambda x: x * 2, a)
    with pytest.raises(tc.DTypeError, match="must be Tensors"):
        functional.jacobian(lambda x: [x], a)
    with pytest.raises(tc.ArgumentError, match="no such strategy"):
        functional.jacobian(lambda x: x, a, strategy="sideways")

"""Function against torch's own, and the switches of gradient mode."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

pytestmark = pytest.mark.smoke("autograd")


def leaf(*values: float) -> Any:
    return tc.tensor(list(values), dtype=tc.float64, device="cpu", requires_grad=True)


class Exponential(tc.autograd.Function):
    """Saves its output, whose history a second derivative needs."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        return g * y


class ScaledProduct(tc.autograd.Function):
    """Two Tensors, a number and a name."""

    @staticmethod
    def forward(ctx: Any, a: Any, factor: float, b: Any, name: str = "") -> Any:
        ctx.save_for_backward(a, b)
        ctx.factor = factor
        return a * b * factor

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        a, b = ctx.saved_tensors
        return g * b * ctx.factor, None, g * a * ctx.factor, None


class SinCos(tc.autograd.Function):
    """Two results with derivatives, one without, and one that is no Tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        sine, cosine, sign = x.sin(), x.cos(), x.sign()
        ctx.save_for_backward(sine, cosine)
        ctx.mark_non_differentiable(sign)
        ctx.seen = None
        return sine, cosine, sign, "text"

    @staticmethod
    def backward(ctx: Any, *gs: Any) -> Any:
        ctx.seen = gs
        sine, cosine = ctx.saved_tensors
        return gs[0] * cosine - gs[1] * sine


def test_values_and_gradients() -> None:
    x = leaf(0.5, -1.0)
    Exponential.apply(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.5, -1.0]))


def test_inputs_that_are_no_tensors() -> None:
    """Backward returns None for them; None as gradient of a Tensor stops there."""
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    ScaledProduct.apply(a, 2.0, b, "name").sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), [6.0, 8.0])
    np.testing.assert_array_equal(b.grad.numpy(), [2.0, 4.0])

    class Stop(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, None

    a, b = leaf(1.0), leaf(3.0)
    Stop.apply(a, b).sum().backward()
    assert a.grad.item() == 1.0
    assert b.grad is None


def test_needs_input_grad_tells_them_apart() -> None:
    seen = []

    class Product(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, number: int, b: Any) -> Any:
            seen.append(ctx.needs_input_grad)
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, None, None

    Product.apply(leaf(1.0), 3, leaf(1.0).detach())
    assert seen == [(True, False, False)]


def test_several_results() -> None:
    x = leaf(0.3, 0.7)
    sine, cosine, sign, text = SinCos.apply(x)
    assert text == "text"
    assert not sign.requires_grad
    assert sine.requires_grad
    (sine * 2 + cosine).sum().backward()
    v = np.array([0.3, 0.7])
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.cos(v) - np.sin(v))


def test_unused_results_get_zeros_or_none() -> None:
    x = leaf(0.3)
    SinCos.apply(x)[1].sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), -np.sin([0.3]))
    seen = []

    class Both(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x + 1, x * 2

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            seen.append(first)
            return second * 2

    x = leaf(0.3)
    Both.apply(x)[1].sum().backward()
    assert seen == [None]
    assert x.grad.item() == 2.0


def test_second_derivative_through_a_saved_output() -> None:
    """d2 exp / dx2 needs the saved output as a function of x."""
    x = leaf(0.5, -1.0)
    (g,) = tc.autograd.grad(Exponential.apply(x).sum(), x, create_graph=True)
    assert g.requires_grad
    (h,) = tc.autograd.grad(g.sum(), x)
    np.testing.assert_allclose(h.numpy(), np.exp([0.5, -1.0]))
    assert tc.autograd.gradcheck(Exponential.apply, (leaf(0.1, 0.2),))
    assert tc.autograd.gradgradcheck(Exponential.apply, (leaf(0.1, 0.2),))


def test_second_derivatives_through_saved_inputs_and_several_outputs() -> None:
    assert tc.autograd.gradgradcheck(lambda a, b: ScaledProduct.apply(a, 2.0, b),
                                     (leaf(1.0, 2.0), leaf(3.0, 4.0)))  # fmt: skip
    assert tc.autograd.gradgradcheck(lambda x: SinCos.apply(x)[:2], (leaf(0.3, 0.7),))


def test_saved_tensors_keep_the_value_of_forward() -> None:
    """A later write to a saved Tensor changes nothing: a node is a value."""
    a, b = leaf(1.0), leaf(3.0)
    y = ScaledProduct.apply(a, 1.0, b)
    with tc.no_grad():
        b.fill_(100.0)
    y.sum().backward()
    assert a.grad.item() == 3.0


def test_setup_context() -> None:
    class Square(tc.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0]

    x = leaf(3.0)
    Square.apply(x).sum().backward()
    assert x.grad.item() == 6.0


def test_without_history_nothing_is_recorded() -> None:
    x = leaf(1.0)
    with tc.no_grad():
        assert not Exponential.apply(x).requires_grad
    assert not Exponential.apply(x.detach()).requires_grad


def test_an_input_handed_through() -> None:
    """A straight-through estimator: the value rounded, the gradient not."""

    class StraightThrough(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.round()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    class Same(StraightThrough):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

    x = leaf(0.6)
    y = StraightThrough.apply(x)
    assert y.item() == 1.0
    (y * 3).sum().backward()
    assert x.grad.item() == 3.0
    x = leaf(0.6)
    Same.apply(x).sum().backward()
    assert x.grad.item() == 1.0


def test_gradient_of_another_dtype_is_cast() -> None:
    class Wide(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.double()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    x = tc.ones(2, device="cpu", requires_grad=True)
    Wide.apply(x).sum().backward()
    assert x.grad.dtype is tc.float32


def test_integer_results_carry_no_history() -> None:
    class Index(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.argmax(), x * 1

        @staticmethod
        def backward(ctx: Any, index: Any, g: Any) -> Any:
            assert index.tolist() == 0
            return g

    x = leaf(1.0, 3.0)
    index, y = Index.apply(x)
    assert (index.item(), index.requires_grad) == (1, False)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [1.0, 1.0])


def test_agrees_with_torch() -> None:
    """The same two classes on both libraries: first and second derivatives."""
    torch = pytest.importorskip("torch")

    def classes(library: Any) -> Any:
        class Cube(library.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (x,) = ctx.saved_tensors
                return g * 3 * x * x

        return Cube

    values = np.array([0.5, -2.0])
    found = []
    for library, x in (
        (tc, tc.tensor(values, device="cpu", requires_grad=True)),
        (torch, torch.tensor(values, requires_grad=True)),
    ):
        y = classes(library).apply(x)
        (g,) = library.autograd.grad(y.sum(), x, create_graph=True)
        (h,) = library.autograd.grad((g * g).sum(), x)
        found.append((g.detach().numpy(), h.detach().numpy()))
    np.testing.assert_allclose(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1])


# Gradient mode ------------------------------------------------------------------------------------


def test_no_grad_as_context_and_decorator() -> None:
    x = leaf(1.0)

    @tc.no_grad()
    def with_brackets() -> Any:
        return x * 2

    @tc.no_grad
    def without_brackets() -> Any:
        """Text."""
        return x * 2

    with tc.no_grad():
        inside = x * 2
    assert [y.requires_grad for y in (inside, with_brackets(), without_brackets())] == [False] * 3
    assert (without_brackets.__name__, without_brackets.__doc__) == ("without_brackets", "Text.")
    assert (x * 2).requires_grad


def test_modes_nest_and_end_with_an_error() -> None:
    assert tc.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), tc.no_grad():
        with tc.enable_grad():
            assert tc.is_grad_enabled()
            with tc.set_grad_enabled(False):
                assert not tc.is_grad_enabled()
            assert tc.is_grad_enabled()
        assert not tc.is_grad_enabled()
        raise ZeroDivisionError
    assert tc.is_grad_enabled()


def test_one_instance_may_be_used_again() -> None:
    for block in (tc.no_grad(), tc.inference_mode()):
        for _ in range(2):
            with block:
                assert not tc.is_grad_enabled()
                with block:
                    assert not tc.is_grad_enabled()
            assert tc.is_grad_enabled()


def test_set_grad_enabled_switches_at_once() -> None:
    tc.set_grad_enabled(False)
    try:
        assert not tc.is_grad_enabled()
    finally:
        tc.set_grad_enabled(True)
    assert tc.is_grad_enabled()
    block = tc.set_grad_enabled(False)
    assert not tc.is_grad_enabled()
    with block:
        assert not tc.is_grad_enabled()
    assert tc.is_grad_enabled()
    with block:
        assert not tc.is_grad_enabled()
    assert tc.is_grad_enabled()

    @tc.set_grad_enabled(False)
    def inside() -> bool:
        return tc.is_grad_enabled()

    assert tc.is_grad_enabled()
    assert inside() is False


def test_inference_mode_takes_a_flag() -> None:
    with tc.inference_mode(False):
        assert tc.is_grad_enabled()
    with tc.inference_mode():
        assert not tc.is_grad_enabled()

    @tc.inference_mode
    def inside() -> bool:
        return tc.is_grad_enabled()

    assert inside() is False
    assert tc.is_grad_enabled()


def test_a_generator_runs_in_the_mode_and_its_consumer_does_not() -> None:
    @tc.no_grad()
    def steps() -> Iterator[bool]:
        received = yield tc.is_grad_enabled()
        assert received == "sent"
        try:
            yield tc.is_grad_enabled()
        except KeyError:
            yield tc.is_grad_enabled()
        return "end"

    generator = steps()
    assert next(generator) is False
    assert tc.is_grad_enabled()
    assert generator.send("sent") is False  # type: ignore[attr-defined]
    assert generator.throw(KeyError()) is False  # type: ignore[attr-defined]
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "end"
    assert tc.is_grad_enabled()


def test_each_thread_has_its_own_mode() -> None:
    x = leaf(1.0)
    found: list[bool] = []
    entered, looked = threading.Event(), threading.Event()

    def work() -> None:
        with tc.no_grad():
            entered.set()
            assert looked.wait(10)
            found.append((x * 2).requires_grad)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(10)
    found.append((x * 2).requires_grad)
    looked.set()
    thread.join()
    assert found == [True, False]


def test_what_is_kept_for_forward_mode_changes_nothing() -> None:
    """A Function written for PyTorch's forward mode too, and inside `vmap`."""

    class Square(tc.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return 2 * tangent * ctx.saved_for_forward[0]

    x = tc.tensor([3.0], requires_grad=True)
    Square.apply(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0]

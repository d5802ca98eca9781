"""`check_versions`: a gradient raises where torch finds a value written in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
Call = Callable[[Any, Any, Any], Any]

# lib, x, w -> result; x is a result itself, w a leaf.
FUNCTIONS: dict[str, Call] = {
    "add": lambda lib, x, w: x + w,
    "sub": lambda lib, x, w: x - w,
    "mul": lambda lib, x, w: x * w,
    "div": lambda lib, x, w: x / w,
    "square": lambda lib, x, w: x * x,
    "pow": lambda lib, x, w: x**3,
    "neg": lambda lib, x, w: -x,
    "exp": lambda lib, x, w: x.exp(),
    "log": lambda lib, x, w: x.log(),
    "sqrt": lambda lib, x, w: x.sqrt(),
    "rsqrt": lambda lib, x, w: x.rsqrt(),
    "reciprocal": lambda lib, x, w: x.reciprocal(),
    "sin": lambda lib, x, w: x.sin(),
    "tanh": lambda lib, x, w: x.tanh(),
    "sigmoid": lambda lib, x, w: x.sigmoid(),
    "relu": lambda lib, x, w: lib.nn.functional.relu(x),
    "gelu": lambda lib, x, w: lib.nn.functional.gelu(x),
    "silu": lambda lib, x, w: lib.nn.functional.silu(x),
    "softplus": lambda lib, x, w: lib.nn.functional.softplus(x),
    "elu": lambda lib, x, w: lib.nn.functional.elu(x),
    "leaky_relu": lambda lib, x, w: lib.nn.functional.leaky_relu(x),
    "abs": lambda lib, x, w: x.abs(),
    "clamp": lambda lib, x, w: x.clamp(0.2, 0.9),
    "maximum": lambda lib, x, w: lib.maximum(x, w),
    "sum": lambda lib, x, w: x.sum(1),
    "mean": lambda lib, x, w: x.mean(),
    "logsumexp": lambda lib, x, w: lib.logsumexp(x, 1),
    "softmax": lambda lib, x, w: x.softmax(1),
    "log_softmax": lambda lib, x, w: x.log_softmax(1),
    "matmul": lambda lib, x, w: x @ w,
    "transposed": lambda lib, x, w: x @ w.T,
    "linear": lambda lib, x, w: lib.nn.functional.linear(x, w),
    "layer_norm": lambda lib, x, w: lib.nn.functional.layer_norm(x, (3,)),
    "mse_loss": lambda lib, x, w: lib.nn.functional.mse_loss(x, w),
    "smooth_l1_loss": lambda lib, x, w: lib.nn.functional.smooth_l1_loss(x, w),
    "cross_entropy": lambda lib, x, w: lib.nn.functional.cross_entropy(x, labels(lib)),
    "index": lambda lib, x, w: x[1:],
    "reshape": lambda lib, x, w: x.reshape(9),
    "cat": lambda lib, x, w: lib.cat([x, w]),
    "where": lambda lib, x, w: lib.where(x > 0.5, x, w),
    "view of the operand": lambda lib, x, w: x[0] * w,
    "twice": lambda lib, x, w: (x * 2).exp() * w,
}  # fmt: skip

# What is written, after the call.
WRITES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "nothing": lambda lib, x, w, y: None,
    "operand": lambda lib, x, w, y: x.mul_(2),
    "a part of the operand": lambda lib, x, w, y: x[0].zero_(),
    "result": lambda lib, x, w, y: y.add_(1),
    "leaf": lambda lib, x, w, y: w.detach().mul_(2),
    "leaf by data": lambda lib, x, w, y: w.data.mul_(2),
}


def labels(lib: Any) -> Any:
    return lib.tensor([0, 2, 1])


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def refused(lib: Any, function: Call, write: Callable[..., Any]) -> bool:
    values = np.linspace(0.1, 1.2, 9).reshape(3, 3)
    leaf = lib.tensor(values, requires_grad=True)
    w = lib.tensor(values[::-1].copy(), requires_grad=True)
    x = leaf + 0.1
    y = function(lib, x, w)
    write(lib, x, w, y)
    found = ""
    try:
        y.sum().backward()
    except (RuntimeError, tc.GradientError) as error:
        found = str(error)
    assert not found or "modified by an inplace operation" in found
    return bool(found)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_is_refused_where_torch_refuses_it(name: str, write: str) -> None:
    expected = refused(torch, FUNCTIONS[name], WRITES[write])
    assert not refused(tc, FUNCTIONS[name], WRITES[write])
    with tc.autograd.check_versions(True):
        assert refused(tc, FUNCTIONS[name], WRITES[write]) == expected


def _wanted(lib: Any, h: Any, w: Any) -> Any:
    """A gradient of one operand, where the other one's needs what was written."""
    y = h @ w
    w.detach().mul_(2)
    return lib.autograd.grad(y.sum(), w)


def _unused(lib: Any, h: Any, w: Any) -> Any:
    """torch saves the bias, though no gradient reads it."""
    y = lib.nn.functional.layer_norm(h, (3,), None, w[0])
    w.detach().mul_(2)
    return lib.autograd.grad(y.sum(), h)


def _twice(lib: Any, h: Any, w: Any) -> Any:
    """The logits, which cross_entropy does not save, nor its gradient."""
    logits = w * 1
    loss = lib.nn.functional.cross_entropy(logits, labels(lib))
    logits.detach().mul_(2)
    (found,) = lib.autograd.grad(loss, w, create_graph=True)
    return (found * found).sum().backward()


def _by_data(lib: Any, h: Any, w: Any) -> Any:
    """``data`` has versions of its own."""
    seen = h.data
    y = seen * w
    h.detach().mul_(2)
    y.sum().backward()
    y = seen * w
    seen.mul_(2)
    return y.sum().backward()


def _told(lib: Any, h: Any, w: Any) -> Any:
    """A write that nothing sees is told of."""
    y = h * w
    h.data.mul_(2)
    lib.autograd.graph.increment_version(h)
    return y.sum().backward()


def _the_same(lib: Any, h: Any, w: Any) -> Any:
    """The values that were there are a write all the same."""
    y = h.abs()
    h.copy_(h)
    return y.sum().backward()


def _with_itself(lib: Any, h: Any, w: Any) -> Any:
    """In place a copy of the first operand alone is saved."""
    h.mul_(w)
    h.sum().backward(retain_graph=True)
    h.addcmul_(h, w)
    return h.sum().backward()


def _statistics(lib: Any, h: Any, w: Any) -> Any:
    """A second batch writes the running statistics that the first one has saved."""
    norm = lib.nn.BatchNorm1d(3).double()
    first = norm(h).square().mean()
    (norm(h * 2).mean() + first).backward()
    norm.eval()
    y = norm(h.detach() * w)
    norm.running_mean.zero_()
    return y.sum().backward()


PROGRAMS = (_wanted, _unused, _twice, _by_data, _told, _the_same, _with_itself, _statistics)


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_that_an_executed_operation_saved(program: Any) -> None:
    lines = []
    for lib in (torch, tc):
        values = np.linspace(0.1, 1.2, 9).reshape(3, 3)
        w = lib.tensor(values[::-1].copy(), requires_grad=True)
        h = lib.tensor(values, requires_grad=True) * 1
        with tc.autograd.check_versions(True):
            if program is _twice:
                program(lib, h, w)
                continue
            message = "modified by an inplace operation"
            with pytest.raises((RuntimeError, tc.GradientError), match=message) as caught:
                program(lib, h, w)
            lines.append(caught.traceback[1].lineno)
    assert len(set(lines)) <= 1


def _overwritten(lib: Any, h: Any, w: Any) -> Any:
    """A pass visits the history of what was overwritten, with a gradient of zeros."""
    y = h.softmax(1)
    y.copy_(w * 1)
    y.sum().backward()


def _set(lib: Any, h: Any, w: Any) -> Any:
    y = h.exp()
    y[...] = w
    y.sum().backward()


def _flat(lib: Any, h: Any, w: Any) -> Any:
    """The gradient of a step function is zero; what is behind it is visited."""
    y = h.exp()
    z = y.floor()
    y.add_(1)
    z.sum().backward()


def _sign(lib: Any, h: Any, w: Any) -> Any:
    """It saves its result, though no gradient of real numbers reads it."""
    y = h.sgn()
    y.add_(1)
    y.sum().backward()


def _within_no_grad(lib: Any, h: Any, w: Any) -> Any:
    """A write that is not recorded saves nothing."""
    with lib.no_grad():
        h.mul_(h)
        h[0].addcmul_(h[0], w[0])
    h.sum().backward()


def _beside_no_grad(lib: Any, h: Any, w: Any) -> Any:
    """The history is that from before; it was recorded."""
    y = h.exp()
    with lib.no_grad():
        y[-1].mul_(2)
    y.mul_(2)
    y.sum().backward()


def _detached(lib: Any, h: Any, w: Any) -> Any:
    """In place, but not a write."""
    y = h.exp()
    z = y * 2
    y.detach_()
    z.sum().backward()


def _clamped_view(lib: Any, h: Any, w: Any) -> Any:
    """A view is no result of the function that reads it first."""
    v = h.diagonal().add_(1)
    v.clamp(-3, 3)
    v[1:].mul_(2)
    v.sum().backward()


def _scattered_view(lib: Any, h: Any, w: Any) -> Any:
    v = h.t()
    at = lib.zeros(1, 3, dtype=lib.int64)
    v.scatter_reduce(0, at, w, "sum").floor_()
    v.sum().backward()


def _index(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """An index that is saved takes another shape in place."""

    def program(lib: Any, h: Any, w: Any) -> Any:
        values, index = (h * w).sort(1)
        change(index)
        values.sum().backward()

    return program


SHAPES: dict[str, Callable[..., Any]] = {
    "unsqueeze_": _index(lambda x: x.unsqueeze_(0)),
    "squeeze_": _index(lambda x: x.squeeze_()),
    "t_": _index(lambda x: x.t_()),
    "transpose_": _index(lambda x: x.transpose_(0, 0)),
    "swapaxes_": _index(lambda x: x.swapaxes_(0, 1)),
    "swapdims_": _index(lambda x: x.swapdims_(0, 1)),
    "resize_": _index(lambda x: x.resize_(9)),
    "resize_ to the same": _index(lambda x: x.resize_(3, 3)),
    "as_strided_": _index(lambda x: x.as_strided_((3, 3), (3, 1))),
    "of a view": _index(lambda x: x[0].unsqueeze_(0)),
    "detach_": _index(lambda x: x.detach_()),
    "a view": _index(lambda x: x.t()),
}
SAME_AS_TORCH = (
    _overwritten, _set, _flat, _sign, _within_no_grad, _beside_no_grad, _detached,
    _clamped_view, _scattered_view,
    *SHAPES.values(),
)  # fmt: skip


NAMES = (*(program.__name__ for program in SAME_AS_TORCH[: -len(SHAPES)]), *SHAPES)


@pytest.mark.parametrize("program", SAME_AS_TORCH, ids=NAMES)
def test_what_a_pass_visits_and_what_counts_as_a_write(program: Any) -> None:
    found = []
    for lib in (torch, tc):
        values = np.linspace(0.1, 1.2, 9).reshape(3, 3)
        w = lib.tensor(values[::-1].copy(), requires_grad=True)
        h = lib.tensor(values, requires_grad=True) * 1
        text = ""
        with tc.autograd.check_versions(True):
            try:
                program(lib, h, w)
            except (RuntimeError, tc.GradientError) as error:
                text = str(error)
        assert not text or "modified by an inplace operation" in text
        found.append(bool(text))
    assert found[0] == found[1]


@pytest.mark.parametrize("lib", [torch, tc])
@pytest.mark.parametrize("when", ["before", "inside", "result", "after"])
def test_the_versions_that_a_function_saved(lib: Any, when: str) -> None:
    """Those after its forward, of its results as well."""

    class Cube(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, other: Any) -> Any:
            y = x * x * x
            ctx.save_for_backward(x, y, other)
            if when == "inside":
                other.add_(1)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y, _ = ctx.saved_tensors
            return g * y / x * 3, None

    with tc.autograd.check_versions(True):
        x, other = lib.tensor([2.0], requires_grad=True), lib.tensor([1, 2])
        if when == "before":
            lib.autograd.graph.increment_version(other)
        y = Cube.apply(x, other)
        if when == "result":
            y.mul_(2)
        if when == "after":
            other.resize_(1, 2)
        if when in ("result", "after"):
            with pytest.raises((RuntimeError, tc.GradientError), match="modified by an inplace"):
                y.sum().backward()
        else:
            y.sum().backward()
            assert x.grad.tolist() == [12]


def test_the_error_has_both_lines() -> None:
    with tc.autograd.check_versions(True):
        x = tc.tensor([1.0, 2.0], requires_grad=True)
        y = x.exp()
        loss = y.sum()
        y.mul_(2)
        with pytest.raises(tc.GradientError) as caught:
            loss.backward()
    text = str(caught.value)
    assert "y = x.exp()" in text
    assert "y.mul_(2)" in text


def test_a_step_between_two_passes_is_a_write() -> None:
    """The classic: the optimizer has written what the second loss needs."""
    with tc.autograd.check_versions(True):
        w = tc.ones(2, 2).requires_grad_()
        optimizer = tc.optim.SGD([w], lr=0.1)
        h = tc.ones(3, 2) @ w
        out = h @ w
        h.mean().backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(tc.GradientError, match="inplace"):
            out.mean().backward()
        optimizer.zero_grad()
        (tc.ones(3, 2) @ w @ w).mean().backward()  # what is recorded later is right


def test_what_a_function_saved() -> None:
    class Cube(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: tc.Tensor) -> tc.Tensor:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: tc.Tensor) -> tc.Tensor:
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    x = tc.tensor([2.0], requires_grad=True)
    with tc.autograd.check_versions(True):
        y = x * 1
        z = Cube.apply(y)
        y.add_(1)
        with pytest.raises(tc.GradientError, match="inplace"):
            z.backward()
    y = x * 1
    z = Cube.apply(y)
    y.add_(1)
    z.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [12]


@pytest.mark.parametrize("lib", [torch, tc])
def test_nearest_samples_have_the_history_of_the_grid(lib: Any) -> None:
    image, grid = lib.ones(1, 1, 3, 3), lib.zeros(1, 2, 2, 2).requires_grad_()
    found = lib.nn.functional.grid_sample(image, grid, mode="nearest", align_corners=False)
    assert found.requires_grad
    found.sum().backward()
    assert grid.grad is None or not grid.grad.any()


def _saved_again(lib: Any, h: Any, w: Any) -> Any:
    """A gradient of a gradient needs what the gradient has saved again."""
    y = h.softmax(1)
    (found,) = lib.autograd.grad(y[0, 0] + y[1, 1], h, create_graph=True)
    y.add_(1)
    return found.square().sum().backward()


def _half(lib: Any, h: Any, w: Any) -> Any:
    """It reads what was computed before it was rounded."""
    y = h.bfloat16().softmax(1)
    (found,) = lib.autograd.grad(y[0, 0] + y[1, 1], h, create_graph=True)
    y.add_(1)
    return found.square().sum().backward()


def _itself(lib: Any, h: Any, w: Any) -> Any:
    """A value that is copied to itself is written, too."""
    y = h.relu()
    with lib.no_grad():
        y.copy_(y)
    y.sum().backward()


def _constant(lib: Any, h: Any, w: Any) -> Any:
    """The gradient of the bias depends on the weight, by the function that computes both."""
    x = h.detach()
    y = lib.nn.functional.layer_norm(x, (3,), w[0], w[1])
    (found,) = lib.autograd.grad(y.sum(), w, create_graph=True)
    x.mul_(0.5)
    return found.sum().backward()


@pytest.mark.parametrize("program", [_saved_again, _half, _itself, _constant])
def test_a_second_gradient_is_refused_with_torch(program: Any) -> None:
    for lib in (torch, tc):
        values = np.linspace(0.1, 1.2, 9).reshape(3, 3)
        w = lib.tensor(values[::-1].copy(), requires_grad=True)
        h = lib.tensor(values, requires_grad=True) * 1
        with (
            tc.autograd.check_versions(True),
            pytest.raises((RuntimeError, tc.GradientError), match="modified by an inplace"),
        ):
            program(lib, h, w)


def _second_of_a_part(lib: Any, h: Any, w: Any) -> Any:
    """The gradient of the exponential does not need the target, the function's own does."""
    target = w.detach() * 1
    loss = lib.nn.functional.poisson_nll_loss(h, target, reduction="sum")
    (found,) = lib.autograd.grad(loss, h, create_graph=True)
    target.add_(1)
    found.sum().backward(retain_graph=True)
    return loss.backward()


def _first_of_all(lib: Any, h: Any, w: Any) -> Any:
    target = w.detach() * 1
    loss = lib.nn.functional.poisson_nll_loss(h, target, reduction="sum")
    target.add_(1)
    return loss.backward()


def _written_through_detach(lib: Any, h: Any, w: Any) -> Any:
    """Its own history needs the old value, that of the tensor behind it does not."""
    handle = h.detach()
    handle.addcmul_(handle, w)
    h.square().sum().backward()
    return handle.sum().backward()


def _view_that_a_write_read(lib: Any, h: Any, w: Any) -> Any:
    """The write saves `other`; what was computed of the view does not need it."""
    other, view, target = h.exp(), h.squeeze(), w.detach() * 1
    twice = view * 2
    target.addcmul_(other, view)
    other.add_(1)
    twice.sum().backward(retain_graph=True)
    return target.sum().backward()


def _second_of_a_power(lib: Any, h: Any, w: Any) -> Any:
    """The gradient by the base is another power, that by the exponent is made of the result."""
    y = h ** w.detach()
    (found,) = lib.autograd.grad(y.sum(), h, create_graph=True, retain_graph=True)
    y.sin_()
    found.sum().backward(retain_graph=True)
    return y.sum().backward()


def _second_of_a_base(lib: Any, h: Any, w: Any) -> Any:
    """The same where both operands require grad: only the exponent's gradient saves the result."""
    y = h**w
    by_base, by_exponent = lib.autograd.grad(y.sum(), [h, w], create_graph=True, retain_graph=True)
    y.sin_()
    by_base.sum().backward(retain_graph=True)
    return by_exponent.sum().backward()


def _second_of_a_double_base(lib: Any, h: Any, w: Any) -> Any:
    """Of float64 operands it saves these, and asked for the base alone no result."""
    y = lib.float_power(h, w)
    (found,) = lib.autograd.grad(y.sum(), h, create_graph=True, retain_graph=True)
    y.sin_()
    found.sum().backward(retain_graph=True)
    return y.sum().backward()


def _second_of_a_sum_of_powers(lib: Any, h: Any, w: Any) -> Any:
    """Its slope is made of steps on the way, which our second gradient passes in a half type."""
    half = h.to(lib.bfloat16)
    y = lib.logaddexp(half, half * 2)
    (found,) = lib.autograd.grad(y.sum(), h, create_graph=True, retain_graph=True)
    half.abs_()
    found.sum().backward(retain_graph=True)
    return y.sum().backward()


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        (_second_of_a_sum_of_powers, 1),
        (_second_of_a_part, 1),
        (_second_of_a_power, 1),
        (_second_of_a_base, 1),
        (_second_of_a_double_base, 1),
        (_first_of_all, 0),
        (_written_through_detach, 1),
        (_view_that_a_write_read, 1),
    ],
)
def test_a_pass_that_needs_less_is_not_refused(
    program: Any, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last pass is refused by both libraries, those before it by neither."""
    for lib in (torch, tc):
        done: list[Any] = []
        backward = lib.Tensor.backward

        def counted(
            x: Any, *, done: list[Any] = done, backward: Any = backward, **options: Any
        ) -> None:
            backward(x, **options)
            done.append(x)

        values = np.linspace(0.1, 1.2, 9).reshape(3, 3)
        w = lib.tensor(values[::-1].copy(), requires_grad=True)
        h = lib.tensor(values, requires_grad=True) * 1
        with monkeypatch.context() as patch, tc.autograd.check_versions(True):
            patch.setattr(lib.Tensor, "backward", counted)
            with pytest.raises((RuntimeError, tc.GradientError), match="modified by an inplace"):
                program(lib, h, w)
        assert len(done) == passes


# lib, x, other, mask, index: a write in place whose gradient needs an operand; and that operand.
WRITES_WITH_OPERANDS: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "mul_": lambda lib, x, o, m, i: (x.mul_(o), o)[1],
    "div_": lambda lib, x, o, m, i: (x.div_(o), o)[1],
    "pow_": lambda lib, x, o, m, i: (x.pow_(o), o)[1],
    "atan2_": lambda lib, x, o, m, i: (x.atan2_(o), o)[1],
    "add_": lambda lib, x, o, m, i: (x.add_(o), o)[1],
    "lerp_": lambda lib, x, o, m, i: (x.lerp_(o, o), o)[1],
    "addcmul_": lambda lib, x, o, m, i: (x.addcmul_(x * 2, o), o)[1],
    "addcdiv_": lambda lib, x, o, m, i: (x.addcdiv_(x * 2, o), o)[1],
    "masked_fill_": lambda lib, x, o, m, i: (x.masked_fill_(m, 2.0), m)[1],
    "masked_scatter_": lambda lib, x, o, m, i: (x.masked_scatter_(m, o), m)[1],
    "index_fill_": lambda lib, x, o, m, i: (x.index_fill_(0, i, 2.0), i)[1],
    "index_copy_": lambda lib, x, o, m, i: (x.index_copy_(0, i, o), i)[1],
    "index_add_": lambda lib, x, o, m, i: (x.index_add_(0, i, o), i)[1],
    "scatter_": lambda lib, x, o, m, i: (x.scatter_(0, m.long(), 2.0), m)[1],
    "clamp_": lambda lib, x, o, m, i: (x.clamp_(o), o)[1],
}  # fmt: skip
OPERAND_WRITES: dict[str, Callable[[Any], Any]] = {
    "value": lambda x: x.fill_(1),
    "shape": lambda x: x.unsqueeze_(0),
}


def refuses(lib: Any, write: Callable[..., Any], change: Callable[[Any], Any]) -> bool:
    """Whether a gradient is refused after an operand of a write is written."""
    h = lib.tensor(np.linspace(0.2, 1.2, 9).reshape(3, 3), requires_grad=True) * 1
    other = lib.tensor(np.linspace(0.5, 0.9, 9).reshape(3, 3))
    mask, index = lib.tensor(np.eye(3) > 0), lib.tensor(np.array([2, 0, 1]))
    with tc.autograd.check_versions(True):
        operand = write(lib, h, other, mask, index)
        change(operand)
        try:
            h.sum().backward()
        except (RuntimeError, tc.GradientError) as error:
            return "modified by an inplace" in str(error)
    return False


@pytest.mark.parametrize("change", OPERAND_WRITES)
@pytest.mark.parametrize("name", WRITES_WITH_OPERANDS)
def test_operands_of_writes_are_checked_as_torch_does(name: str, change: str) -> None:
    ours, torchs = (
        refuses(lib, WRITES_WITH_OPERANDS[name], OPERAND_WRITES[change]) for lib in (tc, torch)
    )
    assert ours is torchs


@pytest.mark.parametrize("write", ["sigmoid_", "exp_", "tanh_", "sqrt_", "abs_"])
@pytest.mark.parametrize("under_no_grad", [False, True])
def test_a_write_without_history_saves_nothing(write: str, under_no_grad: bool) -> None:
    for lib in (torch, tc):
        with tc.autograd.check_versions(True):
            w = lib.tensor(np.linspace(0.2, 1.2, 3), requires_grad=True)
            y = w * 2
            with lib.no_grad() if under_no_grad else lib.enable_grad():
                getattr(y.detach(), write)()
            y.sub_(0.5)
            y.sum().backward()
        assert w.grad.tolist() == [2, 2, 2]


def recurrent_refusals(lib: Any, kind: str, dtype: str, steps: int, options: Any) -> list[str]:
    """What a recurrent layer's gradient needs: all that must not be written after its call."""
    x_gradual, h_gradual, twice = options
    needed = []
    number = getattr(lib, dtype)
    names = ["input", "hidden", "memory", "output", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0"]
    for name in names:
        layer = getattr(lib.nn, kind)(3, 4).to(number)
        x = lib.ones((steps, 2, 3), dtype=number, requires_grad=x_gradual)
        hidden = lib.ones((1, 2, 4), dtype=number, requires_grad=h_gradual)
        memory = lib.ones((1, 2, 4), dtype=number)
        output, _ = layer(x, (hidden, memory) if kind == "LSTM" else hidden)
        loss = output.sum()
        if twice:
            loss.backward(retain_graph=True)
        own = {"input": x, "hidden": hidden, "memory": memory, "output": output}
        with lib.no_grad():
            (own | dict(layer.named_parameters()))[name].mul_(0.5)
        try:
            loss.backward()
        except (RuntimeError, tc.GradientError) as error:
            # torch's slices of the states have a message of their own.
            needed += [name] if "inplace" in str(error) else [f"{name}: {error}"]
    return needed


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_recurrent_layer_saves_what_torch_saves(kind: str, dtype: str, steps: int) -> None:
    """PyTorch's LSTM of float32 saves all weights; a product of one step alone not its weight."""
    for options in [(False, False, True), (True, False, False), (False, True, False)]:
        expected = recurrent_refusals(torch, kind, dtype, steps, options)
        with tc.autograd.check_versions(True):
            assert recurrent_refusals(tc, kind, dtype, steps, options) == expected, options

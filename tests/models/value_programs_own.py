"""Programs that torch has no counterpart for: our random numbers, and rules where torch refuses.

Where torch's version counter raises, a recorded gradient here keeps the values it was recorded
with; these programs assert that.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from value_programs_training import Net, Values, array, batch, descend, forget, parameter, random


def near(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


# Random numbers -----------------------------------------------------------------------------------


def dropout(tc: Any) -> Values:
    tc.manual_seed(7)
    net = Net(tc)
    for turn in range(8):
        forget(net.all())
        x, y = batch(tc, turn)
        hidden = (x @ net.w1 + net.b1).tanh()
        mask = tc.rand(5, 6, dtype=tc.float64) < 0.5
        dropped = hidden * mask / 0.5
        dropped.retain_grad()
        hidden.retain_grad()
        loss = ((dropped @ net.w2 - y) ** 2).mean()
        value = loss.item()
        loss.backward()
        descend(tc, [net.w1, net.b1, net.w2])
        # The mask of the backward pass is that of the forward pass.
        near(array(hidden.grad), array(dropped.grad) * array(mask) / 0.5)
        yield value, array(mask), array(net.w1)


def noise_looked_at_twice(tc: Any) -> Values:
    tc.manual_seed(3)
    w = parameter(tc, 1, 4)
    for _turn in range(8):
        w.grad = None
        noise = tc.randn(4, dtype=tc.float64)
        y = w * noise
        first = array(y)
        y.sum().backward()
        near(array(w.grad), array(noise))
        near(first, array(w) * array(noise))
        yield first, array(noise)


def random_writes(tc: Any) -> Values:
    tc.manual_seed(5)
    x = tc.zeros((3, 4), dtype=tc.float64)
    for _turn in range(6):
        x[1:].uniform_()
        y = x * 2
        x[0].normal_()
        near(array(y)[1:], 2 * array(x)[1:])
        yield array(x), array(y)


# A recorded gradient keeps its operands -----------------------------------------------------------


def operand_written_after_record(tc: Any) -> Values:
    x = tc.tensor(random(1, 3), dtype=tc.float64, requires_grad=True)
    y = tc.tensor(random(2, 3), dtype=tc.float64)
    for turn in range(6):
        x.grad = None
        was_x, was_y = array(x), array(y)
        product = x * y
        early = product.sum().item() if turn % 2 else float((was_x * was_y).sum())
        y.add_(1)
        with tc.no_grad():
            x.mul_(0.5)
        product.sum().backward()
        # The product's derivative is the y it was computed with.
        near(array(x.grad), was_y)
        near(array(product), was_x * was_y)
        yield early, array(x.grad), array(x)


def result_written_after_use(tc: Any) -> Values:
    x = tc.tensor(random(3, 3), dtype=tc.float64, requires_grad=True)
    for _turn in range(6):
        x.grad = None
        y = x * 2
        z = y.exp()
        square = y * y
        y.add_(100)
        (square.sum() + z.sum()).backward()
        near(array(x.grad), 2 * 2 * 2 * array(x) + 2 * np.exp(2 * array(x)))
        yield array(x.grad), array(y), array(z)


def step_between_record_and_backward(tc: Any) -> Values:
    # torch refuses: the second loss was recorded with the parameter from before the step.
    net = Net(tc)
    for turn in range(6):
        forget(net.all())
        x, y = batch(tc, turn)
        first, second = net.loss(x, y), net.loss(x, y) * 3
        before = [p.detach().clone().requires_grad_() for p in net.all()]
        first.backward()
        descend(tc, net.all())
        forget(net.all())
        second.backward()
        copy = Net(tc)
        copy.w1, copy.b1, copy.w2, copy.b2 = before
        (copy.loss(x, y) * 3).backward()
        for p, old in zip(net.all(), before):
            near(array(p.grad), array(old.grad))
        yield second.item(), array(net.w1), array(net.w1.grad)


def gradient_recorded_with_an_old_weight(tc: Any) -> Values:
    w = parameter(tc, 5, 3)
    for turn in range(6):
        w.grad = None
        old = array(w)
        (w**3).sum().backward()
        with tc.no_grad():
            w.fill_(float(turn))
        near(array(w.grad), 3 * old**2)
        near(array(w), np.full(3, float(turn)))
        with tc.no_grad():
            w.copy_(tc.tensor(old + 0.1, dtype=tc.float64))
        yield array(w.grad)


# NumPy --------------------------------------------------------------------------------------------


def array_shows_what_is_written(tc: Any) -> Values:
    x = tc.tensor(random(7, 3, 2), dtype=tc.float64)
    for _turn in range(6):
        seen, part = x.numpy(), x.t()[1].numpy()
        before, copy = x.clone(), seen.copy()
        x.mul_(2).add_(1)
        x[0, 1] = -1.0
        seen[2, 0] = 0.5  # writes are seen both ways
        wanted = copy * 2 + 1
        wanted[0, 1], wanted[2, 0] = -1.0, 0.5
        near(seen, wanted)
        near(part, wanted[:, 1])
        near(array(before), copy)
        yield array(x), wanted
        x.mul_(0.1)


def batch_overwritten_before_backward(tc: Any) -> Values:
    memory = np.zeros((5, 4))
    w = parameter(tc, 11, 4)
    for turn in range(6):
        w.grad = None
        memory[...] = data = random(80 + turn, 5, 4)
        loss = (tc.from_numpy(memory) @ w).pow(2).mean()
        memory[...] = 1e6
        loss.backward()
        near(array(w.grad), 2 * data.T @ (data @ array(w)) / 5)
        descend(tc, [w])
        yield loss.item(), array(w)


# Histories ----------------------------------------------------------------------------------------


def history_of_a_running_total(tc: Any) -> Values:
    # Looked at before backward: the total's history is used up by the passes of its terms.
    net = Net(tc)
    total: Any = 0
    for turn in range(12):
        forget(net.all())
        loss = net.loss(*batch(tc, turn))
        total = total + loss * 0.5
        value = total.item()
        loss.backward()
        descend(tc, net.all())
        yield value


def functions_with_saved_values(tc: Any) -> Values:
    class Cube(tc.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    w = parameter(tc, 12, 3)
    for _turn in range(6):
        w.grad = None
        y = Cube.apply(w * 2)
        value = array(y)
        y.sum().backward()
        near(array(w.grad), 3 * (2 * array(w)) ** 2 * 2)
        descend(tc, [w], 0.01)
        yield value, array(w)


def warnings_are_errors(tc: Any) -> Values:
    # A long but honest history: sixty looks before its one backward pass.
    w = parameter(tc, 13, 3)
    for _turn in range(5):
        w.grad = None
        state = w * 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(60):
                state = (state * w).tanh() + w
                state.sum().item()
            state.sum().backward()
        yield array(w.grad)


PROGRAMS = (
    dropout, noise_looked_at_twice, random_writes, operand_written_after_record,
    result_written_after_use, step_between_record_and_backward,
    gradient_recorded_with_an_old_weight, array_shows_what_is_written,
    batch_overwritten_before_backward, history_of_a_running_total, functions_with_saved_values,
    warnings_are_errors,
)  # fmt: skip

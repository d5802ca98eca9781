"""Programs that train: the same text runs on torch and on tinygrad_cuda and must give the same.

Each is a generator; what it yields after a turn is compared. All data comes from NumPy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

Values = Iterator[Any]


def random(seed: int, *shape: int) -> Any:
    """Standard normal data."""
    return np.random.default_rng(seed).standard_normal(shape)


def array(tensor: Any) -> Any:
    """A copy of the tensor's value."""
    return np.array(tensor.detach().numpy())


def parameter(lib: Any, seed: int, *shape: int) -> Any:
    return lib.tensor(0.3 * random(seed, *shape), dtype=lib.float64, requires_grad=True)


def batch(lib: Any, turn: int, rows: int = 5) -> tuple[Any, Any]:
    """A fresh batch for each turn."""
    x = lib.tensor(random(100 + turn, rows, 4), dtype=lib.float64)
    return x, lib.tensor(random(200 + turn, rows, 2), dtype=lib.float64)


class Net:
    """Two layers with tanh."""

    def __init__(self, lib: Any, seed: int = 0, inputs: int = 4, outputs: int = 2) -> None:
        self.w1 = parameter(lib, seed, inputs, 6)
        self.b1 = parameter(lib, seed + 1, 6)
        self.w2 = parameter(lib, seed + 2, 6, outputs)
        self.b2 = parameter(lib, seed + 3, outputs)

    def all(self) -> list[Any]:
        return [self.w1, self.b1, self.w2, self.b2]

    def __call__(self, x: Any) -> Any:
        return (x @ self.w1 + self.b1).tanh() @ self.w2 + self.b2

    def loss(self, x: Any, y: Any) -> Any:
        difference = self(x) - y
        return (difference * difference).mean()


def descend(lib: Any, parameters: list[Any], rate: float = 0.1) -> None:
    with lib.no_grad():
        for p in parameters:
            p -= rate * p.grad


def forget(parameters: list[Any]) -> None:
    for p in parameters:
        p.grad = None


# Where somebody looks -----------------------------------------------------------------------------


def item_before_backward(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        value = loss.item()
        loss.backward()
        descend(lib, net.all())
        yield value, array(net.w1)


def item_between_backward_and_step(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        value = loss.item()
        descend(lib, net.all())
        yield value, array(net.w1)


def item_after_step(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        descend(lib, net.all())
        yield loss.item(), array(net.w2)


def looks_everywhere(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        x, y = batch(lib, turn)
        hidden = (x @ net.w1 + net.b1).tanh()
        first = array(hidden)
        out = hidden @ net.w2 + net.b2
        second = out.sum().item()
        loss = ((out - y) ** 2).mean()
        loss.backward()
        third = array(net.b1.grad)
        descend(lib, net.all())
        yield first, second, third, array(hidden), array(net.b1)


def nobody_looks_for_a_while(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        for part in range(3):
            forget(net.all())
            net.loss(*batch(lib, 3 * turn + part)).backward()
            descend(lib, net.all())
        yield array(net.w1), array(net.b2)


# Steps by hand ------------------------------------------------------------------------------------


def copy_into_the_parameter(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        with lib.no_grad():
            for p in net.all():
                p.copy_(p - 0.1 * p.grad)
        yield loss.item(), array(net.w1)


def write_to_data(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        net.w1.data = net.w1.data - 0.1 * net.w1.grad
        net.b1.data.sub_(0.1 * net.b1.grad)
        net.w2.data -= 0.1 * net.w2.grad
        net.b2.detach().add_(net.b2.grad, alpha=-0.1)
        yield loss.item(), [array(p) for p in net.all()]


def rate_of_each_turn(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(12):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        descend(lib, net.all(), rate=0.2 / (1 + turn) ** 0.5)
        yield loss.item(), array(net.w1)


def momentum(lib: Any) -> Values:
    net = Net(lib)
    buffers = [lib.zeros_like(p) for p in net.all()]
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        with lib.no_grad():
            for p, buffer in zip(net.all(), buffers):
                buffer.mul_(0.9).add_(p.grad)
                p.add_(buffer, alpha=-0.05)
        yield loss.item(), array(net.w1), array(buffers[0])


def adam(lib: Any) -> Values:
    net = Net(lib)
    state = [(lib.zeros_like(p), lib.zeros_like(p)) for p in net.all()]
    for turn in range(10):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        with lib.no_grad():
            for p, (m, v) in zip(net.all(), state):
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                rate = 0.01 / (1 - 0.9 ** (turn + 1))
                root = (v / (1 - 0.999 ** (turn + 1))).sqrt().add_(1e-8)
                p.addcdiv_(m, root, value=-rate)
        yield loss.item(), array(net.w1), array(state[0][1])


def clipping_by_norm(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn)) * 10
        loss.backward()
        norm = sum((p.grad * p.grad).sum() for p in net.all()).sqrt().item()
        if norm > 0.5:
            for p in net.all():
                p.grad.mul_(0.5 / norm)
        descend(lib, net.all())
        yield norm, array(net.w1)


class Descent:
    """A step that happens when a with-statement ends."""

    def __init__(self, lib: Any, net: Net) -> None:
        self.lib, self.net = lib, net

    def __enter__(self) -> Net:
        forget(self.net.all())
        return self.net

    def __exit__(self, *error: Any) -> None:
        descend(self.lib, self.net.all())


def step_of_a_with_statement(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        with Descent(lib, net) as inside:
            loss = inside.loss(*batch(lib, turn))
            loss.backward()
        yield loss.item(), array(net.w1)


# Gradients kept and dropped -----------------------------------------------------------------------


def accumulation_over_parts(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        total = 0.0
        for part in range(4):
            loss = net.loss(*batch(lib, 4 * turn + part)) / 4
            loss.backward()
            total += loss.item()
        descend(lib, net.all())
        yield total, array(net.w1), array(net.w1.grad)


def accumulation_unseen(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        for part in range(4):
            (net.loss(*batch(lib, 4 * turn + part)) / 4).backward()
        descend(lib, net.all())
        yield array(net.w2)


def gradients_zeroed_in_place(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        for p in net.all():
            if p.grad is not None:
                p.grad.zero_()
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        descend(lib, net.all())
        yield loss.item(), array(net.w1.grad), array(net.w1)


def gradients_kept(lib: Any) -> Values:
    net = Net(lib)
    kept = None
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        previous, kept = kept, net.w1.grad
        descend(lib, net.all())
        yield loss.item(), array(kept), None if previous is None else array(previous)


def gradient_kept_while_accumulating(lib: Any) -> Values:
    # Without zero_grad `.grad` is written in place: a kept handle sees it, a clone does not.
    w = parameter(lib, 1, 3)
    (w * w).sum().backward()
    handle, clone = w.grad, w.grad.clone()
    for turn in range(6):
        (w * (turn + 1.0)).sum().backward()
        yield array(handle), array(clone), array(w.grad)


def running_loss_attached(lib: Any) -> Values:
    net = Net(lib)
    total = lib.zeros((), dtype=lib.float64)
    for turn in range(1000):
        forget(net.all())
        loss = net.loss(*batch(lib, turn % 7))
        total += loss
        loss.backward()
        descend(lib, net.all(), 0.01)
        yield total.item() if turn % 100 == 99 else None


def running_loss_detached(lib: Any) -> Values:
    net = Net(lib)
    total = lib.zeros((), dtype=lib.float64)
    for turn in range(1000):
        forget(net.all())
        loss = net.loss(*batch(lib, turn % 7))
        loss.backward()
        total += loss.detach()
        descend(lib, net.all(), 0.01)
        yield total.item() if turn % 100 == 99 else None


def running_loss_looked_at(lib: Any) -> Values:
    net = Net(lib)
    total = 0
    for turn in range(40):
        forget(net.all())
        loss = net.loss(*batch(lib, turn % 7))
        total = total + loss
        value = total.item()
        loss.backward()
        descend(lib, net.all(), 0.01)
        yield value


# Several networks ---------------------------------------------------------------------------------


def adversaries(lib: Any) -> Values:
    generator, critic = Net(lib, 0, 4, 3), Net(lib, 10, 3, 1)
    for turn in range(8):
        noise = lib.tensor(random(300 + turn, 5, 4), dtype=lib.float64)
        real = lib.tensor(random(400 + turn, 5, 3), dtype=lib.float64)
        fake = generator(noise)
        forget(critic.all())
        loss_c = (critic(fake.detach()) ** 2).mean() + ((critic(real) - 1) ** 2).mean()
        loss_c.backward()
        descend(lib, critic.all())
        forget(generator.all())
        loss_g = ((critic(fake) - 1) ** 2).mean()
        loss_g.backward()
        descend(lib, generator.all())
        yield loss_c.item(), loss_g.item(), array(generator.w1), array(critic.w1)


def adversaries_frozen(lib: Any) -> Values:
    generator, critic = Net(lib, 0, 4, 3), Net(lib, 10, 3, 1)
    for turn in range(8):
        noise = lib.tensor(random(300 + turn, 5, 4), dtype=lib.float64)
        forget(critic.all())
        ((critic(generator(noise).detach()) - 0.5) ** 2).mean().backward()
        for p in critic.all():
            p.requires_grad_(False)
        forget(generator.all())
        loss_g = ((critic(generator(noise)) - 1) ** 2).mean()
        loss_g.backward()
        descend(lib, generator.all())
        critic.w2.grad = None
        for p in critic.all():
            p.requires_grad_(True)
        # The gradient from before the freeze is still there.
        kept = array(critic.w1.grad)
        descend(lib, [critic.w1, critic.b1, critic.b2])
        yield loss_g.item(), kept, critic.w2.grad is None, array(generator.w1), array(critic.w1)


def average_of_parameters(lib: Any) -> Values:
    net = Net(lib)
    averages = [p.detach().clone() for p in net.all()]
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        descend(lib, net.all())
        with lib.no_grad():
            for average, p in zip(averages, net.all()):
                average.mul_(0.9).add_(p, alpha=0.1)
        yield loss.item(), array(averages[0]), array(net.w1)


def average_by_lerp(lib: Any) -> Values:
    net = Net(lib)
    averages = [copy.deepcopy(p.detach()) for p in net.all()]
    for turn in range(8):
        forget(net.all())
        net.loss(*batch(lib, turn)).backward()
        descend(lib, net.all())
        for average, p in zip(averages, net.all()):
            average.lerp_(p.detach(), 0.1)
        yield [array(average) for average in averages]


def clone_then_step(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        before = net.w1.clone()
        held = net.w2.detach().clone()
        net.loss(*batch(lib, turn)).backward()
        descend(lib, net.all())
        yield array(before), array(held), array(net.w1), array(net.w2)


def deepcopy_in_mid_training(lib: Any) -> Values:
    net = Net(lib)
    best = copy.deepcopy(net)
    for turn in range(10):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        best = copy.deepcopy(net)
        descend(lib, net.all())
        gradient = array(best.w1.grad)
        (best(batch(lib, turn)[0]).sum()).backward()
        yield loss.item(), array(best.w1), gradient, array(best.w1.grad), array(net.w1)


def target_network(lib: Any) -> Values:
    online, target = Net(lib, 0), Net(lib, 20)
    for turn in range(9):
        if turn % 3 == 0:
            with lib.no_grad():
                for a, b in zip(target.all(), online.all()):
                    a.copy_(b)
        x, y = batch(lib, turn)
        with lib.no_grad():
            goal = y + 0.9 * target(x)
        forget(online.all())
        loss = ((online(x) - goal) ** 2).mean()
        loss.backward()
        descend(lib, online.all())
        yield loss.item(), array(target.w1), array(online.w1)


def evaluation_without_step(lib: Any) -> Values:
    net = Net(lib)
    with lib.no_grad():
        for turn in range(40):
            outputs = [net(batch(lib, turn)[0]) for _ in range(3)]
            yield array(outputs[0] + outputs[2]) if turn % 4 == 3 else None


def weight_tying(lib: Any) -> Values:
    w = parameter(lib, 5, 4, 6)
    for turn in range(8):
        w.grad = None
        x, _ = batch(lib, turn)
        loss = (((x @ w).tanh() @ w.t() - x) ** 2).mean()
        loss.backward()
        descend(lib, [w])
        yield loss.item(), array(w)


# Sequences ----------------------------------------------------------------------------------------


def recurrent_state(lib: Any) -> Values:
    w, u = parameter(lib, 6, 4, 3), parameter(lib, 7, 3, 3)
    state = lib.zeros((5, 3), dtype=lib.float64)
    for turn in range(10):
        forget([w, u])
        x, _ = batch(lib, turn)
        state = (x @ w + state @ u).tanh()
        loss = (state * state).sum()
        loss.backward()
        descend(lib, [w, u], 0.02)
        state = state.detach()
        yield loss.item(), array(state), array(u)


def truncated_through_time(lib: Any) -> Values:
    w, u = parameter(lib, 6, 4, 3), parameter(lib, 7, 3, 3)
    state = lib.zeros((5, 3), dtype=lib.float64)
    for turn in range(8):
        forget([w, u])
        losses = []
        for part in range(3):
            x, _ = batch(lib, 3 * turn + part)
            state = (x @ w + state @ u).tanh()
            losses.append((state * state).mean())
        sum(losses).backward()
        descend(lib, [w, u])
        state.detach_()
        yield [loss.item() for loss in losses], array(state), array(u)


def schedule_read_by_number(lib: Any) -> Values:
    betas = lib.linspace(0.0001, 0.02, 1000, dtype=lib.float64)
    x = lib.ones(3, dtype=lib.float64)
    for turn in range(1000):
        x = x * (1 - betas[turn]) + betas[turn : turn + 1] * 0.5
        yield array(x) if turn % 100 == 99 else None


def moving_window(lib: Any) -> Values:
    data = lib.tensor(random(8, 60, 4), dtype=lib.float64)
    w = parameter(lib, 9, 4)
    for turn in range(20):
        w.grad = None
        part = data[2 * turn : 2 * turn + 10 : 2]
        loss = ((part @ w) ** 2).mean() + (data[turn] * w).sum() * 0.01
        loss.backward()
        descend(lib, [w])
        yield loss.item(), array(w)


def constants_that_vary(lib: Any) -> Values:
    x = lib.tensor([1.0, -2.0, 3.0], dtype=lib.float64, requires_grad=True)
    for turn in range(12):
        x.grad = None
        y = x * (turn + 1) + x**2 + turn / 10 - (3.0 - turn) * 2 + x.clamp(-1.5, 0.1 * turn)
        y.sum().backward()
        yield array(y), array(x.grad)


PROGRAMS = (
    item_before_backward, item_between_backward_and_step, item_after_step, looks_everywhere,
    nobody_looks_for_a_while, copy_into_the_parameter, write_to_data, rate_of_each_turn, momentum,
    adam, clipping_by_norm, step_of_a_with_statement, accumulation_over_parts, accumulation_unseen,
    gradients_zeroed_in_place, gradients_kept, gradient_kept_while_accumulating,
    running_loss_attached, running_loss_detached, running_loss_looked_at, adversaries,
    adversaries_frozen, average_of_parameters, average_by_lerp, clone_then_step,
    deepcopy_in_mid_training, target_network, evaluation_without_step, weight_tying,
    recurrent_state, truncated_through_time, schedule_read_by_number, moving_window,
    constants_that_vary,
)  # fmt: skip

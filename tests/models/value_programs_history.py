"""Programs about histories: several backward passes, higher orders, detach, hooks, modes, threads.

The same text runs on torch and on tinygrad_cuda.
"""

from __future__ import annotations

import threading
from typing import Any

from value_programs_training import Net, Values, array, batch, descend, forget, parameter, random


def retained_twice(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward(retain_graph=True)
        first = array(net.w1.grad)
        loss.backward(retain_graph=True)
        second = array(net.w1.grad)
        loss.backward()
        descend(lib, net.all(), 0.03)
        yield loss.item(), first, second, array(net.w1.grad)


def retained_over_a_look(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward(retain_graph=True)
        value = loss.item()
        loss.backward()
        yield value, array(net.w1.grad)


def second_pass_raises(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(6):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        raised = 0
        for look in (False, True):
            if look:
                loss.item()
            try:
                loss.backward()
            except RuntimeError:
                raised += 1
        yield raised, array(net.w1.grad)


def two_losses_retained(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        x, _y = batch(lib, turn)
        trunk = (x @ net.w1 + net.b1).tanh()
        first = (trunk @ net.w2).sum() * 0.01
        second = ((trunk + 1) ** 2).mean()
        first.backward(retain_graph=True)
        middle = array(net.w1.grad)
        second.backward()
        descend(lib, [net.w1, net.b1, net.w2])
        yield first.item(), second.item(), middle, array(net.w1)


def two_losses_unretained(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        x, _y = batch(lib, turn)
        trunk = (x @ net.w1 + net.b1).tanh()
        first, second = (trunk @ net.w2).sum() * 0.01, ((trunk + 1) ** 2).mean()
        first.backward()
        value = second.item() if turn % 2 else None
        raised = False
        try:
            second.backward()
        except RuntimeError:
            raised = True
        descend(lib, [net.w1, net.b1, net.w2])
        yield value, raised, array(net.w1)


def two_losses_in_one_pass(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        x, _y = batch(lib, turn)
        trunk = (x @ net.w1 + net.b1).tanh()
        first, second = (trunk @ net.w2).sum() * 0.01, ((trunk + 1) ** 2).mean()
        lib.autograd.backward([first, second])
        descend(lib, [net.w1, net.b1, net.w2])
        yield first.item(), array(net.w1)


def parts_of_one_history(lib: Any) -> Values:
    # Both passes use the trunk's value, none passes the other's history.
    w = parameter(lib, 1, 3)
    for turn in range(6):
        w.grad = None
        trunk = w * (turn + 1.0)
        cut = trunk.detach().requires_grad_()
        (cut.exp() + cut**2).sum().backward()
        trunk.backward(cut.grad)
        yield array(w.grad), array(cut.grad), cut.requires_grad, trunk.requires_grad


def detached_leaf(lib: Any) -> Values:
    x = lib.tensor(random(3, 4), dtype=lib.float64)
    for _turn in range(8):
        x = x.detach().requires_grad_()
        (x**4).sum().backward()
        with lib.no_grad():
            x = x - 0.01 * x.grad
        yield array(x)


def sign_attack(lib: Any) -> Values:
    net = Net(lib)
    x, y = batch(lib, 0)
    moved = x.clone()
    for _turn in range(8):
        moved.requires_grad_(True)
        loss = net.loss(moved, y)
        (g,) = lib.autograd.grad(loss, moved)
        moved = moved.detach() + 0.01 * g.sign()
        moved = x + (moved - x).clamp(-0.03, 0.03)
        yield loss.item(), array(moved)


def gradient_penalty(lib: Any) -> Values:
    net = Net(lib, 0, 4, 1)
    for turn in range(8):
        forget(net.all())
        x = batch(lib, turn)[0].requires_grad_()
        out = net(x).sum()
        (g,) = lib.autograd.grad(out, x, create_graph=True)
        loss = ((g * g).sum(1) - 1).pow(2).mean() + out * 0.1
        loss.backward()
        descend(lib, net.all(), 0.05)
        yield loss.item(), array(g), array(net.w1)


def gradient_penalty_looked_at(lib: Any) -> Values:
    net = Net(lib, 0, 4, 1)
    for turn in range(8):
        forget(net.all())
        x = batch(lib, turn)[0].requires_grad_()
        out = net(x).sum()
        value = out.item()
        (g,) = lib.autograd.grad(out, x, create_graph=True)
        norm = array(g)
        loss = ((g * g).sum(1) - 1).pow(2).mean() + out * 0.1
        third = loss.item()
        loss.backward()
        descend(lib, net.all(), 0.05)
        yield value, norm, third, array(net.w1)


def gradient_of_gradient(lib: Any) -> Values:
    x = lib.tensor([0.5, -1.0, 2.0], dtype=lib.float64, requires_grad=True)
    for turn in range(6):
        y = (x.sin() * x**3).sum() * (turn + 1)
        (first,) = lib.autograd.grad(y, x, create_graph=True)
        (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = lib.autograd.grad(second.sum(), x)
        yield array(first), array(second), array(third)


def hessian_vector_product(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(6):
        v = lib.tensor(random(50 + turn, 4, 6), dtype=lib.float64)
        loss = net.loss(*batch(lib, turn))
        (g,) = lib.autograd.grad(loss, net.w1, create_graph=True)
        (hv,) = lib.autograd.grad((g * v).sum(), net.w1)
        yield array(g), array(hv)


def step_that_is_differentiated(lib: Any) -> Values:
    # One inner step, then the gradient through it (MAML).
    w = parameter(lib, 2, 4)
    for turn in range(6):
        w.grad = None
        x = batch(lib, turn)[0]
        inner = ((x @ w) ** 2).mean()
        (g,) = lib.autograd.grad(inner, w, create_graph=True)
        moved = w - 0.1 * g
        outer = ((x @ moved - 1) ** 2).mean()
        outer.backward()
        descend(lib, [w])
        yield inner.item(), outer.item(), array(w)


def gradients_without_leaves(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(6):
        x, y = batch(lib, turn)
        hidden = (x @ net.w1).tanh()
        loss = (hidden @ net.w2 - y).pow(2).mean()
        gh, gw = lib.autograd.grad(loss, [hidden, net.w2])
        yield array(gh), array(gw), net.w1.grad is None


def seeds_that_are_not_one(lib: Any) -> Values:
    w = parameter(lib, 4, 3, 2)
    for turn in range(6):
        w.grad = None
        y = w.exp()
        y.backward(lib.tensor(random(turn, 3, 2), dtype=lib.float64))
        yield array(w.grad)


def hooks(lib: Any) -> Values:
    w = parameter(lib, 11, 3)
    seen: list[Any] = []
    w.register_hook(lambda g: g * 2)
    for turn in range(8):
        w.grad = None
        hidden = w * (turn + 1.0)
        hidden.register_hook(lambda g, h=hidden: g + h.detach())
        hidden.register_hook(lambda g: seen.append(array(g)))
        kept = hidden * hidden
        kept.retain_grad()
        kept.sum().backward()
        yield array(w.grad), array(kept.grad), seen.pop(), len(seen)


def hooks_of_what_grad_is_asked_for(lib: Any) -> Values:
    v, w = parameter(lib, 11, 3), parameter(lib, 12, 3)
    seen: list[Any] = []
    v.register_hook(lambda g: g * g)
    v.register_hook(lambda g: seen.append(array(g)))
    w.register_hook(lambda g: seen.append(array(g)))
    for turn in range(8):
        hidden = v * w
        hidden.register_hook(lambda g: g * 3)
        (gv,) = lib.autograd.grad((hidden * hidden).sum(), v, create_graph=turn % 2 == 1)
        found = [array(gv), gv.requires_grad, seen.pop(), v.grad is None]
        if gv.requires_grad:
            found += [array(lib.autograd.grad(gv.sum(), w)[0]), seen.pop()]
        yield (*found, len(seen))


def hook_taken_away(lib: Any) -> Values:
    w = parameter(lib, 11, 3)
    handle = w.register_hook(lambda g: g * 3)
    for turn in range(6):
        w.grad = None
        (w * w).sum().backward()
        if turn == 1:
            handle.remove()
        yield array(w.grad)


def nested_modes(lib: Any) -> Values:
    w = parameter(lib, 12, 3)
    for _turn in range(6):
        w.grad = None
        with lib.no_grad():
            a = w * 2
            with lib.enable_grad():
                b = w * 3
                with lib.no_grad():
                    c = b * w
            d = w + b
        loss = (b * a).sum() + c.sum() + d.sum()
        loss.backward()
        flags = [t.requires_grad for t in (a, b, c, d, loss)]

        @lib.no_grad()
        def silent(x: Any) -> Any:
            return x * x

        yield array(w.grad), flags, silent(w).requires_grad, (w * 1).requires_grad


def exception_in_mid_turn(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        loss = net.loss(*batch(lib, turn))
        try:
            wrong = loss * lib.ones(3, dtype=lib.float64)
            wrong.reshape(7)
        except (RuntimeError, ValueError):
            pass
        try:
            with lib.no_grad():
                net.w1 * 2
                raise KeyError
        except KeyError:
            pass
        loss.backward()
        descend(lib, net.all())
        yield loss.item(), array(net.w1)


def until_it_converges(lib: Any) -> Values:
    for turn in range(6):
        target = 2.0 + turn
        x = lib.tensor(target, dtype=lib.float64)
        steps = 0
        while (x * x - target).abs().item() > 1e-12 and steps < 50:
            x = x - (x * x - target) / (2 * x)
            steps += 1
        yield x.item()


def branch_on_a_value(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(12):
        forget(net.all())
        loss = net.loss(*batch(lib, turn % 2))
        if loss > 0.5:
            loss = loss * 2
        loss.backward()
        descend(lib, net.all(), 0.02)
        yield loss.item(), array(net.w1)


def handed_to_a_thread(lib: Any) -> Values:
    net = Net(lib)
    for turn in range(6):
        forget(net.all())
        x, y = batch(lib, turn)
        hidden = (x @ net.w1).tanh()
        found: list[Any] = []

        def work(hidden: Any = hidden, found: list[Any] = found) -> None:
            with lib.no_grad():
                doubled = hidden * 2
            found.append(doubled)
            found.append(array(doubled))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        loss = ((hidden @ net.w2 - y) ** 2).mean() + found[0].mean()
        loss.backward()
        descend(lib, [net.w1, net.w2])
        yield found[1], loss.item(), array(net.w1)


def recorded_in_a_thread(lib: Any) -> Values:
    w = parameter(lib, 13, 3)
    for turn in range(6):
        w.grad = None
        found: list[Any] = []

        def work(found: list[Any] = found, turn: int = turn) -> None:
            found.append((w * (turn + 1.0)).exp())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        found[0].sum().backward()
        yield array(w.grad), array(found[0])


def interleaved(lib: Any) -> Values:
    one, two = Net(lib, 0), Net(lib, 30)
    for turn in range(8):
        forget(one.all() + two.all())
        x, y = batch(lib, turn)
        a = one(x)
        b = two(x)
        first = ((a - y) ** 2).mean()
        second = ((b - a.detach()) ** 2).mean()
        second.backward()
        value = first.item()
        descend(lib, two.all())
        first.backward()
        descend(lib, one.all())
        yield value, second.item(), array(one.w1), array(two.w1)


def step_before_the_other_backward(lib: Any) -> Values:
    # The second history does not touch what the first step wrote.
    net = Net(lib)
    for turn in range(8):
        forget(net.all())
        x, y = batch(lib, turn)
        first = (x @ net.w1).pow(2).mean()
        second = (y @ net.w2.t()).pow(2).mean()
        first.backward()
        descend(lib, [net.w1])
        second.backward()
        descend(lib, [net.w2])
        yield first.item(), array(net.w1), array(net.w2)


def results_of_a_reduction_with_indices(lib: Any) -> Values:
    w = parameter(lib, 14, 5, 3)
    for turn in range(6):
        w.grad = None
        values, places = (w * (1.0 + turn)).max(1)
        early = values.sum().item()
        (values * values).sum().backward()
        descend(lib, [w], 0.01)
        yield early, array(w.grad), array(places)


def windows(lib: Any) -> Values:
    # A convolution by hand: every window of the signal against one kernel.
    kernel = parameter(lib, 15, 3)
    for turn in range(8):
        kernel.grad = None
        signal = lib.tensor(random(60 + turn, 2, 10), dtype=lib.float64)
        out = (signal.unfold(1, 3, 1) * kernel).sum(-1)
        loss = (out.relu() - 1).pow(2).mean()
        loss.backward()
        descend(lib, [kernel])
        yield loss.item(), array(kernel)


def penalty_of_frozen_part(lib: Any) -> Values:
    net = Net(lib)
    net.w1.requires_grad_(False)
    for turn in range(6):
        for p in (net.b1, net.w2, net.b2):
            p.grad = None
        loss = net.loss(*batch(lib, turn))
        loss.backward()
        descend(lib, [net.b1, net.w2, net.b2])
        yield loss.item(), net.w1.grad is None, array(net.w2)


def leaf_that_nobody_holds(lib: Any) -> Values:
    w = parameter(lib, 16, 3)
    for _turn in range(6):
        w.grad = None
        loss = (w * lib.ones(3, dtype=lib.float64).requires_grad_()).sum()
        loss = loss + (w.detach().requires_grad_() * w).sum()
        loss.backward()
        yield array(w.grad)


PROGRAMS = (
    retained_twice, retained_over_a_look, second_pass_raises, two_losses_retained,
    two_losses_unretained, two_losses_in_one_pass, parts_of_one_history, detached_leaf,
    sign_attack, gradient_penalty, gradient_penalty_looked_at, gradient_of_gradient,
    hessian_vector_product, step_that_is_differentiated, gradients_without_leaves,
    seeds_that_are_not_one, hooks, hooks_of_what_grad_is_asked_for, hook_taken_away,
    nested_modes, exception_in_mid_turn,
    until_it_converges, branch_on_a_value, handed_to_a_thread, recorded_in_a_thread, interleaved,
    step_before_the_other_backward, results_of_a_reduction_with_indices, windows,
    penalty_of_frozen_part, leaf_that_nobody_holds,
)  # fmt: skip

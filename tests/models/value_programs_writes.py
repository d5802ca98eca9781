"""Programs that write in place: through views of views, into leaves, over pending readers.

The same text runs on torch and on tinygrad_cuda.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from value_programs_training import Values, array, batch, descend, parameter, random


def counting(lib: Any, *shape: int) -> Any:
    size = int(np.prod(shape))
    return lib.arange(size, dtype=lib.float64).reshape(*shape).clone()


# Views --------------------------------------------------------------------------------------------


def views_of_views(lib: Any) -> Values:
    x = counting(lib, 4, 6)
    view = x.reshape(2, 2, 6).transpose(0, 2)[1:4, 1]
    row, diagonal, part = x[2], x.diagonal(), x.narrow(1, 2, 3)
    for turn in range(8):
        view.mul_(1.5)
        row += turn
        diagonal.fill_(-float(turn))
        part.sub_(x[0, 0] + 1)
        x.T[5].add_(0.25)
        yield array(x), array(view), array(row), array(diagonal), array(part)


def write_to_the_base(lib: Any) -> Values:
    x = counting(lib, 3, 4)
    views = [x[1:], x.t(), x.view(-1)[3:9], x.unsqueeze(0)[:, 1], x[:, ::2]]
    for turn in range(6):
        x.mul_(0.5).add_(turn + 1)
        x[turn % 3, 1] = 100.0
        yield [array(v) for v in views]


def write_of_a_view_into_its_base(lib: Any) -> Values:
    x = counting(lib, 4, 4)
    for turn in range(6):
        x[1:] = x[:-1].clone() + turn
        x[0] = x[3] * 0.5
        x.t()[0].copy_(x[1])
        yield array(x)


def steps_and_flips(lib: Any) -> Values:
    x = counting(lib, 8)
    for turn in range(6):
        x[turn % 2 :: 2] *= 2
        x[1:7][1:5][::3] = -float(turn)
        x += x.flip(0)
        x *= 0.4
        yield array(x)


def splits(lib: Any) -> Values:
    x = counting(lib, 2, 6)
    for _turn in range(6):
        left, middle, right = x.split(2, dim=1)
        left += right
        middle.copy_(left * 0.5)
        a, b = x.unbind(0)
        b.sub_(a)
        x.chunk(3, 1)[2].mul_(0.1)
        yield array(x)


def windows_of_a_ring(lib: Any) -> Values:
    ring = lib.zeros((5, 3), dtype=lib.float64)
    for turn in range(12):
        ring[turn % 5] = lib.tensor(random(turn, 3), dtype=lib.float64)
        ring[-1, -1] += 0.5
        yield array(ring.mean(0)), array(ring)


def writes_by_arrays_and_masks(lib: Any) -> Values:
    x = counting(lib, 4, 3)
    places = lib.tensor([2, 0])
    for turn in range(6):
        x[places] = x[lib.tensor([0, 2])] * 0.5
        x[x > 5] = 1.0 + turn
        x[:, 1][x[:, 0] < 1] += 3.0
        x.masked_fill_(x == 0, -1.0)
        yield array(x)


def an_expanded_view_refuses(lib: Any) -> Values:
    x = counting(lib, 3, 1)
    for _turn in range(5):
        wide = x.expand(3, 4)
        raised = False
        try:
            wide.add_(1)
        except RuntimeError:
            raised = True
        x += 1
        yield raised, array(x), array(wide)


# Readers that wait --------------------------------------------------------------------------------


def write_over_a_pending_reader(lib: Any) -> Values:
    x = counting(lib, 4)
    for turn in range(8):
        y = x * 2
        z = x[1:] + turn
        x.add_(1)
        w = x * y
        x.mul_(0.5)
        yield array(y), array(z), array(w), array(x)


def swap(lib: Any) -> Values:
    a, b = counting(lib, 3), counting(lib, 3) * 10
    for turn in range(8):
        a, b = b, a
        a += turn
        b *= 0.5
        yield array(a), array(b)


def swap_of_values(lib: Any) -> Values:
    a, b = counting(lib, 3), counting(lib, 3) * 10
    for _turn in range(8):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
        a[0] += 1
        yield array(a), array(b), array(kept)


def exchange_without_a_third(lib: Any) -> Values:
    x = counting(lib, 4, 2)
    for turn in range(6):
        x[[0, 3]] = x[[3, 0]] + turn
        yield array(x)


def ping_pong(lib: Any) -> Values:
    old, new = counting(lib, 6), lib.zeros(6, dtype=lib.float64)
    for turn in range(10):
        new[1:-1] = (old[:-2] + old[2:]) / 2
        new[0] = turn
        old, new = new, old
        yield array(old), array(new) if turn % 3 == 0 else None


def chain_of_writes(lib: Any) -> Values:
    x = counting(lib, 5)
    for _turn in range(6):
        copies = []
        for k in range(10):
            x.mul_(0.9)
            x += k
            if k % 4 == 0:
                copies.append(x.clone())
        yield array(x), [array(c) for c in copies]


def clones_of_clones(lib: Any) -> Values:
    x = counting(lib, 3)
    for _turn in range(6):
        a = x.clone()
        b = a.clone()
        a += 1
        x += 10
        c = b.clone().add_(a)
        b.zero_()
        yield array(a), array(b), array(c), array(x)


def written_with_its_own_view(lib: Any) -> Values:
    x = counting(lib, 3, 3)
    for turn in range(6):
        x.add_(x.t().clone())
        x -= x.mean(0, keepdim=True)
        x.view(-1).add_(x.flatten())
        x *= 0.3
        x += turn
        yield array(x)


def statistics_of_batches(lib: Any) -> Values:
    mean, var = lib.zeros(4, dtype=lib.float64), lib.ones(4, dtype=lib.float64)
    count = lib.tensor(0)
    w = parameter(lib, 1, 4)
    for turn in range(8):
        w.grad = None
        x, _ = batch(lib, turn)
        x = x * w
        m = x.mean(0)
        v = ((x - m) ** 2).mean(0)
        with lib.no_grad():
            mean.mul_(0.9).add_(m, alpha=0.1)
            var.mul_(0.9).add_(v, alpha=0.1)
        count += 1
        loss = ((x - m) / (v + 1e-5).sqrt()).pow(3).sum()
        loss.backward()
        descend(lib, [w], 0.01)
        yield loss.item(), array(mean), array(var), count.item()


# Histories ----------------------------------------------------------------------------------------


def written_with_history(lib: Any) -> Values:
    w = parameter(lib, 2, 4)
    for turn in range(6):
        w.grad = None
        y = w * 2
        y[1:3].mul_(w[0] + turn)
        y[0] = 5.0
        y += 1
        y.t().add_(w)
        y.sum().backward()
        yield array(y), array(w.grad), y.requires_grad


def buffer_written_with_history(lib: Any) -> Values:
    w = parameter(lib, 3, 2)
    for turn in range(6):
        w.grad = None
        out = lib.zeros((3, 2), dtype=lib.float64)
        before = out.requires_grad
        for k in range(3):
            out[k] = w * (k + turn)
        (out * out).sum().backward()
        yield before, out.requires_grad, array(out), array(w.grad)


def written_unseen_by_history(lib: Any) -> Values:
    # Under no_grad, through .data and through detach(): the value changes, the history stays.
    w = parameter(lib, 4, 4)
    for _turn in range(6):
        w.grad = None
        y = w * 3
        with lib.no_grad():
            y.clamp_(max=0.5)
            y[0] = 7.0
        y.data.add_(1)
        y.detach()[1] = -2.0
        loss = y.sum()
        loss.backward()
        yield loss.item(), array(y), array(w.grad), y.requires_grad


def detached_then_trained(lib: Any) -> Values:
    x, w = counting(lib, 3).requires_grad_(), parameter(lib, 5, 3)
    for _turn in range(6):
        x.grad, w.grad = None, None
        out = (x * 2).detach()
        out *= w
        out.sum().backward()
        yield array(out), array(w.grad), x.grad is None, out.requires_grad


def branches_of_a_detached_tensor(lib: Any) -> Values:
    # What is written through detach() has its history there and in its views, nowhere else.
    x, w = counting(lib, 3, 2).requires_grad_(), parameter(lib, 13, 3, 2)
    for _ in range(6):
        x.grad, w.grad = None, None
        base = x * 1.0
        branch = base.detach()
        view = branch.t()
        branch *= w
        branch[0].add_(w[1] * 2)
        with lib.no_grad():
            base += 1
        again = branch.detach()
        flags = [t.requires_grad for t in (base, branch, view, again, base.detach())]
        (view * view.detach()).sum().backward()
        branch.zero_()
        yield array(base), array(view), array(w.grad), x.grad is None, flags


def views_made_without_history(lib: Any) -> Values:
    w = parameter(lib, 14, 3, 2)
    view = w[1:]
    for _ in range(6):
        w.grad = None
        with lib.no_grad():
            w += 0.1
            # Computed anew where nothing is recorded, the view still has its history.
            array(view.exp())
            silent = w[1:]
        (view * silent).sum().backward()
        yield array(w.grad), view.requires_grad, array(silent)


def written_into_a_clone(lib: Any) -> Values:
    w = parameter(lib, 6, 3)
    for turn in range(6):
        w.grad = None
        y = w.clone()
        y[0] = 0.0
        y.mul_(turn + 1.0)
        y.sum().backward()
        descend(lib, [w], 0.01)
        yield array(y), array(w), array(w.grad)


def leaves_refuse(lib: Any) -> Values:
    w = parameter(lib, 7, 3)
    for turn in range(5):
        raised = 0
        for write in (
            lambda: w.add_(1),
            lambda: w[0].mul_(2),
            lambda: w.__setitem__(1, 5.0),
            lambda: w.view(-1).zero_(),
        ):
            try:
                write()
            except RuntimeError:
                raised += 1
        with lib.no_grad():
            w[turn % 3] += 1
            w.view(-1)[0:1].mul_(0.5)
        yield raised, array(w), w.requires_grad


def leaf_used_before_and_after_a_write(lib: Any) -> Values:
    w = parameter(lib, 8, 3)
    for _turn in range(6):
        w.grad = None
        before = w * 2
        with lib.no_grad():
            w.add_(1)
        after = w * 3
        (before.sum() + after.sum()).backward()
        yield array(before), array(after), array(w.grad)


def view_of_a_leaf_kept(lib: Any) -> Values:
    w = parameter(lib, 9, 4)
    for _turn in range(6):
        w.grad = None
        view = w[1:3]
        (view * view).sum().backward()
        with lib.no_grad():
            w -= 0.1 * w.grad
        (w[1:3] * 1.0).sum().backward()
        yield array(view), array(w), array(w.grad)


def requires_grad_later(lib: Any) -> Values:
    for turn in range(6):
        x = counting(lib, 3)
        x += turn
        early = x * 2
        x.requires_grad_()
        y = (x * x).sum() + early.sum()
        y.backward()
        with lib.no_grad():
            x.zero_()
        yield array(x), array(x.grad), early.requires_grad


def data_set_to_another(lib: Any) -> Values:
    w = parameter(lib, 10, 3)
    for turn in range(6):
        w.grad = None
        old = w.detach()
        w.data = lib.tensor(random(70 + turn, 3), dtype=lib.float64)
        (w * w).sum().backward()
        w.data[0] = 1.0
        yield array(w), array(w.grad), array(old)


def shared_with_an_array(lib: Any) -> Values:
    memory = np.arange(4.0)
    x = lib.from_numpy(memory)
    for _turn in range(6):
        y = x * 2
        memory[1] += 10
        z = x * 3
        x.add_(1)
        seen = memory.copy()
        x[0] = -1.0
        yield array(y), array(z), seen, memory.copy(), array(x)


def array_of_a_batch_reused(lib: Any) -> Values:
    # A loader that fills the same array again and again.
    memory = np.zeros((5, 4))
    w = parameter(lib, 11, 4)
    for turn in range(8):
        w.grad = None
        memory[...] = random(80 + turn, 5, 4)
        loss = (lib.from_numpy(memory) @ w).pow(2).mean()
        loss.backward()
        memory[...] = 1e6
        descend(lib, [w])
        yield loss.item(), array(w)


def copied_from_an_array(lib: Any) -> Values:
    memory = np.arange(3.0)
    for turn in range(5):
        x = lib.tensor(memory)
        memory += 1
        x += turn
        yield array(x), memory.copy()


PROGRAMS = (
    views_of_views, write_to_the_base, write_of_a_view_into_its_base, steps_and_flips, splits,
    windows_of_a_ring, writes_by_arrays_and_masks, an_expanded_view_refuses,
    write_over_a_pending_reader, swap, swap_of_values, exchange_without_a_third, ping_pong,
    chain_of_writes, clones_of_clones, written_with_its_own_view, statistics_of_batches,
    written_with_history, buffer_written_with_history, written_unseen_by_history,
    detached_then_trained, branches_of_a_detached_tensor, views_made_without_history,
    written_into_a_clone, leaves_refuse,
    leaf_used_before_and_after_a_write, view_of_a_leaf_kept, requires_grad_later,
    data_set_to_another, shared_with_an_array, array_of_a_batch_reused, copied_from_an_array,
)  # fmt: skip

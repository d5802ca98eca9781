"""What L-BFGS remembers: pairs of changes on the device, their inner products on the host.

The pairs lie in one Tensor with capacity for more, so that a new one makes no new plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygrad_cuda.optim.line_search import Trial
from tinygrad_cuda.optim.optimizer import Scalars
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.shaping import cat, stack
from tinygrad_cuda.tensors.tensor import Tensor

# Pairs at first; four times as many when they are used up.
CAPACITY = 10
# Below this, the curvature y s is too uncertain to learn from.
LEAST_CURVATURE = 1e-10


@dataclass
class Look:
    """Results of one evaluation: the gradient g, and numbers of it, y = g - g before and s = t d.

    Attributes:
        gradient: g.
        largest, total: the largest element of |g| and the sum of all.
        ys, yy, gg, gy, gs: inner products.
        of_gradient, of_change, of_step: inner products of all s, then all y, with g, y and s.
    """

    gradient: Tensor
    largest: float
    total: float
    ys: float
    yy: float
    gg: float
    gy: float
    gs: float
    of_gradient: Any
    of_change: Any
    of_step: Any

    def at_start(self) -> Look:
        """The same point as the beginning of a direction: nothing has changed."""
        nothing = np.zeros_like(self.of_change)
        return replace(
            self, ys=0.0, yy=0.0, gy=0.0, gs=0.0, of_change=nothing, of_step=nothing.copy()
        )


class Memory:
    """Pairs (s, y), and the present direction d.

    Args:
        like: a vector of all parameters.
        most: pairs in memory at most.
    """

    def __init__(self, like: Tensor, most: int) -> None:
        self.most = most
        self.dtype, self.device, self.size = like.dtype, like.device, like.numel()
        self.direction = self._zeros(self.size)
        self.previous = self._zeros(self.size)  # the gradient where the direction begins
        self.previous_loss: float | None = None
        self.step = 0.0
        self.scale = 1.0
        self.turns = self.evaluations = 0
        self.order: list[int] = []  # slots of pairs, the oldest first
        self._allocate(min(most, CAPACITY))

    def _zeros(self, *shape: int) -> Tensor:
        return tensor(np.zeros(shape, self.dtype.numpy), device=self.device)

    def _allocate(self, capacity: int) -> None:
        self.pairs = self._zeros(2, capacity, self.size)
        self.s_y, self.y_y = np.zeros((capacity, capacity)), np.zeros((capacity, capacity))

    # Looking -----------------------------------------------------------------------------------

    def look(self, loss: Tensor, gradient: Tensor, step: float) -> Trial:
        """Reads everything about the present point at once; what is pending is realized."""
        scalar = Scalars().of(gradient)
        change, moved = gradient - self.previous, self.direction * scalar(step, "step")
        products = self.pairs.flatten(0, 1) @ stack([gradient, change, moved], 1)
        magnitude = gradient.abs()
        numbers = stack([
            gradient.dot(self.direction), magnitude.amax(), magnitude.sum(), change.dot(moved),
            change.dot(change), gradient.dot(gradient), gradient.dot(change),
            gradient.dot(moved), self.direction.abs().amax(),
        ])  # fmt: skip
        loss = loss.reshape(1).to(self.device)
        whole = cat([loss, numbers.to(loss.dtype), products.T.flatten().to(loss.dtype)])
        values = whole.numpy().astype(np.float64)
        slope, largest, total, ys, yy, gg, gy, gs, reach = (float(x) for x in values[1:10])
        table = values[10:].reshape(3, -1)
        self.evaluations += 1
        return Trial(
            step, float(values[0]), slope, reach,
            Look(gradient, largest, total, ys, yy, gg, gy, gs, *table),
        )  # fmt: skip

    # Turning -----------------------------------------------------------------------------------

    def turn(self, now: Trial) -> float:
        """Stores the step to `now` and sets the direction from there; returns its slope."""
        look: Look = now.rest
        self.turns += 1
        if self.turns > 1 and look.ys > LEAST_CURVATURE:
            self._learn(look)
        weights, own = self._weights(look)
        slope = own * look.gg + float(weights @ look.of_gradient)
        vector = tensor(weights.astype(self.dtype.numpy), device=self.device)
        scalar = Scalars().of(look.gradient)
        self.direction = vector @ self.pairs.flatten(0, 1) + look.gradient * scalar(own, "own")
        self.previous, self.previous_loss = look.gradient, now.loss
        return slope

    def _learn(self, look: Look) -> None:
        """Stores the pair, over the oldest if there is no more capacity, and its products."""
        capacity = self.pairs.shape[1]
        if len(self.order) == capacity < self.most:
            self._grow(look, min(4 * capacity, self.most))
            capacity = self.pairs.shape[1]
        if len(self.order) == self.most:
            slot = self.order.pop(0)
        else:
            slot = len(self.order)
        self.order.append(slot)
        scalar = Scalars().of(look.gradient)
        pair = stack([self.direction * scalar(self.step, "step"), look.gradient - self.previous])
        where = tensor(np.array([slot]), device=self.device)
        self.pairs.index_copy_(1, where, pair.unsqueeze(1))
        self.s_y[:, slot], self.y_y[:, slot] = look.of_change[:capacity], look.of_change[capacity:]
        self.s_y[slot], self.y_y[slot] = look.of_step[capacity:], look.of_change[capacity:]
        self.s_y[slot, slot], self.y_y[slot, slot] = look.ys, look.yy
        look.of_gradient[slot], look.of_gradient[capacity + slot] = look.gs, look.gy
        self.scale = look.ys / look.yy

    def _grow(self, look: Look, capacity: int) -> None:
        more = capacity - self.pairs.shape[1]
        self.pairs = cat([self.pairs, self._zeros(2, more, self.size)], 1)
        self.s_y, self.y_y = (np.pad(m, ((0, more), (0, more))) for m in (self.s_y, self.y_y))
        for name in ("of_gradient", "of_change", "of_step"):
            halves = getattr(look, name).reshape(2, -1)
            setattr(look, name, np.pad(halves, ((0, 0), (0, more))).reshape(-1))

    def _weights(self, look: Look) -> tuple[Any, float]:
        """The two-loop recursion on inner products: weights of all s and y, and of the gradient.

        q = -g - sum a_i y_i going back in time; d = scale q + sum (a_i - b_i) s_i going forth.
        """
        capacity = self.pairs.shape[1]
        of_s, of_y = look.of_gradient[:capacity], look.of_gradient[capacity:]
        back, forth = np.zeros(capacity), np.zeros(capacity)
        for i in reversed(self.order):
            back[i] = -(of_s[i] + self.s_y[i] @ back) / self.s_y[i, i]
        for i in self.order:
            along = -self.scale * (of_y[i] + self.y_y[i] @ back) + forth @ self.s_y[:, i]
            forth[i] = back[i] - along / self.s_y[i, i]
        return np.concatenate([forth, -self.scale * back]), -self.scale

    # State -------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Evaluations and directions so far, by PyTorch's names."""
        return {"func_evals": self.evaluations, "n_iter": self.turns}

    def as_state(self) -> dict[str, Any]:
        """PyTorch's names; vectors of all parameters, the oldest pair first."""
        if not self.turns:
            return dict(self.counts())
        return {
            **self.counts(),
            "d": self.direction.clone(),
            "t": self.step,
            "old_dirs": [self.pairs[1, slot].clone() for slot in self.order],
            "old_stps": [self.pairs[0, slot].clone() for slot in self.order],
            "ro": [1.0 / float(self.s_y[slot, slot]) for slot in self.order],
            "H_diag": self.scale,
            "prev_flat_grad": self.previous.clone(),
            "prev_loss": self.previous_loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Takes over a state; the inner products are computed again."""
        self.evaluations, self.turns = int(state["func_evals"]), int(state["n_iter"])
        if not self.turns:
            return
        self.direction, self.previous = self._own(state["d"]), self._own(state["prev_flat_grad"])
        self.step, self.scale = float(state["t"]), float(state["H_diag"])
        self.previous_loss = float(state["prev_loss"])
        count = len(state["old_dirs"])
        self.order = list(range(count))
        capacity = min(self.most, CAPACITY)
        while capacity < count:
            capacity = min(4 * capacity, self.most)
        self._allocate(capacity)
        if count:
            rows = [self._own(v) for key in ("old_stps", "old_dirs") for v in state[key]]
            whole = stack(rows).reshape(2, count, self.size)
            self.pairs[:, :count] = whole
            s_y, y_y = (whole @ whole[1].T).numpy().astype(np.float64)
            self.s_y[:count, :count], self.y_y[:count, :count] = s_y, y_y

    def _own(self, vector: Any) -> Tensor:
        result: Tensor = vector.detach().to(self.device, self.dtype).clone()
        return result

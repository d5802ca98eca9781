"""L-BFGS (Liu and Nocedal, 1989): a quasi-Newton method; the host decides, the device computes.

The direction is a sum of stored vectors whose weights come from inner products (Chen et al.,
2014), so that one plan moves the parameters, evaluates and gives every number the host needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.realize import check_errors, realize
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.optim.lbfgs_memory import Memory
from tinygrad_cuda.optim.line_search import (  # the private ones for programs, as in PyTorch
    Trial,
    _cubic_interpolate,  # noqa: F401
    _strong_wolfe,  # noqa: F401
    strong_wolfe,
)
from tinygrad_cuda.optim.optimizer import Optimizer, Scalars, check_options, loaded
from tinygrad_cuda.optim.update_replay import widened
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.creation import zeros as zeros_of
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor


class LBFGS(Optimizer):
    r"""Limited-memory BFGS: Newton's direction from the last gradients, optionally a line search.

    .. math::
        p \leftarrow p - t H g, \quad H \approx (\nabla^2 f)^{-1} \text{ from pairs }
        s = \Delta p,\ y = \Delta g

    A step evaluates the closure several times, and looks at the loss each time.

    Args:
        params: Tensors that collect gradients, all of one group and on one device.
        lr: the step t, or the first that the line search tries.
        max_iter: how many directions a step takes at most.
        max_eval: how many evaluations a step makes at most; ``max_iter * 5 // 4`` when left out.
        tolerance_grad: a step ends when no element of the gradient is larger.
        tolerance_change: a step ends when no parameter, or the loss, changes by more.
        history_size: pairs in memory at most.
        line_search_fn: None or ``"strong_wolfe"``.

    Raises:
        ArgumentError: an option is out of range; several groups or devices.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([3.0, -1.0], device="cpu", requires_grad=True)
        >>> optimizer = LBFGS([x], line_search_fn="strong_wolfe")
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = ((x - 1.0) ** 2 * tc.tensor([1.0, 10.0], device="cpu")).sum()
        ...     loss.backward()
        ...     return loss
        >>> first = optimizer.step(closure)
        >>> [round(value, 4) for value in x.tolist()]
        [1.0, 1.0]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_options("LBFGS", lr=lr)
        if history_size < 1:
            raise ArgumentError(
                "LBFGS", "keeps no pair", expect="history_size >= 1", actual=str(history_size)
            )
        _check_line_search(line_search_fn)
        defaults = {
            "lr": lr, "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
            "history_size": history_size, "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        devices = self._devices()
        if len(devices) > 1:
            raise ArgumentError(
                "LBFGS", "the parameters are on several devices", expect="one device",
                actual=", ".join(map(str, devices)),
            )  # fmt: skip
        self._memory: Memory | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Takes the one group that there is.

        Raises:
            ArgumentError: there is one already, or a parameter is no leaf.
        """
        if self.param_groups:
            raise ArgumentError(
                "LBFGS", "takes no further group", expect="one group for all parameters",
                actual="a second one",
            )  # fmt: skip
        super().add_param_group(param_group)

    # The step ----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes up to max_iter directions; each evaluation is one plan.

        Args:
            closure: clears the gradients, computes the loss and its gradients, returns the loss.

        Returns:
            What `closure` returned at first.

        Raises:
            ArgumentError: there is no closure.
            IndexError: a label or index was out of range; the parameters are those before then.
        """
        if closure is None:
            raise ArgumentError(
                "LBFGS", "evaluates several times", expect="a closure that returns the loss",
                actual="None", hint="optimizer.step(closure)",
            )  # fmt: skip
        (group,) = self.param_groups
        _check_line_search(group["line_search_fn"])
        (device,) = self._devices()
        check_errors(device, wait=False)
        with gradient_mode(False):
            loss = _LbfgsStep(self, group, closure).run()
            realize(device)
        self.steps += 1
        self.state[group["params"][0]].update(self.memory().counts())
        return loss

    def memory(self) -> Memory:
        """The stored pairs; nothing at first."""
        if self._memory is None:
            (group,) = self.param_groups
            start = cat([_flat(p) for p in group["params"]])
            self._memory = Memory(start, group["history_size"])
        return self._memory

    # State -------------------------------------------------------------------------------------

    def pack(self) -> dict[Tensor, Any]:
        """The state in PyTorch's layout: all of it belongs to the first parameter."""
        if self._memory is None or not self._memory.evaluations:
            return super().pack()
        with gradient_mode(False):
            return {self.param_groups[0]["params"][0]: self._memory.as_state()}

    def unpack(self, states: dict[Tensor, Any]) -> None:
        """Takes over what `pack` of another optimizer gave."""
        super().unpack({})
        self._memory = None
        first = self.param_groups[0]["params"][0]
        if first in states:
            given = {key: _taken(value, first) for key, value in states[first].items()}
            with gradient_mode(False):
                self.memory().load(given)
            self.state[first].update(self.memory().counts())


def _taken(value: Any, parameter: Tensor) -> Any:
    if isinstance(value, list):
        return [_taken(element, parameter) for element in value]
    return loaded(value, parameter, False)


class _LbfgsStep:
    """One call of `LBFGS.step`."""

    def __init__(self, optimizer: LBFGS, group: dict[str, Any], closure: Callable[[], Any]) -> None:
        self.group, self.closure = group, closure
        self.parameters: list[Tensor] = group["params"]
        self.memory = optimizer.memory()
        self.start: list[Tensor] = []

    def run(self) -> Any:
        group, memory = self.group, self.memory
        first, now = self._evaluate(memory.step)
        evaluations = 1
        if now.rest.largest <= group["tolerance_grad"]:
            return first
        for turn in range(1, group["max_iter"] + 1):
            slope = memory.turn(now)
            rate = float(group["lr"])
            if memory.turns == 1:
                rate *= min(1.0, 1.0 / now.rest.total)
            memory.step = rate
            if slope > -group["tolerance_change"]:
                break
            before = now
            if group["line_search_fn"] is None:
                self._begin()
                if turn == group["max_iter"]:
                    self._move(rate)
                    break
                now, count = self._try(rate), 1
            else:
                now, count = self._search(before, slope, rate, group["max_eval"] - evaluations)
            evaluations += count
            if self._ends(before, now, turn, evaluations):
                break
        return first

    def _ends(self, before: Trial, now: Trial, turn: int, evaluations: int) -> bool:
        group = self.group
        return bool(
            turn == group["max_iter"]
            or evaluations >= group["max_eval"]
            or now.rest.largest <= group["tolerance_grad"]
            or abs(now.step) * now.reach <= group["tolerance_change"]
            or abs(now.loss - before.loss) < group["tolerance_change"]
        )

    def _search(self, before: Trial, slope: float, rate: float, most: int) -> tuple[Trial, int]:
        self._begin()
        start = Trial(0.0, before.loss, slope, 0.0, before.rest.at_start())
        last: list[Trial] = []

        def evaluate(step: float) -> Trial:
            last[:] = [self._try(step)]
            return last[0]

        point, count = strong_wolfe(evaluate, start, rate, most, self.group["tolerance_change"])
        self.memory.step = point.step
        if point is not last[0]:
            self._move(point.step)
        return point, count

    def _begin(self) -> None:
        self.start = [parameter.detach().clone() for parameter in self.parameters]

    def _move(self, step: float) -> None:
        """Parameters to that many directions from the start; the step is an argument."""
        direction = self.memory.direction
        parts = direction.split([p.numel() for p in self.parameters])
        scalar = Scalars().of(direction)
        for parameter, start, part in zip(self.parameters, self.start, parts):
            moved = widened(start) + (part * scalar(step, "step")).reshape(start.shape)
            parameter.write(to_dtype(moved.node, parameter.dtype), "step")

    def _try(self, step: float) -> Trial:
        self._move(step)
        try:
            return self._evaluate(step)[1]
        except BaseException:
            for parameter, start in zip(self.parameters, self.start):
                parameter.write(start.node, "step")
            raise

    def _evaluate(self, step: float) -> tuple[Any, Trial]:
        """The loss here, and what the host wants to know of it: one plan, one look."""
        with gradient_mode(True):
            loss = self.closure()
        gradient = cat([_flat(p.grad, p) for p in self.parameters])
        value = loss.detach() if isinstance(loss, Tensor) else tensor(float(loss))
        return loss, self.memory.look(value, gradient, step)


def _flat(value: Tensor | None, like: Tensor | None = None) -> Tensor:
    """One axis, float32 where it is a half type; zeros for no gradient."""
    if value is None:
        assert like is not None
        value = zeros_of(tuple(like.shape), dtype=like.dtype, device=like.device)
    return widened(value.detach()).reshape(-1)


def _check_line_search(name: Any) -> None:
    if name not in (None, "strong_wolfe"):
        raise ArgumentError(
            "LBFGS", "no such line search", expect="None or 'strong_wolfe'", actual=repr(name)
        )

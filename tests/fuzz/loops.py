"""Random training loops: plain ones against torch, compiled ones against plain ones to the bit.

A step is ``(phase, every, first, op, *numbers)``: what stands ``in`` a turn is one function, which
is compiled in some programs, what stands ``out`` follows it. It is done in each turn for which
``turn % every == first``, in a compiled function in each turn. Steps ``("set", name, value)`` come
first. The largest step left out is a whole setting; all have a default.
"""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

import tinygrad_cuda as tc
from tinygrad_cuda.engine.realize import realize_all

torch.set_num_threads(1)

LONG = {"cpu": 8000, "emu": 500, "cuda": 1000}

BATCH, WIDTH, HIDDEN, CLASSES = 6, 4, 5, 3
MODELS = (
    "mlp", "norm", "batch", "tied", "conv", "recurrent", "lstm", "gru", "embedding", "attention",
)  # fmt: skip
OPTIMIZERS = ("SGD", "momentum", "nesterov", "Adam", "AdamW", "RMSprop", "Adagrad")
LOSSES = ("mse", "mean", "square", "smooth", "classes", "weights", "logsumexp")
HIDDENS = ("exp", "tanh", "relu", "sigmoid", "product", "shift", "rows")
IN_PLACE = ("mul_", "add_", "tanh_", "relu_", "sigmoid_", "row", "column")
SCHEDULES = ("StepLR", "ExponentialLR", "CosineAnnealingLR", "LambdaLR")
# What a second stream of numbers adds, so that the rest of a seed's program stays.
MORE_OPTIMIZERS = ("Adamax", "NAdam", "RAdam", "Adadelta", "ASGD", "maximize", "decoupled")
MORE_SCHEDULES = {
    "MultiStepLR": {"milestones": [1, 3], "gamma": 0.5},
    "ConstantLR": {"factor": 0.5, "total_iters": 2},
    "LinearLR": {"start_factor": 0.3, "total_iters": 3},
    "PolynomialLR": {"total_iters": 4, "power": 2.0},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "cycle_momentum": False},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 40, "cycle_momentum": False},
}
SECONDS = ("SGD", "Adam", "RAdam", "NAdam")
WRITES = ("mul_", "sub_", "copy_", "data", "item")
DEFAULTS = {
    "model": "mlp", "optimizer": "SGD", "schedule": "StepLR", "double": True, "turns": 4,
    "compiled": False, "versions": False, "second": "SGD",
    "threads": False,
}  # fmt: skip

# Programs by kind; the driver sums them over a campaign.
events: dict[str, int] = {}

Step = tuple[Any, ...]
Place = tuple[int, int]


# Programs -----------------------------------------------------------------------------------------


def generate(seed: int) -> list[Step]:
    """Five of eight programs are plain, three are compiled."""
    dice = random.Random(seed)
    compiled = seed % 8 >= 5
    steps: list[Step] = [
        ("set", "seed", seed),
        ("set", "model", dice.choice(MODELS)),
        ("set", "optimizer", dice.choice(OPTIMIZERS)),
        ("set", "schedule", dice.choice(SCHEDULES)),
        ("set", "double", dice.random() < 0.8),
        ("set", "turns", dice.randint(3, 7)),
        ("set", "compiled", compiled),
        ("set", "versions", not compiled and dice.random() < 0.4),
    ]
    inside = lambda op, *numbers: steps.append(("in", *_when(dice, compiled), op, *numbers))  # noqa: E731
    inside("forward")
    for _ in range(dice.choice((0, 0, 1, 2))):
        inside("hidden", dice.choice(HIDDENS))
    if dice.random() < 0.5:
        inside("zero", dice.randrange(2), dice.random() < 0.7)
    passes = dice.choice((1, 1, 2, 2, 3))
    for _ in range(passes):
        inside("loss", dice.choice(LOSSES), dice.randrange(3))
        if dice.random() < 0.2:
            inside("forward")
    for number in range(passes):
        _odd_steps(dice, inside)
        retain = number < passes - 1 or dice.random() < 0.2
        if dice.random() < 0.25:
            inside("grad", number, dice.getrandbits(6), retain, dice.choice(("keep", "add")))
        elif dice.random() < 0.12:
            inside("penalty", number, dice.getrandbits(6))
        else:
            inside("backward", number, retain if dice.random() < 0.95 else not retain)
    if dice.random() < 0.3:
        inside("clip", dice.choice(("norm", "value")), dice.choice((0.1, 1.0)))
    if dice.random() < 0.9:
        inside("step")
    if dice.random() < 0.3:
        inside("ema")
    if dice.random() < 0.6:
        inside("zero", dice.randrange(2), dice.random() < 0.7)
    for _ in range(dice.randint(0, 5)):
        steps.append(("out", dice.randint(1, 4), dice.randrange(3), *_between(dice)))
    _widened(steps, random.Random(seed * 7919 + 1), compiled)
    steps = _stepped(steps, random.Random(seed * 104729 + 2), compiled)
    if random.Random(seed * 15485863 + 3).random() < 0.15:
        steps.append(("set", "threads", True))
    return steps


def _widened(steps: list[Step], dice: random.Random, compiled: bool) -> None:
    """Other optimizers and schedules, and steps at any place, in half of all programs."""
    if dice.random() < 0.5:
        return
    if dice.random() < 0.4:
        steps.append(("set", "optimizer", dice.choice(MORE_OPTIMIZERS)))
    if dice.random() < 0.4:
        steps.append(("set", "schedule", dice.choice(tuple(MORE_SCHEDULES))))
        steps.append(("out", 1, 0, "schedule"))
    places = [k for k, step in enumerate(steps) if step[0] == "in"]
    for _ in range(dice.randint(0, 2)):
        number = dice.randrange(8)
        choices: list[Step] = [
            ("second", "step"), ("second", "zero"), ("without", dice.random() < 0.5),
            ("scaled", number, dice.choice((8.0, 0.25))), ("accumulated", dice.choice((2, 3))),
        ]  # fmt: skip
        choices += [] if compiled else [("finite",)]
        steps.insert(dice.choice(places) + 1, ("in", *_when(dice, compiled), *dice.choice(choices)))
    for _ in range(dice.randint(0, 3)):
        number = dice.randrange(8)
        choices = [
            ("save",), ("restore",), ("after", number), ("option", dice.choice((0.0, 0.02))),
            ("forward hook",), ("clear state",), ("flip",),
        ]  # fmt: skip
        steps.append(("out", dice.randint(1, 4), dice.randrange(3), *dice.choice(choices)))


def _stepped(steps: list[Step], dice: random.Random, compiled: bool) -> list[Step]:
    """Several steps of two optimizers in a turn, and changes of either, in a third of programs."""
    if dice.random() < 0.66:
        return steps
    steps.append(("set", "second", dice.choice(SECONDS)))
    places = [k for k, step in enumerate(steps) if step[0] == "in"]
    for _ in range(dice.randint(1, 3)):
        choices: list[Step] = [("second", "step"), ("second", "step"), ("step",), ("schedule",)]
        steps.insert(dice.choice(places) + 1, ("in", *_when(dice, compiled), *dice.choice(choices)))
    for _ in range(dice.randint(0, 2)):
        change = dice.choice(("reload", "decay", "rate", "maximize", "clear", "moments"))
        which = dice.choice(("optimizer", "second", "second"))
        # A call that makes its state each time is refused after three: it is never replayed.
        every = dice.randint(2 if change == "clear" else 1, 4)
        steps.append(("out", every, dice.randrange(3), "change", which, change))
    return steps


def _when(dice: random.Random, compiled: bool) -> tuple[int, int]:
    every = 1 if compiled or dice.random() < 0.8 else dice.randint(2, 3)
    return every, dice.randrange(every)


def _odd_steps(dice: random.Random, inside: Callable[..., None]) -> None:
    """What seldom stands between two passes."""
    if dice.random() < 0.08:
        inside("in place", dice.choice(IN_PLACE), dice.randrange(3))
    if dice.random() < 0.08:
        # Not by `data`: torch then takes the new value for the gradient, and says nothing.
        inside("write", dice.choice([how for how in WRITES if how != "data"]), dice.randrange(8))
    if dice.random() < 0.08:
        inside("gradient", dice.choice(("mul_", "clone", "none", "new")), dice.randrange(8))


def _between(dice: random.Random) -> Step:
    number = dice.randrange(8)
    return dice.choice(
        [
            ("look", dice.choice(("weights", "gradients", "losses", "ema", "all")), number),
            ("freeze", number), ("unfreeze", number), ("rate", dice.choice((0.01, 0.05, 0.1))),
            ("schedule",), ("add",), ("remove", number), ("reload",), ("hook", number),
            ("unhook",), ("forget", number), ("write", dice.choice(WRITES), number), ("mode",),
            ("held", number), ("replace", number), ("zero", number % 2, number < 4),
        ]
    )  # fmt: skip


def show(program: list[Step]) -> str:
    return "\n".join(map(repr, program))


# Models -------------------------------------------------------------------------------------------


@functools.cache
def net_class(lib: Any) -> Any:
    """The Module of all models, in one of the two libraries."""
    nn, F = lib.nn, lib.nn.functional

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind
            self.extras = nn.ParameterList()
            getattr(self, f"make_{kind}", self.make_mlp)()
            # Found now: what compiled code computes the name of is refused.
            self.chosen = getattr(self, f"forward_{kind}")

        def make_mlp(self) -> None:
            self.first = nn.Linear(WIDTH, HIDDEN)
            self.last = nn.Linear(HIDDEN, CLASSES)
            if self.kind == "norm":
                self.between = nn.LayerNorm(HIDDEN)
            if self.kind == "batch":
                self.between = nn.BatchNorm1d(HIDDEN)

        def make_tied(self) -> None:
            self.first = nn.Linear(WIDTH, HIDDEN, bias=False)
            self.last = nn.Linear(WIDTH, CLASSES)

        def make_conv(self) -> None:
            self.first = nn.Conv2d(1, CLASSES, 2, padding=1)

        def make_recurrent(self) -> None:
            self.first = nn.Linear(WIDTH, WIDTH)
            self.last = nn.Linear(WIDTH, CLASSES)

        def make_lstm(self) -> None:
            self.first = nn.LSTM(WIDTH, WIDTH, bidirectional=True)
            self.last = nn.Linear(2 * WIDTH, CLASSES)

        def make_gru(self) -> None:
            self.first = nn.GRU(WIDTH, WIDTH, 2)
            self.last = nn.Linear(WIDTH, CLASSES)

        def make_embedding(self) -> None:
            self.first = nn.Embedding(CLASSES, WIDTH)
            self.last = nn.Linear(WIDTH, CLASSES)

        def make_attention(self) -> None:
            self.first = nn.Linear(WIDTH, 3 * WIDTH)
            self.last = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any, labels: Any) -> Any:
            result = self.chosen(x, labels)
            for extra in self.extras:
                result = result * (1 + extra)
            return result

        def forward_mlp(self, x: Any, labels: Any) -> Any:
            return self.last(F.tanh(self.first(x)))

        def forward_norm(self, x: Any, labels: Any) -> Any:
            return self.last(F.gelu(self.between(self.first(x))))

        def forward_batch(self, x: Any, labels: Any) -> Any:
            return self.last(F.softplus(self.between(self.first(x))))

        def forward_tied(self, x: Any, labels: Any) -> Any:
            return self.last(lib.tanh(self.first(x)) @ self.first.weight)

        def forward_conv(self, x: Any, labels: Any) -> Any:
            return F.silu(self.first(x.reshape(BATCH, 1, 2, 2))).mean((2, 3))

        def forward_recurrent(self, x: Any, labels: Any) -> Any:
            state = x
            for _ in range(3):
                state = lib.tanh(self.first(state) + x)
            return self.last(state)

        def forward_lstm(self, x: Any, labels: Any) -> Any:
            output, (_, memory) = self.first(lib.stack([x, x.sin(), x * 0.5]))
            return self.last(output[1]) + memory.mean()

        def forward_gru(self, x: Any, labels: Any) -> Any:
            return self.last(self.first(lib.stack([x, x.sin(), x * 0.5]))[1][-1])

        def forward_embedding(self, x: Any, labels: Any) -> Any:
            return self.last(lib.sin(self.first(labels) + x))

        def forward_attention(self, x: Any, labels: Any) -> Any:
            q, k, v = self.first(x).chunk(3, -1)
            return self.last(F.softmax(q @ k.T / 2, -1) @ v)

    return Net


def loss_of(lib: Any, kind: str, h: Any, world: World, batch: Any) -> Any:
    F, (_, y, labels) = lib.nn.functional, batch
    if kind == "mse":
        return F.mse_loss(h, y)
    if kind == "mean":
        return h.mean()
    if kind == "square":
        return (h * h).mean()
    if kind == "smooth":
        return F.smooth_l1_loss(h, y)
    if kind == "classes":
        return F.cross_entropy(h, labels)
    if kind == "logsumexp":
        return lib.logsumexp(h, -1).mean()
    return sum((p * p).sum() for p in world.model.parameters()) * 0.01


def hidden_of(lib: Any, kind: str, h: Any) -> Any:
    if kind == "product":
        return h * h.detach()
    if kind == "shift":
        return h + 1
    if kind == "rows":
        return lib.cat([h[:2] * 0.5, h[2:]])
    functions = {"exp": lib.exp, "tanh": lib.tanh, "relu": lib.relu, "sigmoid": lib.sigmoid}
    return functions[kind](h * 0.5)


# One run ------------------------------------------------------------------------------------------


class Stop(Exception):
    """The program ends here: torch has refused the next step, where we need not."""


class Turn:
    """What one turn has made: hidden values, losses, and gradients that were asked for."""

    def __init__(self) -> None:
        self.hidden: list[Any] = []
        self.losses: list[Any] = []
        self.found: list[Any] = []


class Result(NamedTuple):
    """What was seen, and where and why the run ended early."""

    seen: list[tuple[str, Any]]
    place: Place | None
    error: str | None


class World:
    """The state of a training run in one of the two libraries."""

    def __init__(self, lib: Any, options: dict[str, Any], device: str) -> None:
        self.lib, self.device = lib, device
        self.numbers = np.random.default_rng(options.get("seed", 0))
        self.dtype = lib.float64 if options["double"] else lib.float32
        self.model = net_class(lib)(options["model"]).to(device=device, dtype=self.dtype)
        with lib.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(self.tensor(self.numbers.normal(size=tuple(parameter.shape)) * 0.5))
        self.parameters = list(self.model.parameters())
        self.optimizer = self.make_optimizer(options["optimizer"])
        self.schedule = self.make_schedule(options["schedule"])
        self.ema = [p.detach().clone() for p in self.parameters]
        self.hooks: list[Any] = []
        self.held: list[Any] = []
        self.saved: Any = None
        self.second = self.make_second(options["second"])

    def tensor(self, values: Any) -> Any:
        return self.lib.tensor(values, dtype=self.dtype, device=self.device)

    def make_optimizer(self, name: str) -> Any:
        optim, parameters = self.lib.optim, self.parameters
        if name == "momentum":
            return optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
        if name == "nesterov":
            return optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)
        if name == "ASGD":
            return optim.ASGD(parameters, lr=0.05, t0=2.0)
        if name == "maximize":
            return optim.Adam(parameters, lr=0.01, eps=0.1, maximize=True, weight_decay=0.1)
        if name == "decoupled":
            return optim.RAdam(
                parameters, lr=0.05, eps=0.1, weight_decay=0.1, decoupled_weight_decay=True
            )
        # Gradients that are zero but for rounding must not decide a step: eps is large.
        options = {"SGD": {}, "Adam": {"eps": 0.1, "amsgrad": True}}.get(name, {"eps": 0.1})
        return getattr(optim, name)(parameters, lr=0.05, **options)

    def make_second(self, name: str) -> Any:
        options = {"momentum": 0.5} if name == "SGD" else {"eps": 0.1}
        return getattr(self.lib.optim, name)(self.parameters[::2], lr=0.02, **options)

    def make_schedule(self, name: str) -> Any:
        schedules: Any = self.lib.optim.lr_scheduler
        if name in MORE_SCHEDULES:
            return getattr(schedules, name)(self.optimizer, **MORE_SCHEDULES[name])
        if name == "StepLR":
            return schedules.StepLR(self.optimizer, 2, gamma=0.5)
        if name == "ExponentialLR":
            return schedules.ExponentialLR(self.optimizer, 0.8)
        if name == "CosineAnnealingLR":
            return schedules.CosineAnnealingLR(self.optimizer, 5)
        return schedules.LambdaLR(self.optimizer, lambda turn: 1 / (1 + turn))

    def parameter(self, number: int) -> Any:
        return self.parameters[number % len(self.parameters)]

    def batch(self) -> Any:
        x, y = self.numbers.normal(size=(BATCH, WIDTH)), self.numbers.normal(size=(BATCH, CLASSES))
        labels = self.numbers.integers(0, CLASSES, BATCH)
        return self.tensor(x), self.tensor(y), self.lib.tensor(labels, device=self.device)

    # Inside a turn --------------------------------------------------------------------------------

    def inside(self, turn: Turn, batch: Any, op: str, *numbers: Any) -> None:
        if op == "forward":
            turn.hidden.append(self.model(batch[0], batch[2]))
        elif op == "zero":
            (self.model if numbers[0] else self.optimizer).zero_grad(set_to_none=numbers[1])
        elif op == "step":
            self.optimizer.step()
        elif op == "schedule":
            self.schedule.step()
        elif op == "clip":
            self.clip(*numbers)
        elif op == "ema":
            with self.lib.no_grad():
                for mine, parameter in zip(self.ema, self.parameters):
                    mine.mul_(0.9).add_(parameter, alpha=0.1)
        elif op == "write":
            self.write(*numbers)
        elif op == "gradient":
            self.gradient(*numbers)
        elif op == "second":
            self.second.step() if numbers[0] == "step" else self.second.zero_grad()
        elif op == "accumulated":
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(numbers[0])
        elif op == "finite":
            if all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None):
                self.optimizer.step()
        elif op == "without":
            with self.lib.no_grad():
                found = self.model(batch[0] * 2, batch[2])
                turn.found.append(found.mean() if numbers[0] else found)
        elif turn.hidden:
            self.with_hidden(turn, batch, op, *numbers)

    def with_hidden(self, turn: Turn, batch: Any, op: str, *numbers: Any) -> None:
        if op == "hidden":
            turn.hidden.append(hidden_of(self.lib, numbers[0], turn.hidden[-1]))
        elif op == "in place":
            self.in_place(turn.hidden[numbers[1] % len(turn.hidden)], numbers[0])
        elif op == "loss":
            h = turn.hidden[numbers[1] % len(turn.hidden)]
            turn.losses.append(loss_of(self.lib, numbers[0], h, self, batch))
        elif turn.losses:
            loss = turn.losses[numbers[0] % len(turn.losses)]
            if op == "backward":
                loss.backward(retain_graph=numbers[1])
            elif op == "scaled":
                (loss * numbers[1]).backward(retain_graph=True)
                for parameter in self.parameters:
                    if parameter.grad is not None:
                        parameter.grad /= numbers[1]
            elif op == "penalty":
                wanted = self.wanted(numbers[1])
                found = self.lib.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
                penalty = sum((g * g).sum() for g in found if g is not None) * 0.1
                (loss + penalty).backward()
            else:
                self.grad(turn, loss, *numbers[1:])

    def wanted(self, mask: int) -> list[Any]:
        found = [p for k, p in enumerate(self.parameters) if mask >> k & 1 and p.requires_grad]
        return found or [p for p in self.parameters if p.requires_grad]

    def grad(self, turn: Turn, loss: Any, mask: int, retain: bool, use: str) -> None:
        wanted = self.wanted(mask)
        found = self.lib.autograd.grad(loss, wanted, retain_graph=retain, allow_unused=True)
        for parameter, g in zip(wanted, found):
            if g is not None and use == "add":
                parameter.grad = g if parameter.grad is None else parameter.grad + g
            elif g is not None:
                turn.found.append(g)

    def in_place(self, h: Any, how: str) -> None:
        if how == "row":
            h[0] = 0
        elif how == "column":
            h[:, 1:] *= 0.5
        elif how == "add_":
            h.add_(1)
        elif how == "mul_":
            h.mul_(0.5)
        elif how == "tanh_":
            h.tanh_()
        elif how == "relu_":
            h.relu_()
        else:
            h.sigmoid_()

    def clip(self, how: str, limit: float) -> None:
        utils = self.lib.nn.utils
        found = [p for p in self.parameters if p.grad is not None]
        if not found:
            return
        if how == "norm":
            utils.clip_grad_norm_(found, limit)
        else:
            utils.clip_grad_value_(found, limit)

    def write(self, how: str, number: int) -> None:
        parameter = self.parameter(number)
        if how == "data":
            parameter.data.mul_(0.9)
            return
        with self.lib.no_grad():
            if how == "mul_":
                parameter.mul_(0.9)
            elif how == "sub_":
                parameter -= 0.01
            elif how == "copy_":
                parameter.copy_(parameter.detach() * 0.95)
            else:
                parameter[0] = 0.1

    def gradient(self, how: str, number: int) -> None:
        parameter = self.parameter(number)
        if how == "new":
            parameter.grad = self.lib.ones_like(parameter.detach())
        elif parameter.grad is None:
            return
        elif how == "mul_":
            parameter.grad.mul_(0.5)
        elif how == "clone":
            parameter.grad = parameter.grad.clone()
        else:
            parameter.grad = None

    # Between turns --------------------------------------------------------------------------------

    def between(self, op: str, *numbers: Any) -> None:
        if op == "freeze":
            self.parameter(numbers[0]).requires_grad_(False)
        elif op == "unfreeze":
            self.parameter(numbers[0]).requires_grad_(True)
        elif op == "rate":
            self.optimizer.param_groups[0]["lr"] = numbers[0]
        elif op == "schedule":
            self.schedule.step()
        elif op == "add":
            self.add()
        elif op == "remove":
            parameters = self.optimizer.param_groups[0]["params"]
            gone = self.parameter(numbers[0])
            parameters[:] = [p for p in parameters if p is not gone]
            self.optimizer.state.pop(gone, None)
            self.add_missing_state(self.optimizer)  # of one in a later group, which stays
        elif op == "replace":
            # Of another object, with which the optimizer has nothing to do.
            self.replace(numbers[0])
        elif op == "reload":
            self.reload()
        elif op == "hook":
            parameter = self.parameter(numbers[0])
            if parameter.requires_grad:
                self.hooks.append(parameter.register_hook(lambda g: g * 0.5))
        elif op == "unhook":
            if self.hooks:
                self.hooks.pop().remove()
        elif op == "forget":
            self.parameter(numbers[0]).grad = None
        elif op == "write":
            self.write(*numbers)
        elif op == "mode":
            self.model.train(not self.model.training)
        elif op == "zero":
            (self.model if numbers[0] else self.optimizer).zero_grad(set_to_none=numbers[1])
        elif op in ("save", "restore"):
            self.keep(op)
        elif op == "after":
            parameter = self.parameter(numbers[0])
            if parameter.requires_grad:
                self.hooks.append(parameter.register_post_accumulate_grad_hook(halve))
        elif op == "forward hook":
            self.hooks.append(self.model.register_forward_hook(lambda m, x, result: result * 0.9))
        elif op == "option":
            self.optimizer.param_groups[0]["weight_decay"] = numbers[0]
        elif op == "clear state":
            self.clear(self.second)
        elif op == "change":
            self.change(getattr(self, numbers[0]), numbers[1])
        elif op == "flip":
            for part in self.model.children():
                part.train(not part.training)
        elif op == "held":
            self.held.append(self.parameter(numbers[0]).detach().clone())

    def change(self, optimizer: Any, how: str) -> None:
        """What a program does to an optimizer between two turns."""
        group = optimizer.param_groups[0]
        if how == "reload":
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        elif how == "decay":
            group["weight_decay"] = 0.1 - group["weight_decay"]
        elif how == "rate":
            group["lr"] *= 0.5
        elif how == "maximize":
            group["maximize"] = not group["maximize"]
        elif how == "clear":
            self.clear(optimizer)
        else:
            for state in optimizer.state.values():
                for key in ("exp_avg", "momentum_buffer", "square_avg"):
                    if state.get(key) is not None:
                        state[key] = state[key] * 0.5

    def clear(self, optimizer: Any) -> None:
        optimizer.state.clear()
        self.add_missing_state(optimizer)

    def add_missing_state(self, optimizer: Any) -> None:
        """Before torch 2.13 Adagrad makes its state in the constructor only."""
        if self.lib is torch and type(optimizer).__name__ == "Adagrad":
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    zeros = {"step": torch.tensor(0.0), "sum": torch.zeros_like(parameter.detach())}
                    optimizer.state[parameter] = optimizer.state.get(parameter) or zeros

    def add(self) -> None:
        extra = self.lib.nn.Parameter(self.tensor([0.1, -0.2, 0.3]))
        self.model.extras.append(extra)
        self.optimizer.add_param_group({"params": [extra], "lr": 0.02})
        self.add_missing_state(self.optimizer)
        self.schedule = self.make_schedule("ExponentialLR")
        self.parameters.append(extra)
        self.ema.append(extra.detach().clone())

    def replace(self, number: int) -> None:
        """A parameter's value by its ``data``, of which the optimizer's state stays."""
        parameter = self.parameter(number)
        parameter.data = self.tensor(self.numbers.normal(size=tuple(parameter.shape)) * 0.3)

    def keep(self, op: str) -> None:
        """Goes back to weights and state of an earlier turn, if nothing was added since."""
        parts = (self.model, self.optimizer, self.schedule)
        if op == "save":
            self.saved = len(self.parameters), copy.deepcopy([x.state_dict() for x in parts])
        elif self.saved is not None and self.saved[0] == len(self.parameters):
            for part, state in zip(parts, copy.deepcopy(self.saved[1])):
                part.load_state_dict(state)

    def reload(self) -> None:
        states = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        self.model.load_state_dict(states[0])
        self.optimizer.load_state_dict(states[1])

    def look(self, what: str, kept: list[Any]) -> list[tuple[str, Any]]:
        seen: list[tuple[str, Any]] = []
        if what in ("weights", "all"):
            seen += [(f"weight {k}", value_of(p)) for k, p in enumerate(self.parameters)]
            seen += [(f"buffer {name}", value_of(b)) for name, b in self.model.named_buffers()]
            seen += [(f"held {k}", value_of(x)) for k, x in enumerate(self.held)]
        if what in ("gradients", "all"):
            seen += [(f"gradient {k}", value_of(p.grad)) for k, p in enumerate(self.parameters)]
        if what in ("losses", "all"):
            seen += [(f"loss {k}", value_of(x)) for k, x in enumerate(kept)]
        if what in ("ema", "all"):
            seen += [(f"ema {k}", value_of(x)) for k, x in enumerate(self.ema)]
        return seen


def halve(parameter: Any) -> None:
    """A hook for gradients that have arrived."""
    parameter.grad.mul_(0.5)


def value_of(tensor: Any) -> Any:
    return None if tensor is None else np.array(tensor.detach().cpu().numpy())


def run(
    lib: Any, program: list[Step], device: str, compiled: bool = False, stop: Place | None = None
) -> Result:
    """Runs a program up to `stop`, or to the first step that raises."""
    options = {**DEFAULTS, **{step[1]: step[2] for step in program if step[0] == "set"}}
    steps = [(k, *step) for k, step in enumerate(program) if step[0] != "set"]
    world = World(lib, options, device)
    seen: list[tuple[str, Any]] = []
    kept: list[Any] = []
    place: Place | None = None
    error: str | None = None
    one_program = options["compiled"]

    def inner(x: Any, y: Any, labels: Any) -> Any:
        turn = Turn()
        for _, phase, _, _, op, *numbers in steps:
            if phase == "in":
                world.inside(turn, (x, y, labels), op, *numbers)
        return [value.detach() for value in (*turn.losses, *turn.found)]

    def turns() -> None:
        nonlocal place
        call = lib.compile(inner) if compiled else inner
        for number in range(options["turns"]):
            batch, turn = world.batch(), Turn()
            if one_program:
                place = number, -1
                if place == stop:
                    raise Stop
                kept.extend(call(*batch))
                if lib is tc:
                    # Where a compiled call ends a plan: NumPy sums in the order of memory, which
                    # a cut changes.
                    realize_all()
            for k, phase, every, first, op, *numbers in steps:
                if number % every != first % every or (one_program and phase == "in"):
                    continue
                place = number, k
                if place == stop:
                    raise Stop
                if phase == "in":
                    world.inside(turn, batch, op, *numbers)
                elif op == "look":
                    seen.extend(world.look(numbers[0], kept))
                elif options["threads"]:
                    _elsewhere(lambda: world.between(op, *numbers))  # noqa: B023
                else:
                    world.between(op, *numbers)
            kept.extend(value.detach() for value in (*turn.losses, *turn.found))
        place = None

    try:
        turns()
    except Stop:
        pass
    except Exception as found:
        error = f"{type(found).__name__}: {found}"
    if error is None and stop is None:
        seen += world.look("all", kept)
    else:
        # A pass that was refused half-way has left gradients in torch, none here.
        world.look("all", kept)
        seen += world.look("weights", kept) + world.look("losses", kept) if not one_program else []
    return Result(seen, place, error)


def _elsewhere(function: Callable[[], None]) -> None:
    """Calls a function in another thread, where what it records waits; raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


# Comparing ----------------------------------------------------------------------------------------


def check(program: list[Step], device: str) -> str | None:
    """Against torch to rounding; where the program is compiled, against itself to the bit."""
    options = {**DEFAULTS, **{step[1]: step[2] for step in program if step[0] == "set"}}
    kind = "with versions checked" if options["versions"] else "plain"
    events[f"programs {'compiled' if options['compiled'] else kind}"] = 1
    # Optimizers of torch keep rates and their products in the default dtype.
    torch.set_default_dtype(torch.float64 if options["double"] else torch.float32)
    try:
        expected = run(torch, program, "cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    versions = "modified by an inplace operation" in (expected.error or "")
    free = versions and not options["versions"]
    stop = expected.place if free else None
    with tc.autograd.check_versions(options["versions"]):
        plain = run(tc, program, device, stop=stop)
    difference = compared(expected, plain, options, stop)
    if difference or not options["compiled"]:
        return difference
    again = run(tc, program, device, compiled=True, stop=stop)
    if (again.place, bool(again.error)) != (plain.place, bool(plain.error)):
        return f"compiled-raised: {again.error}\nplain: {plain.error}"
    for (name, a), (_, b) in zip(plain.seen, again.seen, strict=True):
        if (a is None) != (b is None) or (a is not None and a.tobytes() != b.tobytes()):
            return f"compiled: {name} is\n{b}\nplain:\n{a}"
    return None


def compared(
    expected: Result, actual: Result, options: dict[str, Any], stop: Place | None
) -> str | None:
    if stop is None and (expected.error is None) != (actual.error is None):
        kind = "raised" if actual.error else "not-raised"
        return f"{kind}: {actual.place} {actual.error}\ntorch: {expected.place} {expected.error}"
    if expected.error and expected.place != actual.place:
        where = f"{actual.place} {actual.error}\ntorch: {expected.place} {expected.error}"
        return f"raised-elsewhere: {where}"
    if [name for name, _ in expected.seen] != [name for name, _ in actual.seen]:
        return f"names: {[n for n, _ in actual.seen]}\ntorch: {[n for n, _ in expected.seen]}"
    rtol = 1e-8 if options["double"] else 2e-3
    for (name, a), (_, b) in zip(expected.seen, actual.seen):
        if (a is None) != (b is None):
            return f"none: {name} is {b}\ntorch: {a}"
        if a is None:
            continue
        if a.shape != b.shape:
            return f"shape: {name} is {b.shape}, torch {a.shape}"
        size = float(np.abs(a).max()) if a.size else 0.0
        if not math.isfinite(size) or size > 1e4:
            return None  # what follows is noise
        if not np.allclose(a, b, rtol=rtol, atol=rtol * max(size, 0.1), equal_nan=True):
            return f"value: {name} is\n{b}\ntorch:\n{a}"
    return None

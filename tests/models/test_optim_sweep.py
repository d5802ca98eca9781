"""Every optimizer by every two of its arguments against torch.

In a run of twelve steps a gradient is None at first and later now and then, a parameter joins in a
group of its own, and a fresh optimizer takes the state of torch's `state_dict`.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)

# Values of each argument that are not its default.
VALUES: dict[str, list[Any]] = {
    "lr": [0.03], "momentum": [0.9], "dampening": [0.5], "weight_decay": [0.1], "nesterov": [True],
    "maximize": [True], "betas": [(0.8, 0.95)], "eps": [1e-3], "amsgrad": [True], "alpha": [0.9],
    "centered": [True], "rho": [0.8], "lr_decay": [0.1], "initial_accumulator_value": [0.5],
    "momentum_decay": [0.1], "decoupled_weight_decay": [True], "lambd": [0.1], "t0": [3.0],
    "etas": [(0.6, 1.5)], "step_sizes": [(1e-3, 0.05)], "beta2_decay": [-0.5], "d": [0.5],
    "ns_coefficients": [(2.0, -1.5, 0.5)], "ns_steps": [3],
    "adjust_lr_fn": ["original", "match_rms_adamw"],
    "foreach": [True, False],
}  # fmt: skip
EPS_OF_ADAFACTOR = [(1e-6, 1e-2)]
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach"),
    "Adam": (
        "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay",
        "foreach",
    ),
    "AdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach"),
    "Adamax": ("lr", "betas", "eps", "weight_decay", "maximize", "foreach"),
    "NAdam": (
        "lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay",
        "maximize", "foreach",
    ),
    "RAdam": (
        "lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize", "foreach",
    ),
    "RMSprop": (
        "lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize", "foreach",
    ),
    "Rprop": ("lr", "etas", "step_sizes", "maximize", "foreach"),
    "Adagrad": (
        "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize", "foreach",
    ),
    "Adadelta": ("lr", "rho", "eps", "weight_decay", "maximize", "foreach"),
    "ASGD": ("lr", "lambd", "alpha", "t0", "weight_decay", "maximize", "foreach"),
    "Adafactor": ("lr", "beta2_decay", "eps", "d", "weight_decay", "maximize", "foreach"),
    "Muon": (
        "lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps",
        "adjust_lr_fn",
    ),
}  # fmt: skip
STEPS, JOINS, LOADS = 12, 4, 8
# Of each parameter the steps at which it has no gradient; the second has none before its second.
ABSENT = ({5, 9}, {0, 1, 6}, {7})


def choices(kind: str, argument: str) -> list[Any]:
    return EPS_OF_ADAFACTOR if (kind, argument) == ("Adafactor", "eps") else VALUES[argument]


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, arguments in ARGUMENTS.items():
        yield kind, {}
        for count in (1, 2):
            for names in itertools.combinations(arguments, count):
                for values in itertools.product(*(choices(kind, name) for name in names)):
                    yield kind, dict(zip(names, values, strict=True))
    yield "SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}
    yield "SGD", {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}
    yield "RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True}
    yield "Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True, "betas": (0.8, 0.95)}
    yield "AdamW", {"amsgrad": True, "weight_decay": 0.1, "maximize": True, "eps": 1e-3}


class Run:
    """One library's parameters and optimizer."""

    def __init__(
        self, lib: Any, kind: str, options: dict[str, Any], dtype: Any, start: list[Any]
    ) -> None:
        self.lib, self.kind, self.options, self.dtype = lib, kind, options, dtype
        self.parameters = [self._parameter(array) for array in start]
        self.optimizer = self.fresh()

    def tensor(self, array: Any) -> Any:
        like = {} if self.lib is torch else {"device": "cpu"}
        return self.lib.tensor(array, dtype=getattr(self.lib, self.dtype), **like)

    def _parameter(self, array: Any) -> Any:
        return self.lib.nn.Parameter(self.tensor(array))

    def fresh(self) -> Any:
        return getattr(self.lib.optim, self.kind)(self.parameters[:2], **self.options)

    def join(self) -> None:
        self.optimizer.add_param_group({"params": [self.parameters[2]], "lr": 0.02})

    def step(self, gradients: list[Any]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else self.tensor(gradient)
        self.optimizer.step()

    def values(self) -> list[Any]:
        return [parameter.detach().numpy().copy() for parameter in self.parameters]


def in_numpy(state: Any) -> Any:
    """torch's state with arrays for Tensors."""
    if isinstance(state, torch.Tensor):
        return state.numpy().copy()
    if isinstance(state, dict):
        return {key: in_numpy(value) for key, value in state.items()}
    return [in_numpy(value) for value in state] if isinstance(state, list) else state


def loaded(ours: Run, theirs: Run, by_file: bool) -> None:
    """A fresh optimizer of ours takes torch's state, of a file or of arrays."""
    ours.optimizer = ours.fresh()
    ours.join()
    state = theirs.optimizer.state_dict()
    if not by_file:
        ours.optimizer.load_state_dict(in_numpy(state))
        return
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    ours.optimizer.load_state_dict(tc.load(file))


def refused(kind: str, options: dict[str, Any]) -> bool:
    """Whether torch refuses the arguments; then so do we."""
    runs = 0
    for lib in (torch, tc):
        try:
            Run(lib, kind, options, "float32", [np.ones((2, 2))] * 3)
        except (ValueError, RuntimeError):
            runs += 1
    assert runs in (0, 2), (kind, options)
    return runs == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_steps_of_every_two_arguments(kind: str, dtype: str) -> None:
    if kind == "Adagrad" and OLDER:
        pytest.skip("before torch 2.13 Adagrad takes no group after its first step")
    # torch's Muon iterates in bfloat16, whatever the parameters are.
    tolerance = 1e-2 if kind == "Muon" else 1e-5 if dtype == "float32" else 1e-9
    count = 0
    for number, (name, options) in enumerate(cases()):
        if name != kind or refused(kind, options):
            continue
        count += 1
        rng = np.random.default_rng(number)
        shapes = ((4, 3), (3, 2), (2, 5)) if kind == "Muon" else ((4, 3), (3,), (2, 2))
        start = [rng.standard_normal(shape) for shape in shapes]
        theirs, ours = (Run(lib, kind, options, dtype, start) for lib in (torch, tc))
        for step in range(STEPS):
            if step == JOINS:
                theirs.join()
                ours.join()
            if step == LOADS:
                loaded(ours, theirs, by_file=bool(number % 2))
            gradients = [
                None if step in ABSENT[k] or (k == 2 and step < JOINS) else rng.standard_normal(s)
                for k, s in enumerate(shapes)
            ]
            for run in (theirs, ours):
                run.step(gradients)
            for k, (one, other) in enumerate(zip(ours.values(), theirs.values(), strict=True)):
                np.testing.assert_allclose(
                    one, other, rtol=1e-5, atol=tolerance,
                    err_msg=f"{kind} {options} step {step} parameter {k}",
                )  # fmt: skip
    assert count >= 15

"""Optimizers and schedules against torch, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.engine.plan import cache

torch = pytest.importorskip("torch")

rng = np.random.default_rng(2)
START = [rng.standard_normal((4, 3)), rng.standard_normal(3), rng.standard_normal((3, 1))]
X, Y = rng.standard_normal((16, 4)), rng.standard_normal((16, 1))


@pytest.fixture(autouse=True)
def default_dtype_restored() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "dampening": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "decay": ("SGD", {"lr": 0.05, "weight_decay": 0.1}),
    "decay, momentum": ("SGD", {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.01}),
    "all": (
        "SGD", {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    ),
    "maximize": ("SGD", {"lr": 0.01, "momentum": 0.5, "maximize": True}),
    "Adam": ("Adam", {"lr": 0.05}),
    "Adam, betas": ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3}),
    "Adam, decay": ("Adam", {"lr": 0.05, "weight_decay": 0.1}),
    "Adam, amsgrad": ("Adam", {"lr": 0.05, "amsgrad": True, "weight_decay": 0.01}),
    "Adam, maximize": ("Adam", {"lr": 0.01, "maximize": True}),
    "AdamW": ("AdamW", {"lr": 0.05}),
    "AdamW, decay": ("AdamW", {"lr": 0.05, "weight_decay": 0.2, "amsgrad": True}),
    "RMSprop": ("RMSprop", {}),
    "RMSprop, all": (
        "RMSprop",
        {"lr": 0.005, "alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.1},
    ),
    "RMSprop, maximize": ("RMSprop", {"maximize": True, "eps": 1e-3}),
    "Adagrad": ("Adagrad", {}),
    "Adagrad, all": (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    "Adagrad, maximize": ("Adagrad", {"maximize": True}),
    "Adadelta": ("Adadelta", {}),
    "Adadelta, all": ("Adadelta", {"lr": 0.7, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    "Adadelta, maximize": ("Adadelta", {"maximize": True}),
    "Adamax": ("Adamax", {}),
    "Adamax, all": ("Adamax", {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "Adamax, maximize": ("Adamax", {"maximize": True, "eps": 1e-3}),
    "NAdam": ("NAdam", {}),
    "NAdam, decay": ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.1}),
    "NAdam, decoupled": (
        "NAdam",
        {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    ),
    "RAdam": ("RAdam", {}),
    "RAdam, decay": ("RAdam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "RAdam, decoupled": (
        "RAdam",
        {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    ),
    "ASGD": ("ASGD", {}),
    "ASGD, averaging": (
        "ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 10, "weight_decay": 0.1},
    ),
    "ASGD, maximize": ("ASGD", {"maximize": True}),
    "Rprop": ("Rprop", {"lr": 0.01, "etas": (0.4, 1.3), "step_sizes": (1e-4, 0.1)}),
    "Adafactor": ("Adafactor", {"lr": 0.05, "weight_decay": 0.1, "d": 1.5}),
}  # fmt: skip


def loss_of(parameters: list[Any], x: Any, y: Any) -> Any:
    """A small network with a kinkless loss."""
    w1, b1, w2 = parameters
    difference = (x @ w1 + b1).tanh() @ w2 - y
    return (difference * difference).mean()


def trajectory(
    lib: Any, name: str, options: dict[str, Any], dtype: Any, steps: int, device: str = "cpu"
) -> list[list[Any]]:
    """The parameters after each step."""
    make = lib.tensor
    if lib is torch:
        # Host numbers of a torch state have its default dtype; ours are float64.
        torch.set_default_dtype(dtype)
    x, y = (make(a, dtype=dtype, device=device) for a in (X, Y))
    parameters = [make(a, dtype=dtype, device=device, requires_grad=True) for a in START]
    optimizer = getattr(lib.optim if lib is torch else optim, name)(parameters, **options)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(parameters, x, y).backward()
        optimizer.step()
        found.append([p.detach().cpu().numpy().copy() for p in parameters])
    return found


def assert_close(found: Any, wanted: Any, rtol: float, atol: float) -> None:
    for step, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=f"step {step}")


@pytest.mark.smoke("optim")
@pytest.mark.parametrize("name", VARIANTS)
def test_fifty_steps_as_torch(name: str) -> None:
    kind, options = VARIANTS[name]
    wanted = trajectory(torch, kind, options, torch.float64, 50)
    found = trajectory(tc, kind, options, tc.float64, 50)
    assert_close(found, wanted, 1e-9, 1e-12)


@pytest.mark.parametrize("name", ["all", "Adam, amsgrad"])
def test_steps_on_devices(name: str, device: str) -> None:
    """Scalars reach generated kernels as arguments; float32 as torch's."""
    kind, options = VARIANTS[name]
    steps = 50 if device != "emu" else 12
    wanted = trajectory(torch, kind, options, torch.float32, steps)
    found = trajectory(tc, kind, options, tc.float32, steps, device)
    assert_close(found, wanted, 1e-4, 1e-5)


def test_groups_with_options_and_late_gradients(on_cpu: None) -> None:
    """Groups keep their own rates; a parameter without gradient is left alone, and starts late."""

    def run(lib: Any, dtype: Any) -> list[Any]:
        parameters = [lib.tensor(a, dtype=dtype, requires_grad=True) for a in START]
        x, y = (lib.tensor(a, dtype=dtype) for a in (X, Y))
        kind = (lib.optim if lib is torch else optim).Adam
        optimizer = kind(
            [{"params": parameters[:1]}, {"params": parameters[1], "lr": 0.3}], lr=0.01
        )
        optimizer.add_param_group({"params": parameters[2:], "weight_decay": 0.5})
        for step in range(20):
            optimizer.zero_grad()
            loss_of(parameters, x, y).backward()
            if step < 5:
                parameters[2].grad = None
            optimizer.step()
        return [p.detach().numpy() for p in parameters]

    assert_close([run(tc, tc.float64)], [run(torch, torch.float64)], 1e-9, 1e-12)


# One of each kind, and SGD with momentum.
KINDS = {kind: name for name, (kind, _) in VARIANTS.items()} | {"SGD": "momentum"}


@pytest.mark.parametrize("name", KINDS.values())
def test_state_goes_on_elsewhere(name: str) -> None:
    """Half way, another optimizer takes over from `state_dict`, ours or torch's own."""
    kind, options = VARIANTS[name]
    wanted = trajectory(torch, kind, options, torch.float64, 20)[-1]
    x, y = (tc.tensor(a, device="cpu") for a in (X, Y))

    def turn(parameters: list[Any], optimizer: Any, x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss_of(parameters, x, y).backward()
        optimizer.step()

    theirs = [torch.tensor(a, requires_grad=True) for a in START]
    their_optimizer = getattr(torch.optim, kind)(theirs, **options)
    ours = [tc.tensor(a, device="cpu", requires_grad=True) for a in START]
    optimizer = getattr(optim, kind)(ours, **options)
    for _ in range(10):
        turn(theirs, their_optimizer, torch.tensor(X), torch.tensor(Y))
        turn(ours, optimizer, x, y)
    state = optimizer.state_dict()
    layout = their_optimizer.state_dict()
    assert state["state"].keys() == layout["state"].keys()
    assert all(state["state"][k].keys() == layout["state"][k].keys() for k in state["state"])
    assert state["param_groups"][0]["params"] == layout["param_groups"][0]["params"]

    again = [tc.tensor(p.detach(), requires_grad=True) for p in ours]
    successor = getattr(optim, kind)(again, lr=99.0)
    successor.load_state_dict(state)
    turn(ours, optimizer, x, y)  # what the first one does now must not reach the second
    for _ in range(10):
        turn(again, successor, x, y)
    assert_close([[p.detach().numpy() for p in again]], [wanted], 1e-9, 1e-12)


def test_half_precision_parameters_are_updated_in_float32() -> None:
    """A rate of 1e-3 and an eps of 1e-8 do not vanish in float16."""
    parameter = tc.ones(4, dtype=tc.float16, device="cpu", requires_grad=True)
    optimizer = optim.Adam([parameter], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        (parameter * parameter).sum().backward()
        optimizer.step()
    assert parameter.dtype is tc.float16
    assert optimizer.state[parameter]["exp_avg"].dtype is tc.float16
    np.testing.assert_allclose(parameter.detach().numpy(), 0.97, atol=2e-3)


def test_closure_runs_with_gradients() -> None:
    x = tc.tensor([2.0], device="cpu", requires_grad=True)
    optimizer = optim.SGD([x], lr=0.25)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    with tc.no_grad():
        assert optimizer.step(closure).item() == 4.0
    assert x.tolist() == [1.0]


def by_hand(name: str, options: dict[str, Any], steps: int) -> list[list[Any]]:
    """Lion and Muon in NumPy, as their papers write them; gradients by torch."""
    values = [a.copy() for a in (START if name == "Lion" else START[::2])]
    moments = [np.zeros_like(a) for a in values]
    found = []
    for _ in range(steps):
        leaves = [torch.tensor(a, requires_grad=True) for a in values]
        bias = [] if name == "Lion" else [torch.tensor(START[1])]
        loss_of([leaves[0], *bias, *leaves[1:]], torch.tensor(X), torch.tensor(Y)).backward()
        for p, m, leaf in zip(values, moments, leaves):
            g, lr, decay = leaf.grad.numpy(), options["lr"], options["weight_decay"]
            p *= 1 - lr * decay
            if name == "Lion":
                first, second = options["betas"]
                p -= lr * np.sign(first * m + (1 - first) * g)
                m[...] = second * m + (1 - second) * g
                continue
            mu = options["momentum"]
            m[...] = mu * m + (1 - mu) * g
            x = (1 - mu) * g + mu * m if options["nesterov"] else m.copy()
            x /= np.linalg.norm(x)
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            rows, columns = p.shape
            matched = options.get("adjust_lr_fn") == "match_rms_adamw"
            size = 0.2 * max(rows, columns) ** 0.5 if matched else max(1, rows / columns) ** 0.5
            p -= lr * size * x
        found.append([p.copy() for p in values])
    return found


def ours_of(name: str, options: dict[str, Any], steps: int, lib: Any, dtype: Any) -> list[Any]:
    """As `trajectory`; Muon gets the matrices only."""
    parameters = [lib.tensor(a, dtype=dtype, requires_grad=True) for a in START]
    x, y = (lib.tensor(a, dtype=dtype) for a in (X, Y))
    trained = parameters if name == "Lion" else parameters[::2]
    optimizer = getattr(lib.optim if lib is torch else optim, name)(trained, **options)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(parameters, x, y).backward()
        optimizer.step()
        found.append([p.detach().numpy().copy() for p in trained])
    return found


BY_HAND: list[tuple[str, dict[str, Any]]] = [
    ("Lion", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    ("Muon", {"lr": 0.02, "momentum": 0.95, "nesterov": True, "weight_decay": 0.1}),
    (
        "Muon",
        {"lr": 0.02, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0,
         "adjust_lr_fn": "match_rms_adamw"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BY_HAND)))
def test_fifty_steps_as_their_papers(case: int, on_cpu: None) -> None:
    name, options = BY_HAND[case]
    found = ours_of(name, options, 50, tc, tc.float64)
    assert_close(found, by_hand(name, options, 50), 1e-9, 1e-11)


@pytest.mark.parametrize("case", [k for k, (name, _) in enumerate(BY_HAND) if name == "Muon"])
def test_fifty_steps_of_muon_as_torch(
    case: int, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, with torch kept from iterating in bfloat16."""
    _, options = BY_HAND[case]
    found = ours_of("Muon", options, 50, tc, tc.float64)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    assert_close(found, ours_of("Muon", options, 50, torch, torch.float64), 1e-10, 1e-10)


def test_muon_as_torch_to_the_precision_of_bfloat16(on_cpu: None) -> None:
    """Both iterate in bfloat16, with roundings at other places."""
    options = {"lr": 0.02}
    (wanted,) = ours_of("Muon", options, 1, torch, torch.float32)
    (found,) = ours_of("Muon", options, 1, tc, tc.float32)
    for start, ours, theirs in zip(START[::2], found, wanted):
        moved = np.linalg.norm(theirs - start)
        assert moved > 0.01
        assert np.linalg.norm(ours - theirs) < 0.05 * moved


@pytest.mark.parametrize("name", [*KINDS.values(), "Lion", "Muon"])
def test_rates_and_counts_make_no_new_plan(name: str, on_cpu: None) -> None:
    """Thirty steps, a new rate each, across RAdam's turn and ASGD's: found plans only."""
    kind, options = VARIANTS.get(name, (name, {}))
    matrix = tc.tensor(START[0], requires_grad=True)
    optimizer = getattr(optim, kind)([matrix], **options)
    for step in range(30):
        if step == 3:
            before = cache.made
        optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
        optimizer.zero_grad()
        (matrix * matrix).sum().backward()
        optimizer.step()
    assert cache.made == before


# A step that fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("fails_at", [0, 2])
def test_failed_step_changes_nothing(kind: str, fails_at: int, on_cpu: None) -> None:
    """A bad label raises; parameters and state are those before, and training goes on."""
    options = {"lr": 0.1, "momentum": 0.9} if kind == "SGD" else {"lr": 0.1}

    def run(bad: bool) -> tuple[list[Any], Any]:
        tc.manual_seed(1)
        model = nn.Linear(3, 4)
        optimizer = getattr(optim, kind)(model.parameters(), **options)
        x = tc.tensor(rng_inputs)
        for step in range(4):
            if bad and step == fails_at:
                optimizer.zero_grad()
                wrong = nn.functional.cross_entropy(model(x), tc.tensor([0, 1, 7, 2, 3]))
                wrong.backward()
                with pytest.raises(tc.IndexError, match=r"target\[2\]"):
                    optimizer.step()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), tc.tensor([0, 1, 1, 2, 3])).backward()
            optimizer.step()
        return [p.tolist() for p in model.parameters()], optimizer.state_dict()["state"]

    rng_inputs = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    clean, with_error = run(False), run(True)
    assert clean[0] == with_error[0]
    for number, state in clean[1].items():
        for key, value in state.items():
            other = with_error[1][number][key]
            assert tc.equal(value, other) if isinstance(value, tc.Tensor) else value == other


def test_bad_label_is_reported_by_the_next_look(device: str) -> None:
    """Where steps run ahead of the program, a later call raises; the device survives it."""
    model = nn.Linear(3, 4)
    optimizer = optim.Adam(model.parameters())
    x, right = tc.ones(5, 3), tc.tensor([0, 1, 1, 2, 3])

    def step(labels: Any) -> Any:
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step(right)
    with pytest.raises(tc.IndexError, match=r"target\[2\](.|\n)*actual: 7"):
        step(tc.tensor([0, 1, 7, 2, 3])).item()
    optimizer.zero_grad()
    first = step(right).item()
    for _ in range(3):
        last = step(right).item()
    assert last < first
    assert optimizer.state[model.weight]["step"] in (5, 6)


@pytest.mark.parametrize("fails_at", [0, 2])
def test_failed_step_keeps_values_on_devices_that_run_ahead(fails_at: int, device: str) -> None:
    """Nothing that a step with a bad label computed stays in parameters or momentum."""

    def run(bad: bool) -> Any:
        tc.manual_seed(1)
        model = nn.Linear(3, 4)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = tc.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]])
        for step in range(4):
            if bad and step == fails_at:
                optimizer.zero_grad()
                wrong = nn.functional.cross_entropy(model(x), tc.tensor([0, 7]))
                wrong.backward()
                with pytest.raises(tc.IndexError, match=r"target\[1\]"):
                    optimizer.step()
                    wrong.item()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), tc.tensor([0, 1])).backward()
            optimizer.step()
        return [p.tolist() for p in model.parameters()]

    assert run(True) == run(False)


@pytest.mark.smoke("optim")
def test_refusals() -> None:
    x = tc.ones(2, device="cpu", requires_grad=True)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: optim.SGD([], lr=0.1), "there are no parameters"),
        (lambda: optim.SGD(x, lr=0.1), "an iterable of Tensors"),
        (lambda: optim.SGD([x, x], lr=0.1), r"params\[1\] is in a group already"),
        (lambda: optim.SGD([x * 2], lr=0.1), r"params\[0\] is the result of an operation"),
        (lambda: optim.SGD(["x"], lr=0.1), r"params\[0\] is no Tensor"),
        (lambda: optim.SGD([x], lr=-1.0), "lr is negative"),
        (lambda: optim.SGD([x], lr=0.1, nesterov=True), "Nesterov needs momentum"),
        (lambda: optim.Adam([x], betas=(1.0, 0.9)), "a beta is out of range"),
        (lambda: optim.RAdam([x], betas=(0.9, -0.1)), "a beta is out of range"),
        (lambda: optim.RMSprop([x], alpha=-0.1), "alpha is negative"),
        (lambda: optim.Adadelta([x], rho=1.5), "1 - rho is negative"),
        (lambda: optim.Muon([x]), "a parameter is no matrix"),
        (lambda: optim.Muon([x], adjust_lr_fn="best"), "no such rule"),
        (
            lambda: optim.SGD([x]).load_state_dict({"param_groups": [], "state": {}}),
            r"groups of \[1\] parameters",
        ),
    ]
    for call, text in cases:
        with pytest.raises(tc.ArgumentError, match=text):
            call()


def test_repr_lists_the_options() -> None:
    x = tc.ones(2, device="cpu", requires_grad=True)
    text = repr(optim.SGD([x], lr=0.5))
    assert text.startswith("SGD (\nParameter Group 0\n")
    assert "    lr: 0.5\n" in text

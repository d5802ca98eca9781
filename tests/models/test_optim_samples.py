"""torch's own inputs of its optimizers, handed to both libraries: their steps, and the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's module of samples needs it
collection = pytest.importorskip("torch.testing._internal.common_optimizers")

CHOICES = ("foreach", "fused", "capturable", "differentiable")
rng = np.random.default_rng(11)
START = [rng.standard_normal(shape) for shape in ((4, 3), (3,), (3, 1), (), (0, 2))]
X, Y = rng.standard_normal((8, 4)), rng.standard_normal((8, 1))


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """The inputs without keywords that only choose an implementation, each once."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for info in collection.optim_db:
        if info.only_supports_sparse_grads:
            continue
        for sample in info.optim_inputs_func(device="cpu"):
            options = {k: v for k, v in sample.kwargs.items() if k not in CHOICES}
            if not any(repr(options) == repr(o) and info.name == n for n, o in found.values()):
                found[f"{info.name}, {sample.desc}"] = info.name, options
    return found


CASES = cases()


def ours(value: Any) -> Any:
    """torch's option as ours."""
    if isinstance(value, torch.Tensor):
        return tc.tensor(value.numpy(), device="cpu")
    return tuple(map(ours, value)) if isinstance(value, tuple) else value


def loss_of(parameters: list[Any], x: Any, y: Any) -> Any:
    w1, b1, w2, scalar, *empty = parameters
    loss = (((x @ w1 + b1).tanh() @ w2 * scalar - y) ** 2).mean()
    return loss + sum((e * e).sum() for e in empty)


def trained(name: str) -> list[int]:
    """Which parameters an optimizer takes: Muon matrices, Adafactor (there) nothing empty."""
    return {"Muon": [0, 2], "Adafactor": [0, 1, 2, 3]}.get(name, [0, 1, 2, 3, 4])


class Run:
    """Parameters and their optimizer, in two groups where it takes several."""

    def __init__(self, lib: Any, name: str, options: dict[str, Any], dtype: str) -> None:
        kind = getattr(lib, dtype)
        make = {"dtype": kind, "device": "cpu"}
        self.x, self.y = (lib.tensor(a, **make) for a in (X, Y))
        self.parameters = [lib.tensor(a, requires_grad=True, **make) for a in START]
        own = [self.parameters[k] for k in trained(name)]
        self.groups: Any = own
        if name != "LBFGS":
            self.groups = [{"params": own[:1]}, {"params": own[1:], "lr": 0.02}]
        if lib is tc:
            options = {key: ours(value) for key, value in options.items()}
        self.optimizer = getattr(lib.optim, name)(self.groups, **options)
        self.name, self.steps = name, 0

    def turn(self) -> None:
        """One step; at every third the second matrix has no gradient."""

        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = loss_of(self.parameters, self.x, self.y)
            loss.backward()
            if self.steps % 3 == 2 and self.name != "LBFGS":
                self.parameters[2].grad = None
            return loss

        self.optimizer.step(closure)
        self.steps += 1

    def values(self) -> list[np.ndarray]:
        return [np.array(p.detach().numpy(), np.float64) for p in self.parameters]

    def trajectory(self, steps: int) -> list[list[np.ndarray]]:
        found = []
        for _ in range(steps):
            self.turn()
            found.append(self.values())
        return found


def distance(found: Any, wanted: Any) -> float:
    """The largest difference of a trajectory, relative to the largest number of its parameter."""
    worst = 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            if b.size:
                worst = max(worst, float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)))
    return worst


@pytest.fixture(autouse=True)
def double_numbers() -> Any:
    """Host numbers of a torch state have its default dtype; ours are float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


FIRST = {name: case for case, (name, _) in reversed(CASES.items())}


def length(case: str) -> int:
    """50 steps for the first input of each optimizer, 5 for others; LBFGS makes 20 in each.

    LBFGS is chaotic: after some fifty directions any rounding has grown to 1e-5.
    """
    name = CASES[case][0]
    return 2 if name == "LBFGS" else 50 if case == FIRST[name] else 5


@pytest.mark.parametrize("case", [c for c, (name, _) in CASES.items() if name != "Muon"])
def test_steps_as_torch(case: str) -> None:
    """float64 to 1e-10; float32 to 1e-5, or as near as torch's own."""
    name, options = CASES[case]
    wanted = Run(torch, name, options, "float64").trajectory(length(case))
    assert distance(Run(tc, name, options, "float64").trajectory(length(case)), wanted) <= 1e-10
    if case != FIRST[name]:
        return
    steps = 1 if name == "LBFGS" else 6
    found = Run(tc, name, options, "float32").trajectory(steps)
    theirs = Run(torch, name, options, "float32").trajectory(steps)
    own = distance(theirs, wanted[:steps])
    assert distance(found, wanted[:steps]) <= max(1e-5, 8 * own)


@pytest.mark.parametrize("case", [c for c, (name, _) in CASES.items() if name == "Muon"])
def test_muon_to_the_precision_of_bfloat16(case: str) -> None:
    """torch iterates in bfloat16 whatever the parameters are; roundings are at other places."""
    name, options = CASES[case]
    wanted = Run(torch, name, options, "float32").trajectory(8)
    found = Run(tc, name, options, "float32").trajectory(8)
    assert distance(found, wanted) <= 1e-2
    assert distance([START], wanted[-1:]) > 2e-2  # so much has moved


# States and errors -------------------------------------------------------------------------------


def as_arrays(value: Any, lib: Any) -> Any:
    """A state with the other library's tensors in place of its own."""
    if isinstance(value, dict):
        return {key: as_arrays(item, lib) for key, item in value.items()}
    if isinstance(value, list):
        return [as_arrays(item, lib) for item in value]
    return lib.tensor(value.detach().numpy()) if isinstance(value, tc.Tensor) else value


@pytest.mark.parametrize("case", [case for name, case in FIRST.items() if name != "Muon"])
def test_states_go_from_one_library_to_the_other(case: str) -> None:
    """After six steps each goes on from the other's `state_dict`, as if it were its own."""
    name, options = CASES[case]
    former = Run(torch, name, options, "float64"), Run(tc, name, options, "float64")
    steps = 1 if name == "LBFGS" else 6
    for run in former:
        run.trajectory(steps)
    other = {"lr": 0.5}
    later = Run(tc, name, other, "float64"), Run(torch, name, other, "float64")
    theirs, mine = (run.optimizer.state_dict() for run in former)
    assert theirs["state"].keys() == mine["state"].keys()
    assert mine["param_groups"][0].keys() <= theirs["param_groups"][0].keys()
    for number, state in theirs["state"].items():
        # The last is room for numbers of a step, and no state.
        assert mine["state"][number].keys() == state.keys() - {"al"}
    later[0].optimizer.load_state_dict(theirs)
    later[1].optimizer.load_state_dict(as_arrays(mine, torch))
    for number, (run, new) in enumerate(zip(former, later, strict=True)):
        new.steps = run.steps
        lib = (tc, torch)[number]
        for parameter, value in zip(new.parameters, run.values(), strict=True):
            with lib.no_grad():
                parameter.copy_(lib.tensor(value, dtype=lib.float64))
    wanted = former[0].trajectory(steps)
    for run in later:
        assert distance(run.trajectory(steps), wanted) <= 1e-9


# What torch refuses because of how it computes a step; here nothing depends on it.
TAKEN = ("as a Tensor is not supported for capturable=False", "betas must be either both")
OURS = {
    "params argument given to the optimizer": "an iterable of Tensors",
    "duplicate parameters": "in a group already",
    "some parameters appear in more": "in a group already|takes no further group",
    "Tensor lr must be 1-element": "Tensor lr must be 1-element",
    "should be with/without names": "with/without names|takes no further group",
    "rho": "rho",
    "epsilon1": "eps1",
    "Clipping threshold": "d - 1 is negative",
    "beta2_decay": "beta2_decay",
    "beta parameter": "a beta is out of range",
    "2D parameters": "no matrix",
    "Adjust learning rate": "no such rule",
    "eta values": "eta is out of range",
    "`fused` and `foreach`": "`fused` and `foreach` cannot be `True` together",
    "`fused` does not support": "`fused` does not support `differentiable`",
}


@pytest.mark.parametrize("name", FIRST)
def test_refusals_as_torch(name: str) -> None:
    """The same facts, as errors of construction; a duplicate is one, where torch warns."""
    (info,) = (info for info in collection.optim_db if info.name == name)
    seen = 0
    for error in info.optim_error_inputs_func(device="cpu", dtype=torch.float64):
        sample, text = error.optimizer_error_input, error.error_regex
        if "complex" in text or any(part in text for part in TAKEN):
            continue
        memo: dict[int, Any] = {}

        def given(value: Any, memo: dict[int, Any] = memo) -> Any:
            if isinstance(value, torch.Tensor):
                made = tc.tensor(value.detach().numpy(), device="cpu", requires_grad=True)
                return memo.setdefault(id(value), made)
            if isinstance(value, dict):
                return {key: given(item) for key, item in value.items()}
            return type(value)(map(given, value)) if isinstance(value, list | tuple) else value

        parameters = given(sample.params)
        if parameters is None:
            parameters = [tc.ones(2, 2, device="cpu", requires_grad=True)]
        fact = next((own for part, own in OURS.items() if part in text.replace("\\", "")), None)
        if fact is None:  # "Invalid NAME value: -1"
            fact = f"{text.split()[1]} is negative"
        with pytest.raises(tc.ArgumentError, match=fact):
            getattr(tc.optim, name)(parameters, **given(sample.kwargs))
        seen += 1
    assert seen >= 6


def one() -> Any:
    return tc.tensor([1.0], device="cpu", requires_grad=True)


def test_names_without_meaning_here() -> None:
    with pytest.raises(AttributeError, match="sparse tensors are out of scope"):
        tc.optim.SparseAdam  # noqa: B018 (the name itself)
    with pytest.raises(tc.ArgumentError, match="a step cannot be differentiable"):
        tc.optim.Adam([one()], differentiable=True)
    optimizer = tc.optim.SGD([("weight", one()), ("bias", one())], lr=tc.tensor(0.5, device="cpu"))
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


def test_a_rate_that_is_a_tensor_is_looked_at_in_every_step() -> None:
    rate, x = tc.tensor(0.5, device="cpu"), one()
    optimizer = tc.optim.SGD([x], lr=rate)
    x.sum().backward()
    optimizer.step()
    rate.fill_(0.25)
    optimizer.step()
    assert x.tolist() == [0.25]
    optimizer.param_groups[0]["lr"] = tc.tensor(0.25, device="cpu")
    step = tc.compile(lambda: optimizer.step())
    with pytest.raises(tc.CompileError, match="lr is a Tensor"):
        for _ in range(9):
            step()


def test_hooks_are_called_in_order() -> None:
    """Before and after a step, of all and of one; around states; taken away by their handles."""

    def run(lib: Any) -> list[str]:
        log: list[str] = []
        x = lib.tensor([1.0], requires_grad=True)
        x.sum().backward()
        optimizer = lib.optim.SGD([x], lr=0.5)
        noted = lambda text: lambda *given: log.append(f"{text} {len(given)} {x.item()}")  # noqa: E731
        handles = [
            optimizer.register_step_pre_hook(noted("pre")),
            optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: 7), {})),
            optimizer.register_step_post_hook(noted("post")),
            optimizer.register_state_dict_pre_hook(noted("saving")),
            optimizer.register_state_dict_pre_hook(noted("first"), prepend=True),
            optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1}),
            optimizer.register_load_state_dict_pre_hook(noted("loading")),
            optimizer.register_load_state_dict_post_hook(noted("loaded")),
        ]
        log.append(str(optimizer.step()))
        state = optimizer.state_dict()
        log.append(str(sorted(state)))
        optimizer.load_state_dict(state)
        for handle in handles:
            handle.remove()
        log.append(str(optimizer.step()))
        log.append(str(sorted(optimizer.state_dict())))
        return log

    tc.set_default_device("cpu")
    try:
        assert run(tc) == run(torch)
    finally:
        tc.set_default_device(None)


def test_hooks_of_all_optimizers() -> None:
    seen: list[str] = []
    first = tc.optim.register_optimizer_step_pre_hook(lambda *_: seen.append("before"))
    last = tc.optim.register_optimizer_step_post_hook(lambda *_: seen.append("after"))
    try:
        tc.optim.AdamW([one()]).step()
        optimizer = tc.optim.LBFGS([one()])
        optimizer.param_groups[0]["params"][0].grad = tc.ones(1, device="cpu")
        optimizer.step(lambda: 1.0 * tc.ones(1, device="cpu").sum())
    finally:
        first.remove()
        last.remove()
    tc.optim.AdamW([one()]).step()
    assert seen == ["before", "after"] * 2


@pytest.mark.parametrize("library", [tc, torch])
def test_an_optimizer_around_another_without_its_constructor(library: Any) -> None:
    """Many a `Lookahead` is written so: it has no hooks, its inner optimizer has its own."""

    class Around(library.optim.Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any) -> None:
            self.inner, self.param_groups, self.state = inner, inner.param_groups, {}

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    seen: list[str] = []
    x = library.nn.Parameter(library.ones(2))
    inner = library.optim.SGD([x], lr=0.5)
    inner.register_step_post_hook(lambda *_: seen.append("inner"))
    optimizer = Around(inner)
    for _ in range(2):
        inner.zero_grad()
        (x * 3).sum().backward()
        optimizer.step()
    assert x.tolist() == [-2.0, -2.0]
    assert seen == ["inner"] * 2


def test_a_compiled_step_with_hooks_is_refused() -> None:
    """A replay would not call them."""
    x = one()
    x.grad = tc.ones(1, device="cpu")
    optimizer = tc.optim.SGD([x], lr=0.5)
    optimizer.register_step_post_hook(lambda *_: None)
    step = tc.compile(lambda: optimizer.step())
    with pytest.raises(tc.CompileError, match="the optimizer's hooks"):
        for _ in range(9):
            step()

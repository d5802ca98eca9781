"""What subclasses of layers override or call, by PyTorch's names, against torch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from layers import torch

import tinygrad_cuda as tc


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def both(program: Any) -> Any:
    """The same program returns the same with both libraries."""
    ours, theirs = program(tc), program(torch)
    assert repr(ours).replace("tinygrad_cuda", "torch") == repr(theirs)
    assert ours
    return ours


def filled(lib: Any, module: Any) -> Any:
    """The module with parameters that both libraries agree on."""
    with lib.no_grad():
        for number, value in enumerate(module.parameters()):
            count = value.numel()
            numbers = np.cos(np.arange(count) + number).astype("float32").reshape(value.shape)
            value.copy_(lib.tensor(numbers))
    return module


def rounded(value: Any) -> list[float]:
    return [round(x, 4) for x in value.detach().flatten().tolist()]


# State --------------------------------------------------------------------------------------------


def test_a_class_that_loads_its_own_names() -> None:
    """As a frozen batch norm does: an old name is dropped, the others go on as usual."""

    def program(lib: Any) -> Any:
        class Frozen(lib.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("scale", lib.ones(2))

            def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
                state.pop(prefix + "count", None)
                super()._load_from_state_dict(state, prefix, *others)
                self.seen = self.scale.tolist()

        net = lib.nn.Sequential(lib.nn.Linear(1, 2), Frozen())
        state = {**net.state_dict(), "1.scale": lib.tensor([3.0, 4.0]), "1.count": lib.tensor(5)}
        result = net.load_state_dict(state)
        wrong = net.load_state_dict({"1.other": lib.ones(2)}, strict=False)
        assert "1.count" in state  # the caller's dict is left alone
        return [
            list(result.missing_keys), list(result.unexpected_keys), net[1].seen,
            sorted(wrong.missing_keys), list(wrong.unexpected_keys), net[1].scale.tolist(),
        ]  # fmt: skip

    both(program)


def test_a_class_that_loads_its_own_names_is_refused_what_does_not_fit() -> None:
    class Own(tc.nn.Linear):
        def _load_from_state_dict(self, *given: Any) -> None:
            super()._load_from_state_dict(*given)

    with pytest.raises(tc.ArgumentError, match=r"\[load_state_dict\] a module .* refused"):
        Own(2, 3).load_state_dict({"weight": tc.ones(2, 2), "bias": tc.ones(3)})
    with pytest.raises(tc.ArgumentError, match="missing: bias"):
        Own(2, 3).load_state_dict({"weight": tc.ones(3, 2)})
    with pytest.raises(tc.ArgumentError, match="unexpected: more"):
        Own(2, 3).load_state_dict({**Own(2, 3).state_dict(), "more": tc.ones(2)})


def test_a_class_that_saves_more() -> None:
    def program(lib: Any) -> Any:
        class More(lib.nn.Linear):  # type: ignore[misc]
            def _save_to_state_dict(self, destination: Any, prefix: str, keep: bool) -> None:
                super()._save_to_state_dict(destination, prefix, keep)
                destination[prefix + "more"] = lib.ones(1)

        net = lib.nn.Sequential(More(2, 3))
        result = net.load_state_dict(net.state_dict(), strict=False)
        return list(net.state_dict()), list(result.unexpected_keys)

    both(program)


def test_extra_state() -> None:
    def program(lib: Any) -> Any:
        class Counted(lib.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.calls, self.weight = 0, lib.nn.Parameter(lib.ones(1))

            def get_extra_state(self) -> Any:
                return {"calls": self.calls}

            def set_extra_state(self, state: Any) -> None:
                self.calls = state["calls"]

        one, other = (lib.nn.Sequential(Counted()) for _ in range(2))
        one[0].calls = 7
        state = one.state_dict()
        other.load_state_dict(state)
        del state["0._extra_state"]
        lacks = other.load_state_dict(state, strict=False)
        return list(one.state_dict()), other[0].calls, list(lacks.missing_keys)

    both(program)


def test_older_names_of_hooks_on_the_state() -> None:
    def program(lib: Any) -> Any:
        net = lib.nn.Sequential(lib.nn.Linear(1, 1))

        def rename(state: Any, prefix: str, *_: Any) -> None:
            state[prefix + "weight"] = state.pop(prefix + "w")

        net[0]._register_load_state_dict_pre_hook(rename)
        net.load_state_dict({"0.w": lib.ones(1, 1), "0.bias": lib.ones(1)})
        net._register_state_dict_hook(
            lambda module, state, prefix, meta: state.pop("0.bias") and None
        )
        return net[0].weight.item(), list(net.state_dict())

    both(program)


# Calls, names and conversion ----------------------------------------------------------------------


def test_hooks_with_keyword_arguments_and_in_front() -> None:
    def program(lib: Any) -> Any:
        class Scaled(lib.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any, factor: float = 1.0) -> Any:
                return x * factor

        net = Scaled()
        seen: list[Any] = []

        def before(module: Any, inputs: Any, options: Any) -> Any:
            seen.append(("before", sorted(options)))
            return inputs, {"factor": options["factor"] + 1}

        def after(module: Any, inputs: Any, options: Any, output: Any) -> Any:
            seen.append(("after", options["factor"]))
            return output + 1

        net.register_forward_pre_hook(before, with_kwargs=True)
        handle = net.register_forward_hook(after, with_kwargs=True)
        net.register_forward_hook(lambda *_: seen.append(("first", 0)), prepend=True)
        values = [net(lib.ones(1), factor=2.0).item()]
        handle.remove()
        values.append(net(lib.ones(1), factor=2.0).item())
        return values, seen

    both(program)


def test_names_and_conversion() -> None:
    def program(lib: Any) -> Any:
        class Named(lib.nn.Linear):  # type: ignore[misc]
            seen = 0

            def _get_name(self) -> str:
                return "Other"

            def _apply(self, fn: Any, recurse: bool = True) -> Any:
                self.seen += 1
                return super()._apply(fn)

        net = lib.nn.Sequential(Named(1, 2))
        net.double()
        net.set_submodule("1", lib.nn.ReLU())
        return net, net[0].seen, str(net[0].weight.dtype)

    both(program)


def test_a_module_may_be_assigned_to_the_name_of_a_method() -> None:
    def program(lib: Any) -> Any:
        class Net(lib.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.parameters: Any = []
                self.parameters = lib.nn.ParameterList([lib.nn.Parameter(lib.ones(2))])

        net = Net()
        return len(list(net.parameters())), list(net.state_dict())

    both(program)
    with pytest.raises(tc.NameTakenError):
        tc.nn.Module().add_module("forward", tc.nn.ReLU())


# Layers -------------------------------------------------------------------------------------------


def test_convolutions_with_another_weight() -> None:
    def program(lib: Any) -> Any:
        class Standardized(lib.nn.Conv2d):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)

        x = lib.arange(18.0).reshape(1, 2, 3, 3)
        made = [
            filled(lib, Standardized(2, 2, 2, padding=1)),
            filled(lib, Standardized(2, 2, 2, padding=(1, 0), padding_mode="reflect")),
        ]
        lines = [lib.nn.Conv1d(1, 1, 3, padding=2), lib.nn.Conv3d(1, 1, 2, padding=(1, 2, 3))]
        return [rounded(layer(x)) for layer in made], [
            list(layer._reversed_padding_repeated_twice) + list(layer.output_padding)
            for layer in lines
        ]

    both(program)


def test_the_check_of_a_batch_norm() -> None:
    for lib in (tc, torch):

        class Own(lib.nn.BatchNorm2d):  # type: ignore[name-defined, misc]
            def forward(self, x: Any) -> Any:
                self._check_input_dim(x)
                return x

        assert Own(3)(lib.ones(2, 3, 1, 1)).shape == (2, 3, 1, 1)
        with pytest.raises(Exception, match=r"4"):
            Own(3)(lib.ones(2, 3))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_blocks_of_transformer_layers(kind: str) -> None:
    def program(lib: Any) -> Any:
        base = getattr(lib.nn, f"Transformer{kind.capitalize()}Layer")

        class Own(base):  # type: ignore[valid-type, misc]
            def _sa_block(self, x: Any, *masks: Any, **options: Any) -> Any:
                return 2 * super()._sa_block(x, *masks, **options)

            def _ff_block(self, x: Any) -> Any:
                return 3 * super()._ff_block(x)

        layer = filled(lib, Own(4, 2, 8, dropout=0.0))
        x = lib.arange(24.0).reshape(3, 2, 4) / 10
        return rounded(layer(x) if kind == "encoder" else layer(x, x + 1))

    both(program)


def test_parts_of_recurrent_and_attention_layers() -> None:
    def program(lib: Any) -> Any:
        lstm = lib.nn.LSTM(2, 3, 2, bidirectional=True)
        names = {id(value): name for name, value in lstm.named_parameters()}
        attention, other = (lib.nn.MultiheadAttention(4, 2, kdim=kdim) for kdim in (None, 3))
        attention._reset_parameters()
        lib.nn.Transformer(4, 2, 1, 1, 8, batch_first=True)._reset_parameters()
        for layer in (lib.nn.LSTMCell(2, 3), lib.nn.GroupNorm(1, 2), lib.nn.RMSNorm(2)):
            layer.reset_parameters()
        return (
            [[names[id(value)] for value in values] for values in lstm.all_weights],
            [layer._qkv_same_embed_dim for layer in (attention, other)],
        )  # fmt: skip

    both(program)


def test_containers_as_lists_and_dicts() -> None:
    def program(lib: Any) -> Any:
        nn = lib.nn
        steps = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.GELU())
        items = nn.ModuleList([nn.ReLU(), nn.Tanh()])
        table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        values = nn.ParameterDict({name: lib.ones(size) for size, name in enumerate("abcd", 1)})
        taken = [steps.pop(1), items.pop(0), table.pop("a"), values.pop("a").shape[0]]
        last = values.popitem()
        values.setdefault("e", lib.ones(5))
        more = values.fromkeys(["x"], 1.0)
        found = values.get("b").shape[0], values.get("zz", 3), values.setdefault("b").shape[0]
        table.clear()
        kept, other = list(values.keys()), values.copy()
        values.clear()
        return (
            taken, last[0], last[1].shape[0], kept, list(other.keys()), len(values), steps, items,
            len(table), found, more["x"],
        )  # fmt: skip

    both(program)
    copy.deepcopy(tc.nn.ParameterDict({"a": tc.ones(2)}))

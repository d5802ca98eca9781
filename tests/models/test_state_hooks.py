"""Hooks around saving and loading, and state by dotted name, against torch."""

from __future__ import annotations

from typing import Any

import pytest
from layers import torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def model(lib: Any) -> Any:
    return lib.Sequential(lib.Linear(2, 3), lib.Sequential(lib.BatchNorm1d(3)))


def both(program: Any) -> None:
    """The same program tells the same story with both libraries."""
    ours, theirs = program(nn), program(torch.nn)
    assert ours == theirs
    assert ours


def test_saving() -> None:
    """Who is called, with which prefix, and what is in the dict by then."""

    def program(lib: Any) -> list[Any]:
        net, seen = model(lib), []

        def before(module: Any, prefix: str, keep_vars: bool) -> None:
            seen.append((type(module).__name__, prefix, keep_vars))

        def after(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
            seen.append((type(module).__name__, prefix, sorted(state), sorted(metadata)))
            state[prefix + "added"] = len(state)

        for module in (net, net[0], net[1][0]):
            module.register_state_dict_pre_hook(before)
            handle = module.register_state_dict_post_hook(after)
        handle.remove()
        seen.append(list(net.state_dict(keep_vars=True)))
        seen.append(list(net.state_dict(prefix="model.")))
        return seen

    both(program)


def test_renaming_on_the_way_in() -> None:
    """An old checkpoint's names are mended by the module that knows of them."""

    def program(lib: Any) -> list[Any]:
        net, seen = model(lib), []

        def rename(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
            seen.append((type(module).__name__, prefix, rest[1:]))
            state[prefix + "weight"] = state.pop(prefix + "w")

        net[0].register_load_state_dict_pre_hook(rename)
        state = net.state_dict()
        state["0.w"] = state.pop("0.weight") * 0 + 7
        found = net.load_state_dict(state)
        assert "0.w" in state  # the dict given is left as it was
        return [seen, list(found.missing_keys), net[0].weight.detach().numpy().tolist()]

    both(program)


def test_forgiven_names() -> None:
    """A hook that empties the lists makes a strict load succeed; values that fit are loaded."""

    def program(lib: Any) -> list[Any]:
        net, seen = model(lib), []

        def forgive(module: Any, keys: Any) -> None:
            seen.append((type(module).__name__, sorted(keys[0]), sorted(keys.unexpected_keys)))
            keys.missing_keys.clear()
            keys.unexpected_keys.clear()

        handle = net.register_load_state_dict_post_hook(forgive)
        state = {"0.bias": net[0].bias.detach() * 0 + 3, "other": net[0].bias.detach()}
        # torch itself forgives states without this name if they tell of no version.
        state["1.0.num_batches_tracked"] = net[1][0].num_batches_tracked
        found = net.load_state_dict(state)
        seen.append((list(found[0]), list(found[1]), net[0].bias.detach().numpy().tolist()))
        handle.remove()
        try:
            net.load_state_dict(state)
        except RuntimeError:  # ours is one too
            seen.append("refused")
        return seen

    both(program)


def test_hooks_that_refuse() -> None:
    """A message of a hook is an error, and nothing is written; returning something is one too."""
    net = model(nn)

    def refuse(module: Any, state: Any, prefix: str, *rest: Any) -> None:
        rest[-1].append(f"{prefix} is too old")

    handle = net[1].register_load_state_dict_pre_hook(refuse)
    before = net[0].bias.tolist()
    state = {name: value + 1 for name, value in net.state_dict().items()}
    with pytest.raises(tc.ArgumentError, match=r"1\. is too old"):
        net.load_state_dict(state)
    assert net[0].bias.tolist() == before
    handle.remove()
    net.register_load_state_dict_post_hook(lambda module, keys: keys)
    with pytest.raises(tc.ArgumentError, match="a hook returned something"):
        net.load_state_dict(state)


def test_state_by_dotted_name() -> None:
    net = model(nn)
    assert net.get_buffer("1.0.running_mean") is net[1][0].running_mean
    assert net.get_parameter("0.weight") is net[0].weight
    assert net.get_submodule("1.0") is net[1][0]
    assert net.get_submodule("") is net
    for call in (net.get_buffer, net.get_parameter):
        with pytest.raises(AttributeError, match=r"there is no (buffer|parameter) '1\.0\.nothing'"):
            call("1.0.nothing")
    with pytest.raises(AttributeError, match="not a Module"):
        net.get_submodule("0.weight")

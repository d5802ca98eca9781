"""Modules: registration, names, state, modes, moving, hooks, copies and their text."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.engine.cell import local
from tinygrad_cuda.engine.realize import realize_all

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.smoke("nn")]


class Block(nn.Module):
    """A module with every sort of attribute, one parameter shared."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(tc.ones(3))
        self.register_buffer("mean", tc.zeros(3))
        self.register_buffer("cache", tc.zeros(1), persistent=False)
        self.label = "not state"
        self.plain = tc.zeros(2)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu()) * self.scale + self.mean


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2))


# Registration -----------------------------------------------------------------------------------


def test_names_and_order() -> None:
    """Parameters and modules are named by attributes; a shared one counts once."""
    block = Block()
    names = [name for name, _ in block.named_parameters()]
    assert names == ["scale", "first.weight", "first.bias"]
    every = [name for name, _ in block.named_parameters(remove_duplicate=False)]
    assert every == ["scale", "first.weight", "first.bias", "second.weight"]
    assert [name for name, _ in block.named_buffers()] == ["mean", "cache"]
    assert [name for name, _ in block.named_modules()] == ["", "first", "second"]
    assert [name for name, _ in block.named_children()] == ["first", "second"]
    assert len(list(block.parameters(recurse=False))) == 1
    assert block.get_submodule("second") is block.second
    assert block.get_parameter("first.bias") is block.first.bias


def test_same_names_as_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    ours = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)


def test_replacing_and_deleting_attributes() -> None:
    layer = nn.Linear(2, 2)
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert layer(tc.ones(1, 2)).shape == (1, 2)
    del layer.weight
    assert not hasattr(layer, "weight")
    layer.weight = "plain"
    assert list(layer.parameters()) == []
    layer.weight = nn.Parameter(tc.ones(2))
    assert "weight" not in layer.__dict__
    assert layer.weight.tolist() == [1.0, 1.0]


def test_wrong_attributes() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(tc.ArgumentError, match=r"'weight' cannot hold this(.|\n)*nn.Parameter"):
        layer.weight = tc.ones(2, 2)
    with pytest.raises(tc.ArgumentError, match="without dots"):
        layer.add_module("a.b", nn.ReLU())
    with pytest.raises(tc.ArgumentError, match="a buffer or None"):
        layer.register_buffer("mean", 3.0)
    with pytest.raises(AttributeError, match="before super"):

        class Early(nn.Module):
            def __init__(self) -> None:
                self.layer = nn.ReLU()

        Early()


def test_missing_attribute_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"'Linear' .* 'wieght'; did you mean 'weight'"):
        nn.Linear(2, 2).wieght  # noqa: B018
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


# Parameters -------------------------------------------------------------------------------------


def test_parameter_shares_the_cell_of_its_tensor() -> None:
    data = tc.zeros(2)
    parameter = nn.Parameter(data)
    data += 1
    assert parameter.tolist() == [1.0, 1.0]
    assert isinstance(parameter, tc.Tensor)
    assert parameter.is_leaf
    assert parameter.requires_grad
    assert not data.requires_grad
    assert not isinstance(parameter * 1, nn.Parameter)
    assert not isinstance(parameter.detach(), nn.Parameter)


def test_parameter_of_a_result_is_a_leaf() -> None:
    source = tc.ones(2, requires_grad=True)
    parameter = nn.Parameter(source * 3)
    (parameter * 2).sum().backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [2.0, 2.0]
    assert source.grad is None


def test_parameter_without_gradient() -> None:
    frozen = nn.Parameter(tc.arange(3), requires_grad=False)
    assert isinstance(copy.deepcopy(frozen), nn.Parameter)
    assert not copy.deepcopy(frozen).requires_grad
    with pytest.raises(tc.DTypeError, match="only floating"):
        nn.Parameter(tc.arange(3))
    with pytest.raises(tc.ArgumentError, match="needs a Tensor"):
        nn.Parameter([1.0])  # type: ignore[arg-type]


def test_parameter_survives_pickling() -> None:
    parameter = nn.Parameter(tc.rand(2, 2))
    again = pickle.loads(pickle.dumps(parameter))
    assert isinstance(again, nn.Parameter)
    assert again.requires_grad
    assert again.tolist() == parameter.tolist()
    assert repr(parameter).startswith("Parameter containing:\ntensor(")


# State ------------------------------------------------------------------------------------------


def test_state_shares_cells() -> None:
    block = Block()
    state = block.state_dict()
    assert list(state) == ["scale", "mean", "first.weight", "first.bias", "second.weight"]
    with tc.no_grad():
        block.scale.fill_(7)
    assert state["scale"].tolist() == [7.0] * 3
    assert not state["scale"].requires_grad
    assert block.state_dict(keep_vars=True)["scale"] is block.scale


def test_state_goes_to_another_module_and_back() -> None:
    source, target = mlp(), mlp()
    x = tc.rand(5, 4)
    assert not tc.equal(source.eval()(x), target.eval()(x))
    assert target.load_state_dict(source.state_dict()) == ([], [])
    assert tc.equal(source(x), target(x))
    with tc.no_grad():
        source[0].weight += 1
    assert not tc.equal(source(x), target(x))
    arrays = {name: value.numpy() for name, value in source.state_dict().items()}
    target.load_state_dict(arrays)
    assert tc.equal(source(x), target(x))


def test_strict_loading_lists_names_and_writes_nothing() -> None:
    model = mlp()
    before = model[0].weight.tolist()
    state = model.state_dict()
    given = {
        "0.weight": tc.zeros(3, 4), "0.bais": state["0.bias"], "3.weight": state["3.weight"],
        "3.bias": state["3.bias"],
    }  # fmt: skip
    with pytest.raises(tc.ArgumentError) as caught:
        model.load_state_dict(given)
    text = str(caught.value)
    assert "missing: 0.bias" in text
    assert "unexpected: 0.bais" in text
    assert "0.bais may be 0.bias" in text
    assert model[0].weight.tolist() == before
    keys = model.load_state_dict(given, strict=False)
    assert keys.missing_keys == ["0.bias"]
    assert keys.unexpected_keys == ["0.bais"]
    assert model[0].weight.tolist() == [[0.0] * 4] * 3


def test_wrong_shapes_are_listed_and_nothing_is_written() -> None:
    model = mlp()
    before = model[3].weight.tolist()
    state = {**model.state_dict(), "0.weight": tc.zeros(4), "3.weight": tc.zeros(2, 3)}
    with pytest.raises(tc.ShapeError, match=r"0.weight: \(3, 4\)(.|\n)*0.weight: \(4,\)"):
        model.load_state_dict(state)
    assert model[3].weight.tolist() == before


def test_loading_with_assign_takes_dtype() -> None:
    model = nn.Linear(2, 1)
    weight = model.weight
    model.load_state_dict(
        {"weight": tc.ones(1, 2, dtype=tc.float64), "bias": tc.ones(1)}, assign=True
    )
    assert model.weight is not weight and isinstance(model.weight, nn.Parameter)
    assert model.weight.dtype is tc.float64


# Copies -----------------------------------------------------------------------------------------


def test_deepcopy_copies_when_somebody_writes() -> None:
    """Copies share the realized value until a write, and then only the written one moves."""
    model = mlp()
    realize_all()
    twin = copy.deepcopy(model)
    assert isinstance(twin[0].weight, nn.Parameter)
    assert twin[0].weight is not model[0].weight
    assert twin[0].weight.cell is not model[0].weight.cell
    assert twin[0].weight.cell.node.storage is model[0].weight.cell.node.storage
    before = model[0].weight.tolist()
    with tc.no_grad():
        twin[0].weight.add_(1)
    assert twin[0].weight.tolist() != before
    assert model[0].weight.tolist() == before


def test_deepcopy_keeps_sharing_without_gradients() -> None:
    block = Block()
    block(tc.ones(2, 3)).sum().backward()
    twin = copy.deepcopy(block)
    assert twin.first.weight is twin.second.weight
    assert twin.scale.grad is None and block.scale.grad is not None


# Modes and moving -------------------------------------------------------------------------------


def test_train_and_eval_reach_all_modules() -> None:
    model = mlp()
    x = tc.ones(8, 4)
    assert not tc.equal(model(x), model(x))
    assert model.eval() is model
    assert tc.equal(model(x), model(x))
    assert not any(module.training for module in model.modules())
    model.train()
    assert all(module.training for module in model.modules())


def test_apply_visits_children_first() -> None:
    seen: list[str] = []
    Block().apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "Linear", "Block"]


def test_to_keeps_the_parameters() -> None:
    """The objects stay, so an optimizer made before goes on; integer buffers keep their dtype."""
    block = Block()
    block.register_buffer("count", tc.zeros(1, dtype=tc.int64))
    block(tc.ones(2, 3)).sum().backward()
    weight, state = block.first.weight, block.state_dict()
    assert block.double() is block
    assert block.first.weight is weight
    assert weight is block.second.weight
    assert {p.dtype for p in block.parameters()} == {tc.float64}
    assert weight.grad.dtype is tc.float64
    assert weight.is_leaf
    assert block.count.dtype is tc.int64
    assert block.mean.dtype is tc.float64
    assert state["first.weight"].dtype is tc.float32
    block(tc.ones(2, 3, dtype=tc.float64)).sum().backward()
    block.to(dtype=tc.float32).float()
    assert weight.dtype is tc.float32
    assert block.to("cpu").first.weight is weight
    assert len(weight.chain) <= 2  # detach and leaf: moving leaves no trail of views
    with pytest.raises(tc.DTypeError, match="not a floating"):
        block.to(tc.int32)


def test_zero_grad() -> None:
    model = nn.Linear(2, 1)
    model(tc.ones(1, 2)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert model.weight.grad.tolist() == [[0.0, 0.0]]
    model.zero_grad()
    assert model.weight.grad is None


def test_requires_grad_freezes() -> None:
    model = nn.Linear(2, 1).requires_grad_(False)
    assert not model(tc.ones(1, 2)).requires_grad
    assert model.requires_grad_()(tc.ones(1, 2)).requires_grad
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


# Calls ------------------------------------------------------------------------------------------


def test_hooks_see_and_replace() -> None:
    layer = nn.ReLU()
    seen: list[Any] = []
    before = layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] - 1,))
    after = layer.register_forward_hook(lambda module, inputs, output: output * 10)
    watch = layer.register_forward_hook(
        lambda module, inputs, output: seen.append((module is layer, inputs[0].tolist()))
    )
    assert layer(tc.tensor([1.0, 3.0])).tolist() == [0.0, 20.0]
    assert seen == [(True, [0.0, 2.0])]
    before.remove()
    watch.remove()
    watch.remove()
    assert layer(tc.tensor([1.0, 3.0])).tolist() == [10.0, 30.0]
    after.remove()
    assert layer(tc.tensor([1.0, 3.0])).tolist() == [1.0, 3.0]
    assert len(seen) == 1


def test_evaluation_loop_is_cut_at_the_outermost_call() -> None:
    """A loop under no_grad that reads nothing keeps one turn pending, not all of them."""
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU())
    realize_all()
    results = []
    with tc.no_grad():
        for _ in range(20):
            results.append(model(tc.ones(2, 3)))
            pending = [r for r in results if r.cell.node.storage is None]
            assert len(pending) == 1
    assert local.recorder.recorded < 60


def test_depth_is_restored_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(tc.ShapeError, match="linear"):
        model(tc.ones(2, 4))
    test_evaluation_loop_is_cut_at_the_outermost_call()


# Containers -------------------------------------------------------------------------------------


def test_sequential() -> None:
    model = mlp()
    assert len(model) == 4
    assert isinstance(model[1:], nn.Sequential)
    assert model[-1] is model[3]
    assert list(model[1:].state_dict()) == ["3.weight", "3.bias"]
    assert len(model.append(nn.ReLU())) == 5
    assert list(model._modules) == ["0", "1", "2", "3", "4"]
    del model[1]
    assert list(model._modules) == ["0", "1", "2", "3"]
    model[0] = nn.Identity()
    assert [type(m).__name__ for m in model] == ["Identity", "Dropout", "Linear", "ReLU"]
    with pytest.raises(tc.IndexError, match="no module at this index"):
        model[9]
    named = nn.Sequential(OrderedDict(body=nn.Linear(2, 2), act=nn.ReLU()))
    assert list(named.state_dict()) == ["body.weight", "body.bias"]
    assert named.body is named[0]


def test_module_list_and_dict() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers += [nn.ReLU()]
    layers.insert(0, nn.Identity())
    assert [type(m).__name__ for m in layers] == ["Identity", "Linear", "ReLU"]
    assert list(layers.state_dict()) == ["1.weight", "1.bias"]
    assert len(layers[:2]) == 2
    table = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.ReLU()})
    assert "a" in table
    assert list(table.keys()) == ["a", "b"]
    assert len(table) == 2
    del table["a"]
    assert list(table.state_dict()) == []


def test_repr_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")

    def build(lib: Any) -> Any:
        inner = lib.Sequential(lib.Linear(4, 3, bias=False), lib.ReLU(inplace=True))
        return lib.Sequential(
            OrderedDict(inner=inner, drop=lib.Dropout(0.1), flat=lib.Flatten(),
                        soft=lib.Softmax(dim=1), leaky=lib.LeakyReLU(0.2), act=lib.GELU())
        )  # fmt: skip

    assert repr(build(nn)) == repr(build(torch.nn))


def test_flatten_and_dropout() -> None:
    x = tc.ones(2, 3, 4)
    assert nn.Flatten()(x).shape == (2, 12)
    assert nn.Unflatten(2, (2, 2))(x).shape == (2, 3, 2, 2)
    dropped = nn.Dropout(0.25)(tc.ones(100, 100)).numpy()
    assert np.isin(dropped, [0.0, np.float32(1 / 0.75)]).all()
    assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.02)
    assert nn.Dropout(1.0)(x).tolist() == tc.zeros(2, 3, 4).tolist()
    with pytest.raises(tc.ArgumentError, match="0 <= p <= 1"):
        nn.Dropout(1.5)


def test_dropout_gradient_uses_the_same_mask() -> None:
    """Also when the output was realized before the backward pass."""
    x = tc.ones(50, requires_grad=True)
    y = nn.Dropout(0.5)(x)
    values = y.tolist()
    y.sum().backward()
    assert x.grad.tolist() == values

"""Modules, containers, hooks of modules and states at their edges: what PyTorch does there."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.nn.modules import module as hooks_of_all

F = nn.functional


def x(*shape: int) -> tc.Tensor:
    return tc.arange(tc.Size(shape).numel(), device="cpu", dtype=tc.float32).reshape(shape)


def names(modules: Any) -> list[str]:
    return [type(module).__name__ for module in modules]


def test_sums_and_multiples_of_sequentials() -> None:
    a, b = nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.ELU())
    assert names(a + b) == ["ReLU", "Tanh", "ELU"] and len(a) == 2
    assert names(a * 2) == names(2 * a) == ["ReLU", "Tanh"] * 2
    assert (a * 2)[0] is (a * 2)[2]
    a += b
    assert names(a) == ["ReLU", "Tanh", "ELU"]
    a *= 2
    assert names(a) == ["ReLU", "Tanh", "ELU"] * 2 and list(a._modules) == list("012345")
    with pytest.raises(tc.ArgumentError):
        a * 0
    with pytest.raises(TypeError):
        a + [nn.ReLU()]  # type: ignore[operator]
    with pytest.raises(IndexError):
        a.insert(99, nn.ReLU())


def test_sums_of_lists() -> None:
    modules = nn.ModuleList([nn.ReLU()])
    assert names(modules + [nn.Tanh()]) == ["ReLU", "Tanh"] and len(modules) == 1
    modules += modules
    assert names(modules) == ["ReLU", "ReLU"]


def test_dicts_take_pairs() -> None:
    modules = nn.ModuleDict([("a", nn.ReLU())])
    modules.update([("b", nn.Tanh())])
    modules.update(nn.ModuleDict({"c": nn.ELU()}))
    assert list(modules) == ["a", "b", "c"]
    with pytest.raises(tc.DTypeError):
        modules.update([("a",)])  # type: ignore[list-item]
    with pytest.raises(tc.DTypeError):
        modules.update(3)  # type: ignore[arg-type]


def test_dicts_of_parameters() -> None:
    # Sorted as in PyTorch: states of optimizers number parameters in this order.
    assert list(nn.ParameterDict({"b": x(1), "a": x(1)})) == ["a", "b"]
    assert list(nn.ParameterDict(OrderedDict(b=x(1), a=x(1)))) == ["b", "a"]
    both = nn.ParameterDict([("b", x(1)), ("a", x(1))])
    assert list(both) == list(both.copy()) == ["b", "a"] and list(reversed(both)) == ["a", "b"]
    assert list(both | {"z": x(1)}) == ["b", "a", "z"]
    assert list({"z": x(1)} | both) == ["z", "b", "a"]
    both |= {"y": x(1)}
    assert list(both) == ["b", "a", "y"]
    with pytest.raises(TypeError):
        both[3] = x(1)  # type: ignore[index]
    assert list(both) == ["b", "a", "y"]


def test_text_of_parameters() -> None:
    values = nn.ParameterList([x(2, 3), "text"])
    assert repr(values) == (
        "ParameterList(\n    (0): Parameter containing: [tinygrad_cuda.float32 of size 2x3]\n"
        "    (1): Object of type: str\n)"
    )
    assert repr(nn.Hardsigmoid(True)) + repr(nn.Hardswish(True)) == "Hardsigmoid()Hardswish()"


def test_hooks_that_are_always_called() -> None:
    layer, seen = nn.Linear(2, 1, device="cpu"), []

    def note(module: Any, inputs: Any, options: Any, output: Any) -> None:
        seen.append((len(inputs), output is None))

    layer.register_forward_hook(lambda *given: seen.append("others"))
    layer.register_forward_hook(note, always_call=True, with_kwargs=True)
    with pytest.raises(tc.ShapeError):
        layer(x(1, 3))
    assert seen == [(1, True)]
    layer(x(1, 2))
    assert seen[1:] == ["others", (1, False)]


def test_an_error_in_a_hook_calls_the_others() -> None:
    layer, seen = nn.Identity(), []

    def fail(*given: Any) -> None:
        seen.append("failed")
        raise KeyError("hook")

    layer.register_forward_hook(fail, always_call=True)
    layer.register_forward_hook(lambda *given: seen.append("always"), always_call=True)
    layer.register_forward_hook(lambda *given: seen.append("never"))
    with pytest.raises(KeyError, match="hook"):
        layer(x(1))
    assert seen == ["failed", "always"]


def test_gradients_of_inputs_that_need_none() -> None:
    layer, seen = nn.Linear(2, 1, device="cpu"), []
    layer.register_full_backward_hook(lambda m, inputs, outputs: seen.append(inputs))
    layer(x(3, 2)).sum().backward()
    assert seen == [(None,)]
    layer.register_full_backward_hook(lambda m, inputs, outputs: (x(3, 2),))
    with pytest.raises(tc.ArgumentError, match="needs none"):
        layer(x(3, 2)).sum().backward()


def test_prehooks_with_options_return_both() -> None:
    layer = nn.Identity()
    layer.register_forward_pre_hook(lambda m, inputs, options: inputs, with_kwargs=True)
    with pytest.raises(tc.ArgumentError, match="both kinds"):
        layer(x(1))


def test_hooks_of_all_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2, device="cpu"), nn.Tanh())
    seen: list[str] = []

    def note(module: Any, *others: Any) -> None:
        seen.append(type(module).__name__)

    with hooks_of_all.register_module_forward_pre_hook(note):
        model(x(1, 2))
    with hooks_of_all.register_module_forward_hook(note):
        output = model(x(1, 2))
    assert seen == ["Sequential", "Linear", "Tanh", "Linear", "Tanh", "Sequential"]
    seen.clear()
    output.sum().backward()
    with hooks_of_all.register_module_full_backward_hook(note):
        model(x(1, 2).requires_grad_()).sum().backward()
    with hooks_of_all.register_module_full_backward_pre_hook(note):
        model(x(1, 2).requires_grad_()).sum().backward()
    assert seen == ["Tanh", "Linear", "Sequential", "Sequential", "Tanh", "Linear"]
    model(x(1, 2))
    assert len(seen) == 6


def test_hooks_of_all_modules_see_compiled_calls() -> None:
    model = nn.Linear(2, 1, device="cpu")
    compiled = tc.compile(model)
    with tc.no_grad():
        before = [compiled(x(1, 2)).tolist() for _ in range(4)][-1]
        with hooks_of_all.register_module_forward_hook(lambda m, a, output: output * 0):
            assert compiled(x(1, 2)).tolist() == [[0.0]]
        assert compiled(x(1, 2)).tolist() == before


def test_versions_of_states() -> None:
    state: Any = nn.Sequential(nn.BatchNorm1d(2, device="cpu")).state_dict()
    assert dict(state._metadata) == {"": {"version": 1}, "0": {"version": 2}}
    seen = []

    class Old(nn.Module):
        _version = 3

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(x(1))

    model = nn.Sequential(Old())
    model[0].register_load_state_dict_pre_hook(
        lambda module, state, prefix, metadata, *others: seen.append((list(state), metadata))
    )
    saved = model.state_dict()
    saved["other"] = x(1)
    model.load_state_dict(saved, strict=False)
    model.load_state_dict(dict(model.state_dict()))
    assert seen == [(["0.scale"], {"version": 3}), (["0.scale"], {})]


def test_a_hook_renames_old_names() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False, device="cpu"))

    def rename(module: Any, state: Any, prefix: str, *others: Any) -> None:
        state[prefix + "weight"] = state.pop(prefix + "w")

    model[0].register_load_state_dict_pre_hook(rename)
    model.load_state_dict({"0.w": x(1, 1) + 5})
    assert model[0].weight.item() == 5.0


def test_old_states_of_batch_norm() -> None:
    layer = nn.BatchNorm1d(2, device="cpu")
    layer(x(3, 2))
    state: Any = layer.state_dict()
    del state["num_batches_tracked"]
    with pytest.raises(tc.ArgumentError, match="num_batches_tracked"):
        layer.load_state_dict(state)
    del state._metadata[""]
    layer.load_state_dict(state)
    assert str(layer.load_state_dict(dict(state))) == "<All keys matched successfully>"
    assert layer.num_batches_tracked is not None and layer.num_batches_tracked.item() == 1


def test_one_element_loads_without_dimensions() -> None:
    layer = nn.PReLU(device="cpu")
    layer.weight = nn.Parameter(tc.tensor(3.0, device="cpu"))
    layer.load_state_dict({"weight": tc.tensor([2.0], device="cpu")})
    assert layer.weight.shape == () and layer.weight.item() == 2.0


def test_arguments_are_checked_when_a_layer_is_made() -> None:
    with pytest.raises(tc.ArgumentError, match="bool"):
        nn.ReLU().train("yes")  # type: ignore[arg-type]
    with pytest.raises(tc.ShapeError):
        nn.Embedding(3, 2, _weight=x(2, 2))
    for wrong in (2, -0.1, True):
        with pytest.raises(tc.ArgumentError, match="probability"):
            nn.LSTM(2, 2, dropout=wrong)


def test_instance_norm_without_momentum_keeps_its_values() -> None:
    layer = nn.InstanceNorm1d(
        2, momentum=None, track_running_stats=True, device="cpu"  # type: ignore[arg-type]
    )  # fmt: skip
    layer(x(2, 2, 3))
    assert layer.running_mean is not None and layer.running_mean.tolist() == [0.0, 0.0]


def test_the_largest_of_nothing() -> None:
    table = nn.EmbeddingBag(3, 2, mode="max", device="cpu")
    nothing = tc.tensor([], device="cpu", dtype=tc.int64)
    assert table(nothing, tc.tensor([0, 0], device="cpu")).tolist() == [[0.0] * 2] * 2


def test_packed_sequences_by_dtype() -> None:
    packed = nn.utils.rnn.pack_sequence([x(2, 1), x(1, 1)])
    kinds = ("double", "float", "half", "long", "int", "short", "char", "byte")
    wanted = (tc.float64, tc.float32, tc.float16, tc.int64, tc.int32, tc.int16, tc.int8, tc.uint8)
    assert tuple(getattr(packed, kind)().data.dtype for kind in kinds) == wanted
    order = tc.tensor([2, 0, 1], device="cpu")
    inverted = nn.utils.rnn.invert_permutation(order)
    assert inverted is not None and inverted.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    "loss",
    [
        lambda lib, a, b: lib.kl_div(a, b, reduction="batchmean"),
        lambda lib, a, b: lib.poisson_nll_loss(a, b),
        lambda lib, a, b: lib.soft_margin_loss(a, b),
        lambda lib, a, b: lib.multilabel_soft_margin_loss(a, b),
        lambda lib, a, b: lib.triplet_margin_loss(a, a * 2, b),
        lambda lib, a, b: lib.margin_ranking_loss(a, b, a),
    ],
)
def test_losses_broadcast(loss: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = [[0.5, -1.0], [2.0, 0.25]], [[1.0, 0.5]]
    expected = loss(torch.nn.functional, torch.tensor(a), torch.tensor(b)).item()
    ours = loss(F, tc.tensor(a, device="cpu"), tc.tensor(b, device="cpu")).item()
    assert ours == pytest.approx(expected)
    with pytest.raises(tc.ShapeError):
        loss(F, tc.tensor(a, device="cpu"), x(1, 3))


def test_unpooling_of_no_samples() -> None:
    values, places = F.max_pool1d(x(0, 3, 9), 2, return_indices=True)
    assert F.max_unpool1d(values, places, 2).shape == (0, 3, 8)

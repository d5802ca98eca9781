"""x.grad_fn: the recorded graph as PyTorch's programs walk it."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    with tc.device("cpu"):
        yield


def test_facts_of_a_product() -> None:
    x = tc.ones(2, requires_grad=True)
    assert x.grad_fn is None and tc.ones(2).grad_fn is None and (tc.ones(2) * 2).grad_fn is None
    y = x * 2
    function = y.grad_fn
    assert function is not None
    assert function.name() == type(function).__name__ == "MulBackward0"
    assert repr(function).startswith("<MulBackward0 object at 0x")
    assert isinstance(function, tc.autograd.graph.Node)
    assert y.grad_fn == function and hash(y.grad_fn) == hash(function)
    assert (x * 2).grad_fn != function
    assert function.requires_grad and bool(function)
    function.metadata["line"] = 1
    del function
    assert y.grad_fn.metadata == {"line": 1}
    with pytest.raises(AttributeError):
        _ = y.grad_fn._saved_self


def test_edges_as_torch() -> None:
    """Edges have the names of the functions, and (None, 0) of what requires no gradient."""
    torch = pytest.importorskip("torch")
    texts = []
    for lib in (torch, tc):
        x = lib.ones(2, 3, requires_grad=True)
        results = [(x * lib.ones(2, 3)).exp(), (x.exp() * x).exp()]
        texts.append(
            [
                [(type(f).__name__, f and f.name(), number) for f, number in edges]
                for result in results
                for edges in [
                    result.grad_fn.next_functions,
                    result.grad_fn.next_functions[0][0].next_functions[:2],
                ]
            ]
        )
    assert texts[0] == texts[1]


def test_number_of_a_result() -> None:
    x = tc.tensor([[3.0, 1.0], [1.0, 2.0]], requires_grad=True)
    values = tc.linalg.eigh(x)
    (function, first), (again, second) = (
        part.exp().grad_fn.next_functions[0] for part in (values[0], values[1])
    )
    assert (first, second) == (0, 1)
    assert function is again and values[0].grad_fn == function


def walked(root: Any) -> tuple[set[Any], list[Any]]:
    """All functions, and the leaves of them; as torchviz's `make_dot` does, by next_functions."""
    seen: set[Any] = set()
    leaves: list[Any] = []

    def visit(function: Any) -> None:
        if function is None or function in seen:
            return
        seen.add(function)
        if hasattr(function, "variable"):
            leaves.append(function.variable)
        for following, _ in function.next_functions:
            visit(following)

    visit(root)
    return seen, leaves


def test_a_network_is_walked_to_its_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    loss = nn.functional.cross_entropy(model(tc.randn(5, 3)), tc.tensor([0, 1, 0, 1, 1]))
    seen, leaves = walked(loss.grad_fn)
    assert {id(leaf) for leaf in leaves} == {id(p) for p in model.parameters()}
    assert len(leaves) == 4
    assert sum(function.name() == "MatmulBackward0" for function in seen) == 2
    assert len({id(function) for function in seen}) == len(seen)
    loss.backward(retain_graph=True)
    assert len(walked(loss.grad_fn)[0]) == len(seen)


def test_history_that_was_used() -> None:
    x = tc.ones(2, requires_grad=True)
    y = (x * 2).exp()
    y.sum().backward()
    y.tolist()
    assert y.grad_fn.name() == "ExpBackward0"
    with pytest.raises(tc.GradientError, match="already used by a backward pass"):
        _ = y.grad_fn.next_functions


def test_leaves_of_every_kind() -> None:
    def leaf_of(result: Any) -> Any:
        (leaf,) = walked(result.grad_fn)[1]
        return leaf

    made = tc.ones(2, requires_grad=True)
    later = tc.ones(2).requires_grad_()
    parameter = nn.Parameter(tc.ones(2))
    buffer = nn.Buffer(tc.ones(2)).requires_grad_()
    for leaf in (made, later, parameter, buffer):
        assert leaf_of(leaf.exp()) is leaf
        assert leaf_of(leaf.reshape(2, 1).exp()) is leaf
    parameter.data = tc.zeros(2)
    assert leaf_of(parameter.exp()) is parameter
    parameter.requires_grad_(False).requires_grad_()
    assert leaf_of(parameter.exp()) is parameter


@pytest.mark.parametrize(
    "change",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: model.to(tc.float64).to(tc.float32),
        lambda model: model.load_state_dict(model.state_dict(), assign=True) and model,
        lambda model: model.requires_grad_(False).requires_grad_(),
        lambda model: nn.utils.parametrizations.weight_norm(model) and model,
    ],
)
def test_parameters_after_changes(change: Any) -> None:
    for model in (nn.Linear(3, 2), nn.LazyLinear(2)):
        model(tc.ones(1, 3))
        model = change(model)
        optimizer = tc.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(tc.ones(4, 3)).square().sum()
            leaves = walked(loss.grad_fn)[1]
            assert {id(leaf) for leaf in leaves} == {id(p) for p in model.parameters()}
            loss.backward()
            optimizer.step()


def test_leaves_that_were_copied() -> None:
    x = tc.ones(2, requires_grad=True)
    for leaf in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.detach().requires_grad_()):
        assert next(f.variable for f, _ in leaf.exp().grad_fn.next_functions) is leaf


def test_a_leaf_that_nobody_holds() -> None:
    y = tc.full((2,), 3.0).requires_grad_().exp()
    gc.collect()
    y.tolist()  # what its value was computed of may be freed
    (leaf,) = walked(y.grad_fn)[1]
    y.sum().backward()
    assert leaf.is_leaf and leaf.tolist() == [3.0, 3.0]
    assert leaf.grad.tolist() == y.tolist()


def test_functions_of_a_program() -> None:
    class Scale(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = tc.ones(2, requires_grad=True)
    y = Scale.apply(x)
    assert y.grad_fn.name() == type(y.grad_fn).__name__ == "ScaleBackward"
    assert [f.variable is x for f, _ in y.grad_fn.next_functions] == [True]

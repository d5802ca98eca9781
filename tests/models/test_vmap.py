"""vmap and the other transforms of tc.func: a batch is its examples, one by one, as in torch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.batching import Rewriting
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common

RNG = np.random.default_rng(11)
A = RNG.standard_normal((5, 3, 4))
B = RNG.standard_normal((5, 4, 2))
V = RNG.standard_normal(4)
INDEX = RNG.integers(0, 3, (5, 2))
IMAGES = RNG.standard_normal((4, 1, 8, 8)).astype(np.float32)
LABELS = np.array([2, 0, 1, 2])

Program = Callable[[Any], Callable[..., Any]]


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


# What a function of one example does with a (3, 4) of A and a (4, 2) of B.
TABLE: dict[str, Program] = {
    "elementwise": lambda t: lambda a, b: a.sin() * 2 + t.exp(-a.abs()),
    "broadcast": lambda t: lambda a, b: a + b[:, 0],
    "captured": lambda t: lambda a, b: a * t.tensor(V) + t.tensor(V).sum(),
    "matmul": lambda t: lambda a, b: a @ b,
    "matmul_captured": lambda t: lambda a, b: a @ t.tensor(B[0]),
    "captured_matmul": lambda t: lambda a, b: t.tensor(A[0]) @ b,
    "vectors": lambda t: lambda a, b: t.dot(a[0], b[:, 1]) + a[1] @ t.tensor(V),
    "einsum": lambda t: lambda a, b: t.einsum("ij,jk->ki", a, b),
    "linear": lambda t: lambda a, b: t.nn.functional.linear(a, t.tensor(B[1].T), b[:2, 0]),
    "sum": lambda t: lambda a, b: a.sum(0) + b.sum(),
    "mean_keepdim": lambda t: lambda a, b: a - a.mean(-1, keepdim=True),
    "var": lambda t: lambda a, b: a.var(1),
    "prod": lambda t: lambda a, b: a.prod(0),
    "max": lambda t: lambda a, b: a.max(1).values,
    "argmax": lambda t: lambda a, b: a.argmax(0),
    "amax_all": lambda t: lambda a, b: a.amax(),
    "softmax": lambda t: lambda a, b: t.softmax(a, -1),
    "log_softmax": lambda t: lambda a, b: t.log_softmax(a, 0),
    "logsumexp": lambda t: lambda a, b: t.logsumexp(b, 1),
    "norm": lambda t: lambda a, b: a.norm(dim=1),
    "cumsum": lambda t: lambda a, b: a.cumsum(1),
    "sort": lambda t: lambda a, b: a.sort(1).values,
    "argsort": lambda t: lambda a, b: a.argsort(0),
    "topk": lambda t: lambda a, b: a.topk(2, dim=1).values,
    "median": lambda t: lambda a, b: a.median(1).values,
    "reshape": lambda t: lambda a, b: a.reshape(2, 6),
    "flatten": lambda t: lambda a, b: a.flatten(),
    "transpose": lambda t: lambda a, b: a.transpose(0, 1) + b.mean(1, keepdim=True),
    "permute_expand": lambda t: lambda a, b: a[None].expand(2, 3, 4).permute(2, 0, 1),
    "index": lambda t: lambda a, b: a[1:, ::2],
    "negative_index": lambda t: lambda a, b: a[-1, 1:3],
    "flip": lambda t: lambda a, b: a.flip(1),
    "roll": lambda t: lambda a, b: a.roll(1, 0),
    "pad": lambda t: lambda a, b: t.nn.functional.pad(a, (1, 2), value=3.0),
    "reflect": lambda t: lambda a, b: t.nn.functional.pad(a[None], (1, 1), mode="reflect"),
    "cat": lambda t: lambda a, b: t.cat([a, b.T], 0),
    "stack_captured": lambda t: lambda a, b: t.stack([a[0], t.tensor(V)]),
    "unbind_split": lambda t: lambda a, b: a.split(2, 1)[1] - a.chunk(2, 1)[0],
    "where": lambda t: lambda a, b: t.where(a > 0, a, -2 * a),
    "clamp": lambda t: lambda a, b: a.clamp(-0.5, 0.5),
    "tril": lambda t: lambda a, b: a.tril(),
    "diagonal": lambda t: lambda a, b: a.diagonal(),
    "gather": lambda t: lambda a, b: a.gather(1, t.tensor([[0], [3], [1]])),
    "index_select": lambda t: lambda a, b: a.index_select(0, t.tensor([2, 0, 2])),
    "advanced_index": lambda t: lambda a, b: a[t.tensor([0, 2]), t.tensor([1, 3])],
    "scatter": lambda t: lambda a, b: t.zeros(3, 4, dtype=t.float64).scatter(
        1, t.tensor([[0, 1], [2, 3], [1, 0]]), a[:, :2]
    ),
    "index_add": lambda t: lambda a, b: t.zeros(3, 4, dtype=t.float64).index_add(
        0, t.tensor([1, 1, 0]), a
    ),
    "one_hot": lambda t: lambda a, b: t.nn.functional.one_hot(a.argmax(1), 4),
    "embedding": lambda t: lambda a, b: t.nn.functional.embedding(a.argmax(1), t.tensor(A[0].T)),
    "layer_norm": lambda t: lambda a, b: t.nn.functional.layer_norm(a, (4,), t.tensor(V)),
    "conv1d": lambda t: lambda a, b: t.nn.functional.conv1d(a[None], t.tensor(A[:2, :, :2])),
    "max_pool": lambda t: lambda a, b: t.nn.functional.max_pool1d(a[None], 2),
    "avg_pool": lambda t: lambda a, b: t.nn.functional.avg_pool1d(a[None], 2, 1),
    "attention": lambda t: lambda a, b: t.nn.functional.scaled_dot_product_attention(
        a[None], a[None], a[None]
    ),
    "cross_entropy": lambda t: lambda a, b: t.nn.functional.cross_entropy(
        a, t.tensor([1, 0, 3])
    ),
    "cdist": lambda t: lambda a, b: t.cdist(a, b.T),
    "several": lambda t: lambda a, b: {"x": a * 2, "y": (b.sum(), [b])},
    "the_same_for_all": lambda t: lambda a, b: t.tensor(V) * 2,
    "casts": lambda t: lambda a, b: (a > 0).sum(1) + a.round().long().sum(1),
}  # fmt: skip
# torch's vmap refuses these; they are compared with a loop alone.
NOT_IN_TORCH: dict[str, Program] = {
    "write_to_a_new_tensor": lambda t: lambda a, b: _written(t, a),
    "write_through_a_view": lambda t: lambda a, b: _written_row(a * 1),
    "mode": lambda t: lambda a, b: a.round().mode(1).values,
}


def _written(t: Any, a: Any) -> Any:
    out = t.zeros(2, 3, dtype=t.float64)
    out[1] = a[:, 0]
    return out


def _written_row(a: Any) -> Any:
    a[0].mul_(3)
    a[:, 1:2] += 1
    return a


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [array for item in value for array in flat(item)]
    return [value.detach().numpy()]


@pytest.mark.parametrize("name", [*TABLE, *NOT_IN_TORCH])
def test_a_batch_is_its_examples(name: str) -> None:
    function = (TABLE.get(name) or NOT_IN_TORCH[name])(tc)
    a, b = tc.tensor(A), tc.tensor(B)
    found = flat(tc.vmap(function)(a, b))
    each = [flat(function(a[i], b[i])) for i in range(len(A))]
    assert len(found) == len(each[0])
    for one, parts in zip(found, zip(*each)):
        expected = np.stack(parts)
        assert one.dtype == expected.dtype
        np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-13)


def test_as_torch_in_one_go() -> None:
    """Shapes, dtypes and values of the whole table."""
    torch = pytest.importorskip("torch")
    for name, program in TABLE.items():
        found = flat(tc.vmap(program(tc))(tc.tensor(A), tc.tensor(B)))
        expected = flat(torch.func.vmap(program(torch))(torch.tensor(A), torch.tensor(B)))
        for one, other in zip(found, expected, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype), name
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("name", ["softmax", "conv1d", "scatter", "sort", "matmul", "max_pool"])
def test_gradients_go_through(name: str) -> None:
    """Backward outside: to what is mapped over, of the first and of the second order."""
    function = TABLE[name](tc)
    results = []
    for batched in (True, False):
        a, b = (tc.tensor(v, requires_grad=True) for v in (A, B))
        if batched:
            y = tc.vmap(function)(a, b)
        else:
            y = tc.stack([function(a[i], b[i]) for i in range(len(A))])
        weights = tc.arange(y.numel(), dtype=tc.float64).cos().reshape(y.shape)
        (g,) = tc.autograd.grad((y * y * weights).sum(), a, create_graph=True)
        (h,) = tc.autograd.grad((g * g).sum(), a)
        results.append((g.detach().numpy(), h.numpy()))
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


def test_gradients_to_captured_tensors_are_summed() -> None:
    w = tc.tensor(B[0], requires_grad=True)
    tc.vmap(lambda a: (a @ w).tanh())(tc.tensor(A)).sum().backward()
    found = w.grad.numpy()
    w.grad = None
    (tc.tensor(A) @ w).tanh().sum().backward()
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=1e-12)


@pytest.mark.smoke("autograd")
@pytest.mark.parametrize(
    ("in_dims", "out_dims"),
    [(0, 0), ((0, None), 0), ((2, 0), 1), ((-1, None), -1), ((None, 1), 2), ([1, 0], 0)],
)
def test_dims_as_torch(in_dims: Any, out_dims: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = RNG.standard_normal((4, 4, 4)), RNG.standard_normal((4, 4))

    def run(t: Any) -> Any:
        dims = tuple(in_dims) if isinstance(in_dims, list) else in_dims
        function = t.func.vmap(
            lambda a, b: t.sin(a).unsqueeze(-1) + b.sum() * t.tensor(V),
            in_dims=dims, out_dims=out_dims,
        )  # fmt: skip
        return function(t.tensor(a), t.tensor(b)).numpy()

    np.testing.assert_allclose(run(tc), run(torch), rtol=1e-12)


def test_structures_keywords_and_chunks() -> None:
    def function(tree: Any, scale: Any, *, shift: Any) -> Any:
        return {"a": tree["a"] * scale, "b": [tree["b"][0].sum() + shift]}, tree["b"][0]

    tree = {"a": tc.tensor(A), "b": (tc.tensor(V),)}
    shift = tc.arange(3.0)
    dims = ({"a": 0, "b": (None,)}, None)
    whole = tc.vmap(function, in_dims=dims, out_dims=({"a": 1, "b": [0]}, None))
    chunked = tc.vmap(
        function, in_dims=dims, out_dims=({"a": 1, "b": [0]}, None), chunk_size=2
    )  # fmt: skip
    for mapped in (whole, chunked):
        out, same = mapped(tree, 2.0, shift=shift)
        np.testing.assert_allclose(out["a"].numpy(), (2 * A).transpose(1, 0, 2))
        np.testing.assert_allclose(out["b"][0].numpy(), V.sum() + np.ones((5, 1)) * np.arange(3))
        assert same.tolist() == V.tolist()


def test_nested() -> None:
    """An outer product of an outer product, with nothing but multiplication inside."""
    x, y = tc.tensor(V), tc.tensor(B[0, :, 0])
    outer = tc.vmap(tc.vmap(tc.mul, (None, 0)), (0, None))
    np.testing.assert_allclose(outer(x, y).numpy(), np.outer(V, B[0, :, 0]))
    deep = tc.vmap(tc.vmap(tc.vmap(lambda a: a.softmax(0).max() + x.sum())))
    found = deep(tc.tensor(A[:, :, None] * np.ones((2, 1)))).numpy()
    weights = np.exp(A) / np.exp(A).sum(-1, keepdims=True)
    np.testing.assert_allclose(found[:, :, 0], weights.max(-1) + V.sum(), rtol=1e-12)


# Per-sample gradients -----------------------------------------------------------------------------


def mlp(t: Any) -> Any:
    return t.nn.Sequential(
        t.nn.Flatten(), t.nn.Linear(64, 7), t.nn.Tanh(), t.nn.LayerNorm(7), t.nn.Linear(7, 3)
    )


def convnet(t: Any) -> Any:
    return t.nn.Sequential(
        t.nn.Conv2d(1, 3, 3, padding=1), t.nn.GroupNorm(3, 3), t.nn.ReLU(), t.nn.MaxPool2d(2),
        t.nn.Conv2d(3, 2, 3, stride=2), t.nn.GELU(), t.nn.Flatten(), t.nn.Linear(2, 3),
    )  # fmt: skip


def per_sample(t: Any, model: Any, device: str) -> tuple[dict[str, Any], Any]:
    """PyTorch's tutorial."""

    def loss_of(parameters: Any, sample: Any, target: Any) -> Any:
        prediction = t.func.functional_call(model, parameters, (sample.unsqueeze(0),))
        return t.nn.functional.cross_entropy(prediction, target.unsqueeze(0))

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x, y = (t.tensor(v, device=device) for v in (IMAGES, LABELS))
    found = t.func.vmap(t.func.grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
    return found, loss_of


@pytest.mark.parametrize("make", [mlp, convnet])
def test_per_sample_gradients_equal_a_loop(make: Any) -> None:
    model = make(tc)
    found, loss_of = per_sample(tc, model, "cpu")
    parameters = dict(model.named_parameters())
    for i in range(len(IMAGES)):
        x, y = (tc.tensor(v[i]) for v in (IMAGES, LABELS))
        expected = tc.autograd.grad(loss_of(parameters, x, y), list(parameters.values()))
        for name, g in zip(parameters, expected):
            assert not found[name].requires_grad
            one = found[name][i].numpy()
            np.testing.assert_allclose(one, g.numpy(), rtol=1e-4, atol=1e-6)


def test_per_sample_gradients_on_the_emulator() -> None:
    model = convnet(tc)
    expected, _ = per_sample(tc, model, "cpu")
    found, _ = per_sample(tc, model.to("emu"), "emu")
    for name, g in expected.items():
        np.testing.assert_allclose(found[name].cpu().numpy(), g.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [mlp, convnet])
def test_per_sample_gradients_as_torch(make: Any) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = make(tc), make(torch)
    state = ours.state_dict()
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in state.items()})
    found, _ = per_sample(tc, ours, "cpu")
    expected, _ = per_sample(torch, theirs, "cpu")
    for name, g in expected.items():
        np.testing.assert_allclose(found[name].numpy(), g.numpy(), rtol=1e-4, atol=1e-6)


def test_a_steady_loop_makes_no_new_plan() -> None:
    model = mlp(tc)
    for _ in range(2):  # the first turn makes the parameters too
        per_sample(tc, model, "cpu")[0]["1.weight"].numpy()
    before = cache.made
    per_sample(tc, model, "cpu")[0]["1.weight"].numpy()
    assert cache.made == before


def test_live_nodes_stay_constant_without_the_garbage_collector() -> None:
    """Neither gradients taken inside nor a backward pass outside leave a reference cycle."""
    model = convnet(tc)
    optimizer = tc.optim.SGD(model.parameters(), lr=0.01)
    x, y = tc.tensor(IMAGES), tc.tensor(LABELS)
    _, loss_of = per_sample(tc, model, "cpu")
    counts = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(6):
            per_sample(tc, model, "cpu")[0]["0.weight"].numpy()
            optimizer.zero_grad()
            losses = tc.vmap(loss_of, (None, 0, 0))(dict(model.named_parameters()), x, y)
            losses.mean().backward()
            optimizer.step()
            del losses
            counts.append(sum(type(thing) is Node for thing in gc.get_objects()))
    finally:
        gc.enable()
    assert counts[2:] == counts[2:3] * 4


def test_ensemble() -> None:
    models = [mlp(tc) for _ in range(3)]
    parameters, buffers = tc.func.stack_module_state(models)
    assert parameters["1.weight"].shape == (3, 7, 64) and parameters["1.weight"].is_leaf

    def call(parameters: Any, buffers: Any, x: Any) -> Any:
        return tc.func.functional_call(models[0], (parameters, buffers), (x,))

    x = tc.tensor(IMAGES)
    found = tc.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)
    expected = np.stack([model(x).detach().numpy() for model in models])
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    found.sum().backward()
    assert parameters["4.weight"].grad.shape == (3, 3, 7)


# Other transforms ---------------------------------------------------------------------------------


def transforms(t: Any) -> dict[str, Any]:
    f = t.func
    x, w = t.tensor(V), t.tensor(B[0])
    matrix = t.tensor(A[0])

    def scalar(x: Any, w: Any) -> Any:
        return (t.sin(x) @ w).pow(3).sum()

    def vector(x: Any) -> Any:
        return t.stack([x.prod(), (x * x).sum(), x[0].exp()])

    return {
        "grad": f.grad(scalar)(x, w),
        "grad_both": f.grad(scalar, argnums=(0, 1))(x, w),
        "grad_and_value": f.grad_and_value(scalar, argnums=1)(x, w),
        "grad_aux": f.grad(lambda x: (x.sin().sum(), (x * 2, {"k": x})), has_aux=True)(x),
        "third": f.grad(f.grad(f.grad(lambda x: x**4)))(x[0]),
        "grad_of_tree": f.grad(lambda p: (p["a"] * p["b"][0]).sum())({"a": x, "b": (x,)}),
        "unused": f.grad(lambda x, w: w.sum(), argnums=0)(x, w),
        "vjp": f.vjp(vector, x)[1](t.tensor(V[:3])),
        "jvp": f.jvp(vector, (x,), (t.tensor(B[0, :, 0]),)),
        "jvp_two": f.jvp(scalar, (x, w), (x * 2, w * 3)),
        "jacrev": f.jacrev(vector)(x),
        "jacrev_two": f.jacrev(lambda x, w: x @ w, argnums=(0, 1))(x, w),
        "jacfwd": f.jacfwd(vector)(x),
        "hessian": f.hessian(lambda x: scalar(x, w))(x),
        "vmap_of_jacrev": f.vmap(f.jacrev(lambda v: v.sin() * v.sum()))(matrix),
        "vmap_of_hessian": f.vmap(f.hessian(lambda v: v.prod()))(matrix),
        "jacrev_of_vmap": f.jacrev(f.vmap(lambda v: v.softmax(0)))(matrix),
        "grad_of_vmap": f.grad(lambda w: f.vmap(lambda v: (v @ w).tanh())(matrix).sum())(w),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transforms_as_torch() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = transforms(tc), transforms(torch)
    for name, expected in theirs.items():
        for one, other in zip(flat(ours[name]), flat(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11, err_msg=name)


def test_grad_is_differentiable_outside_and_works_under_no_grad() -> None:
    w = tc.tensor(V, requires_grad=True)
    g = tc.func.grad(lambda x: (x * x * w).sum())(tc.tensor([1.0, 2.0, 3.0, 4.0]).double())
    g.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [2, 4, 6, 8])
    x = tc.tensor(V, requires_grad=True)
    tc.func.grad(lambda x: (x**3).sum())(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * V)
    with tc.no_grad():
        found = tc.func.grad(lambda x: (x**2).sum())(x)
    assert not found.requires_grad
    np.testing.assert_allclose(found.numpy(), 2 * V)
    assert x.grad is not None and x.requires_grad


def test_a_batch_of_seeds_as_torch() -> None:
    torch = pytest.importorskip("torch")
    results = []
    for t in (tc, torch):
        x = t.tensor(A[0], requires_grad=True)
        y = (x.softmax(1) @ t.tensor(B[0])).tanh()
        seeds = t.tensor(B[:, :3].repeat(2, 0)[:4] + 1)
        (g,) = t.autograd.grad(y, x, seeds, is_grads_batched=True)
        results.append(g.numpy())
    np.testing.assert_allclose(*results, rtol=1e-9, atol=1e-12)


def test_autograd_inside() -> None:
    """Leaves made, and gradients taken, inside the function belong to the example."""

    def slope(v: Any) -> Any:
        x = v.detach().requires_grad_()
        return tc.autograd.grad((x.sin() * x).sum(), x)[0]

    rows = tc.tensor(A[0])
    expected = np.sin(A[0]) + A[0] * np.cos(A[0])
    np.testing.assert_allclose(tc.vmap(slope)(rows).numpy(), expected, rtol=1e-12)


# Random numbers -----------------------------------------------------------------------------------


def test_randomness() -> None:
    x = tc.zeros(4, 6)

    def noisy(v: Any) -> Any:
        return v + tc.rand(6)

    with pytest.raises(tc.ArgumentError, match="a random function was called inside"):
        tc.vmap(noisy)(x)
    same = tc.vmap(noisy, randomness="same")(x).numpy()
    assert (same == same[0]).all() and len(np.unique(same[0])) == 6
    different = tc.vmap(noisy, randomness="different")(x).numpy()
    assert len(np.unique(different)) == 24
    dropped = tc.vmap(lambda v: tc.nn.functional.dropout(v + 1), randomness="different")(
        tc.zeros(50, 20)
    )
    kept = (dropped != 0).float().mean(1).numpy()
    assert len(np.unique(kept)) > 1 and 0.35 < kept.mean() < 0.65
    nested = tc.vmap(tc.vmap(noisy, randomness="different"), randomness="different")(
        tc.zeros(2, 3, 6)
    )
    assert len(np.unique(nested.numpy())) == 36


# Errors -------------------------------------------------------------------------------------------


def test_looking_at_an_example_is_refused() -> None:
    x = tc.tensor(A[0])
    for look in (
        lambda v: v * 2 if v.sum() > 0 else v,
        lambda v: v * v[0].item(),
        lambda v: v[v > 0],
        lambda v: tc.linalg.inv(v.reshape(2, 2)),
    ):
        with pytest.raises(tc.ArgumentError, match="a value was looked at inside"):
            tc.vmap(look)(x)
    assert tc.vmap(lambda v: v * tc.tensor(3.0).item())(x).shape == (3, 4)


def test_writing_outside_is_refused() -> None:
    total, pending = tc.zeros(4), tc.zeros(4) + 1
    total.numpy()
    for place in (total, pending):
        with pytest.raises(tc.ArgumentError, match="to one Tensor outside vmap"):
            tc.vmap(lambda v, place=place: place.add_(v.float()))(tc.tensor(A[0]))
    assert total.tolist() == [0.0] * 4 and pending.tolist() == [1.0] * 4
    model = tc.nn.BatchNorm1d(4)
    with pytest.raises(tc.ArgumentError, match="batch norm"):
        tc.vmap(model)(tc.tensor(A).float())


def test_what_escapes_has_no_value() -> None:
    kept = []
    w = tc.tensor(V, requires_grad=True)

    def leaking(v: Any) -> Any:
        kept.append(v * 2)
        (v * w).sum().backward()
        return v

    tc.vmap(leaking)(tc.tensor(A[0]))
    for tensor in (kept[0], w.grad):
        with pytest.raises(tc.ArgumentError, match="a call of vmap that is over"):
            tensor.tolist()
    # And nothing else is harmed.
    assert (w.detach() * 2).tolist() == (V * 2).tolist()


def test_bad_arguments() -> None:
    x = tc.tensor(A)
    for make, text in (
        (lambda: tc.vmap(tc.sin)(2.0), "is no Tensor"),
        (lambda: tc.vmap(tc.sin, in_dims=None)(x), "nothing is mapped"),
        (lambda: tc.vmap(tc.sin, in_dims=3)(x), "has no dimension 3"),
        (lambda: tc.vmap(tc.sin)(tc.tensor(1.0)), "has no dimension 0"),
        (lambda: tc.vmap(tc.mul)(x, tc.ones(4)), "the counts of examples differ"),
        (lambda: tc.vmap(tc.mul, in_dims=(0,))(x, x), "in_dims do not match"),
        (lambda: tc.vmap(tc.sin, out_dims=(0, 0))(x), "out_dims do not match"),
        (lambda: tc.vmap(tc.sin, out_dims=4)(x), "new dimension at 4"),
        (lambda: tc.vmap(tc.sin, out_dims=None)(x), "differs from example to example"),
        (lambda: tc.vmap(lambda v: 3)(x), "other than Tensors"),
        (lambda: tc.vmap(tc.sin, randomness="often"), "unknown randomness"),
        (lambda: tc.vmap(tc.sin, chunk_size=0), "no example at a time"),
        (lambda: tc.func.grad(tc.sin)(x), "did not return one number"),
        (lambda: tc.func.grad(tc.sum)(tc.arange(3)), "has no gradient"),
        (lambda: tc.func.grad(tc.sum, argnums=1)(x), "there is no argument 1"),
        (lambda: tc.func.functional_call(tc.nn.ReLU(), {"w": x}, x), "unknown: w"),
        (lambda: tc.func.functional_call(tc.nn.Linear(1, 1), {}, x, strict=True), "missing"),
        (lambda: tc.func.stack_module_state([tc.nn.ReLU(), tc.nn.Tanh()]), "several classes"),
        (lambda: tc.func.jvp(tc.sin, (x,), (tc.ones(2),)), "other shapes than the primals"),
    ):  # fmt: skip
        with pytest.raises(tc.TgcError) as caught:
            make()
        # Not the line of the call, which quotes this table.
        assert text in str(caught.value).split("\n  at:")[0]


def test_an_op_without_a_rule_says_so() -> None:
    alone = Op("alone", "kernel", common.same, numpy=lambda x: x)
    x = tc.tensor(V).node
    with pytest.raises(tc.ArgumentError, match="there is no batching rule for alone") as caught:
        Rewriting({x: tc.tensor(A[0]).node}, 3)([alone(x)])
    assert "test_vmap.py" in str(caught.value)


def test_hooks_inside_are_refused() -> None:
    def hooked(v: Any) -> Any:
        y = v * 2
        y.register_hook(lambda g: g)
        return y

    with pytest.raises(tc.GradientError, match="a tensor hook inside"):
        tc.vmap(hooked)(tc.tensor(A[0], requires_grad=True))


def test_functional_call_leaves_the_module_alone() -> None:
    model = tc.nn.BatchNorm1d(4)
    own = dict(model.named_buffers())
    given = {"running_mean": tc.ones(4), "weight": tc.full((4,), 2.0)}
    tc.func.functional_call(model, given, tc.tensor(A[0]).float())
    assert dict(model.named_buffers())["running_mean"] is own["running_mean"]
    assert own["running_mean"].tolist() == [0.0] * 4
    assert given["running_mean"].tolist() != [1.0] * 4
    with pytest.raises(tc.ShapeError):
        tc.func.functional_call(model, given, tc.ones(2))
    assert isinstance(model.weight, tc.nn.Parameter)
    tied = tc.nn.Sequential(tc.nn.Linear(2, 2, bias=False), tc.nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    out = tc.func.functional_call(tied, {"0.weight": tc.eye(2) * 3}, tc.ones(1, 2))
    assert out.tolist() == [[9.0, 9.0]]

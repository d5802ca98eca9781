"""autocast: which dtype each operation gives, what it computes, and how gradients go back."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.graph.ops import elementwise
from tinygrad_cuda.graph.rewrite import simplify
from tinygrad_cuda.nn import functional as F

RNG = np.random.default_rng(5)
A = RNG.standard_normal((4, 4)).astype(np.float32)
B = RNG.standard_normal((4, 4)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 3, 6, 6)).astype(np.float32)
KERNEL = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
TURNED = RNG.standard_normal((3, 4, 3, 3)).astype(np.float32)
LABELS = np.array([0, 3, 1, 2])

Program = Callable[[Any, Any, Any], Any]


def functional(t: Any) -> Any:
    return t.nn.functional


# Takes the library, a float32 matrix and a bfloat16 one.
# Here CUDA's rule, which holds on every device here, is that of torch's CPU autocast too.
ALIKE: dict[str, Program] = {
    "matmul": lambda t, x, h: x @ h,
    "mm": lambda t, x, h: t.mm(x, x),
    "bmm": lambda t, x, h: t.bmm(x[None], h[None]),
    "mv": lambda t, x, h: t.matmul(x, x[0]),
    "addmm": lambda t, x, h: t.addmm(x, h, x),
    "baddbmm": lambda t, x, h: t.baddbmm(x[None], x[None], h[None]),
    "einsum": lambda t, x, h: t.einsum("ij,jk->ik", x, x),
    "linear": lambda t, x, h: functional(t).linear(x, h, x[0]),
    "conv2d": lambda t, x, h: functional(t).conv2d(t.tensor(IMAGE), t.tensor(KERNEL)),
    "conv1d": lambda t, x, h: functional(t).conv1d(x[None], x[:, :, None]),
    "conv_transpose2d": lambda t, x, h: functional(t).conv_transpose2d(
        t.tensor(IMAGE), t.tensor(TURNED)
    ),
    "attention": lambda t, x, h: functional(t).scaled_dot_product_attention(
        x[None], x[None], x[None]
    ),
    "lstm": lambda t, x, h: _ones(t, t.nn.LSTM(4, 4))(x[None])[0],
    "add_promotes": lambda t, x, h: x + h,
    "mul_half": lambda t, x, h: h * h,
    "relu_half": lambda t, x, h: t.relu(h),
    "tanh_half": lambda t, x, h: t.tanh(h),
    "sigmoid_float": lambda t, x, h: t.sigmoid(x),
    "mean_half": lambda t, x, h: h.mean(),
    "cat": lambda t, x, h: t.cat([x, h]),
    "stack": lambda t, x, h: t.stack([h, x]),
    "batch_norm": lambda t, x, h: functional(t).batch_norm(h, x[0], x[1].abs(), x[2], x[3]),
    "mse_loss": lambda t, x, h: functional(t).mse_loss(h, x),
    "nll_loss": lambda t, x, h: functional(t).nll_loss(h, t.tensor(LABELS)),
    "linear_cross_entropy": lambda t, x, h: functional(t).linear_cross_entropy(
        x, h, t.tensor(LABELS), linear_bias=x[0], label_smoothing=0.1
    ),
    "cross_entropy": lambda t, x, h: functional(t).cross_entropy(h, t.tensor(LABELS)),
    "kl_div": lambda t, x, h: functional(t).kl_div(h, h.abs(), reduction="sum"),
    "prod": lambda t, x, h: h[0].prod(),
    "double": lambda t, x, h: x.double() @ x.double(),
    "integers": lambda t, x, h: t.tensor(LABELS).sum(),
}  # fmt: skip
# Here torch's CPU list says bfloat16, and CUDA's, which holds here, float32.
IN_FLOAT32: dict[str, Program] = {
    "softmax": lambda t, x, h: t.softmax(h, 1),
    "log_softmax": lambda t, x, h: functional(t).log_softmax(h, 1),
    "exp": lambda t, x, h: t.exp(h),
    "log": lambda t, x, h: t.log(h.abs()),
    "log1p": lambda t, x, h: h.abs().log1p(),
    "pow": lambda t, x, h: h**2,
    "rpow": lambda t, x, h: 2.0**h,
    "reciprocal": lambda t, x, h: 1.0 / h,
    "rsqrt": lambda t, x, h: t.rsqrt(h.abs()),
    "softplus": lambda t, x, h: functional(t).softplus(h),
    "sum": lambda t, x, h: h.sum(),
    "cumsum": lambda t, x, h: t.cumsum(h, 0),
    "norm": lambda t, x, h: t.norm(h),
    "logsumexp": lambda t, x, h: t.logsumexp(h, 1),
    "layer_norm": lambda t, x, h: functional(t).layer_norm(h, (4,), x[0], x[1]),
    "group_norm": lambda t, x, h: functional(t).group_norm(h, 2, x[0], x[1]),
    "cosine_similarity": lambda t, x, h: functional(t).cosine_similarity(h, h),
    "l1_loss": lambda t, x, h: functional(t).l1_loss(h, x),
    "bce_with_logits": lambda t, x, h: functional(t).binary_cross_entropy_with_logits(
        h, x.sigmoid()
    ),
}  # fmt: skip


def _ones(t: Any, module: Any) -> Any:
    with t.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.fill_(0.1 * (number + 1))
    return module


def run(t: Any, program: Program) -> tuple[str, np.ndarray[Any, Any]]:
    """The dtype's name and the value, computed under bfloat16 autocast."""
    x, h = t.tensor(A), t.tensor(B).to(t.bfloat16)
    with t.autocast("cpu", dtype=t.bfloat16):
        y = program(t, x, h)
    return str(y.dtype).split(".")[-1], y.detach().to(t.float64).numpy()


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


@pytest.mark.parametrize("name", [*ALIKE, *IN_FLOAT32])
def test_against_torch(name: str) -> None:
    """Values within bfloat16's precision; dtypes too, where torch's two lists agree."""
    torch = pytest.importorskip("torch")
    if name == "lstm" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch's LSTM of bfloat16 needs AVX-512")
    if name == "linear_cross_entropy" and not hasattr(torch.nn.functional, name):
        pytest.skip("this torch has no linear_cross_entropy")
    program = ALIKE.get(name) or IN_FLOAT32[name]
    dtype, value = run(tc, program)
    expected_dtype, expected = run(torch, program)
    np.testing.assert_allclose(value, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())
    if name in ALIKE:
        assert dtype == expected_dtype
    else:
        assert dtype == "float32"


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_range_wants_float32(name: str) -> None:
    """Computed from the half values in float32, not rounded on the way."""
    dtype, value = run(tc, IN_FLOAT32[name])
    with tc.autocast("cpu", enabled=False):
        wide = IN_FLOAT32[name](tc, tc.tensor(A), tc.tensor(B).bfloat16().float())
    assert dtype == "float32"
    np.testing.assert_allclose(value, wide.double().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_logits_of_linear_cross_entropy_are_those_of_linear(name: str) -> None:
    """Of 16 bits; the loss is computed in float32."""
    x, weight, labels = tc.tensor(A), tc.tensor(B), tc.tensor(LABELS)
    with tc.autocast("cpu", dtype=getattr(tc, name)):
        logits = F.linear(x, weight, x[0])
        apart = F.cross_entropy(logits, labels, label_smoothing=0.1)
        loss = F.linear_cross_entropy(x, weight, labels, linear_bias=x[0], label_smoothing=0.1)
    assert (logits.dtype, loss.dtype) == (getattr(tc, name), tc.float32)
    assert loss.item() == apart.item()


# Ours that are spelled otherwise, or are one function for several.
SPELLED = {
    "linalg_vecdot": "linalg.vecdot", "linalg_multi_dot": "linalg.multi_dot",
    "linalg_vector_norm": "linalg.vector_norm", "linalg_matrix_norm": "linalg.matrix_norm",
    "frobenius_norm": "linalg.norm", "nuclear_norm": "norm", "nll_loss2d": "nn.functional.nll_loss",
    "native_layer_norm": "nn.functional.layer_norm", "grid_sampler": "nn.functional.grid_sample",
    "upsample_bilinear2d": "nn.functional.interpolate",
}  # fmt: skip
LISTS = {
    "LOWER_PRECISION_FP": "half", "FP32": "float32", "FP32_SET_OPT_DTYPE": "float32",
    "PROMOTE": "widest",
}  # fmt: skip


def found_by(name: str) -> Any:
    """The function of that name, here or in a part of the package."""
    if name in SPELLED:
        owner = tc
        for step in SPELLED[name].split("."):
            owner = getattr(owner, step)
        return owner
    functions = [f for f in (getattr(tc, name, None), getattr(F, name, None)) if f is not None]
    # Of two, one may only call the other, with the arguments in another order.
    return next(
        (f for f in functions if hasattr(f, "autocast")), functions[0] if functions else None
    )


def test_lists_are_those_that_torch_has_for_cuda() -> None:
    """Read from the header that torch brings; cells and internal names apart."""
    torch = pytest.importorskip("torch")
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        pytest.skip("this torch brings no headers")
    text = header.read_text().replace("\\\n", "\n")
    compared = 0
    for list_name, policy in LISTS.items():
        body = text.partition(f"#define AT_FORALL_{list_name}(_)")[2].partition("#define")[0]
        for name in re.findall(r"_\((\w+)[,)]", body):
            function = None if name.startswith("_") else found_by(name)
            if function is not None:
                assert getattr(function, "autocast", None) == policy, name
                compared += 1
    assert compared >= 85


def test_nothing_is_cast_outside_or_elsewhere() -> None:
    x = tc.tensor(A)
    with tc.autocast("cuda", dtype=tc.bfloat16):
        assert (x @ x).dtype is tc.float32
        assert tc.is_autocast_enabled() and not tc.is_autocast_enabled("cpu")
    with tc.autocast("cpu", enabled=False):
        assert (x @ x).dtype is tc.float32
    assert (x @ x).dtype is tc.float32


def test_nesting_and_exceptions() -> None:
    x = tc.tensor(A)
    with tc.autocast("cpu"):
        assert (x @ x).dtype is tc.bfloat16
        with tc.autocast("cpu", dtype=tc.float16):
            assert (x @ x).dtype is tc.float16
            assert tc.get_autocast_dtype("cpu") is tc.float16
            with pytest.raises(ZeroDivisionError), tc.autocast("cpu", enabled=False):
                assert (x @ x).dtype is tc.float32
                raise ZeroDivisionError
            assert (x @ x).dtype is tc.float16
        assert (x @ x).dtype is tc.bfloat16
    assert not tc.is_autocast_enabled("cpu")


def test_as_decorator() -> None:
    @tc.autocast("cpu")
    def product(x: Any) -> Any:
        """A product."""
        return x @ x

    assert product(tc.tensor(A)).dtype is tc.bfloat16
    assert product.__doc__ == "A product."
    assert not tc.is_autocast_enabled("cpu")


def test_decorated_in_two_threads_at_once() -> None:
    """Each call restores what its own thread had."""
    inside, left = threading.Barrier(2), []

    @tc.autocast("cpu", dtype=tc.float16)
    def meet() -> Any:
        inside.wait(timeout=10)
        return tc.get_autocast_dtype("cpu")

    def work(outer: bool) -> None:
        with tc.autocast("cpu", enabled=outer):
            assert meet() is tc.float16
            left.append((outer, tc.is_autocast_enabled("cpu")))

    threads = [threading.Thread(target=work, args=(outer,)) for outer in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(left) == [(False, False), (True, True)]


def test_an_operation_made_of_others_is_cast_as_one() -> None:
    """Attention asks for a half type, and the softmax inside does not make float32 of it."""
    x = tc.tensor(A)[None]
    with tc.autocast("cpu"):
        assert F.scaled_dot_product_attention(x, x, x).dtype is tc.bfloat16
        assert tc.is_autocast_enabled("cpu")


def test_a_product_that_fails_leaves_autocast_on() -> None:
    with tc.autocast("cpu"):
        with pytest.raises(tc.ShapeError):
            _ = tc.ones(2, 3) @ tc.ones(2, 3)
        assert (tc.ones(2, 2) @ tc.ones(2, 2)).dtype is tc.bfloat16


def losses(t: Any, device: str, dtype: Any) -> tuple[list[float], list[Any]]:
    """Five steps of a small network under autocast, from fixed weights."""
    sizes = ((8, 4), (8,), (3, 8), (3,))
    rng = np.random.default_rng(1)
    parameters = [
        t.tensor(rng.standard_normal(size).astype(np.float32) / 2, device=device)
        for size in sizes
    ]  # fmt: skip
    for parameter in parameters:
        parameter.requires_grad_()
    x = t.tensor(rng.standard_normal((6, 4)).astype(np.float32), device=device)
    y = t.tensor(rng.integers(0, 3, 6), device=device)
    optimizer = t.optim.SGD(parameters, lr=0.1, momentum=0.9)
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        with t.autocast(device, dtype=dtype):
            hidden = t.relu(t.nn.functional.linear(x, parameters[0], parameters[1]))
            loss = t.nn.functional.cross_entropy(
                t.nn.functional.linear(hidden, parameters[2], parameters[3]), y
            )
        loss.backward()
        assert all(p.grad.dtype == t.float32 for p in parameters)
        optimizer.step()
        found.append(loss.item())
    return found, [p.detach().cpu().numpy() for p in parameters]


def test_training_follows_torch() -> None:
    torch = pytest.importorskip("torch")
    ours, weights = losses(tc, "cpu", tc.bfloat16)
    theirs, expected = losses(torch, "cpu", torch.bfloat16)
    np.testing.assert_allclose(ours, theirs, rtol=1e-2)
    for weight, other in zip(weights, expected):
        np.testing.assert_allclose(weight, other, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_emulator_trains_as_the_cpu(dtype: str) -> None:
    on_emulator, _ = losses(tc, "emu", getattr(tc, dtype))
    on_numpy, _ = losses(tc, "cpu", getattr(tc, dtype))
    np.testing.assert_allclose(on_emulator, on_numpy, rtol=1e-2)


def test_a_weight_used_twice_is_cast_once() -> None:
    """Equal casts are one node of the plan, so a cache of casts is not needed."""
    w, x = tc.tensor(A), tc.tensor(B)
    with tc.autocast("cpu"):
        y = x @ w + (x * 2) @ w
    casts = [
        [node.sources[0] for node in topological(roots) if node.op is elementwise.cast]
        for roots in ([y.node], list(simplify([y.node])))
    ]
    assert [len(sources) for sources in casts] == [4, 3]
    assert casts[1].count(w.node) == 1


def test_a_steady_loop_makes_no_new_plan() -> None:
    losses(tc, "cpu", tc.bfloat16)
    before = cache.made
    losses(tc, "cpu", tc.bfloat16)
    assert cache.made == before


def test_an_unsafe_loss_is_refused_in_float16() -> None:
    p, y = tc.tensor([0.25, 0.5]), tc.tensor([0.0, 1.0])
    with tc.autocast("cpu", dtype=tc.float16):
        with pytest.raises(tc.DTypeError, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(p.half(), y)
        assert F.binary_cross_entropy(p, y).dtype is tc.float32
    with tc.autocast("cpu"):
        assert F.binary_cross_entropy(p.bfloat16(), y).dtype is tc.float32


def test_bad_arguments() -> None:
    with pytest.raises(tc.ArgumentError, match="no such kind of device"):
        tc.autocast("cuda:0")
    with pytest.raises(tc.DTypeError, match="half types only"):
        tc.autocast("cpu", dtype=tc.float32)


def test_default_dtypes() -> None:
    assert tc.autocast("cpu").fast_dtype is tc.bfloat16
    assert tc.autocast("cuda").fast_dtype is tc.cuda.amp.autocast().fast_dtype is tc.float16
    tc.set_autocast_dtype("cpu", tc.float16)
    try:
        assert tc.autocast("cpu").fast_dtype is tc.float16
    finally:
        tc.set_autocast_dtype("cpu", tc.bfloat16)
    assert tc.amp.is_autocast_available("cuda") and not tc.amp.is_autocast_available("tpu")
    assert not tc.amp.is_autocast_available("meta")
    for call in (tc.autocast, tc.get_autocast_dtype, tc.is_autocast_enabled):
        with pytest.raises(tc.ArgumentError, match="no such kind of device"):
            call("meta")


class Square(tc.autograd.Function):
    @staticmethod
    @tc.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @tc.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        product = g @ x.T
        assert product.dtype is tc.bfloat16
        return product + x.T @ g


def test_function_of_the_users_own() -> None:
    """Backward runs outside the block, and as forward did all the same."""
    x = tc.tensor(A, requires_grad=True)
    with tc.autocast("cpu"):
        y = Square.apply(x)
    y.sum().backward()
    assert y.dtype is tc.bfloat16 and x.grad.dtype is tc.float32
    ones = np.ones((4, 4), np.float32)
    np.testing.assert_allclose(x.grad.numpy(), ones @ A.T + A.T @ ones, rtol=3e-2, atol=6e-2)

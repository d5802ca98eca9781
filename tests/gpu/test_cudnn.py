"""tc.kernels.provider("cudnn"): values, replays and bits of convolutions and attention by cuDNN.

Where a GPU and NVIDIA's frontend are missing, the pretended GPU runs them with a library in Python.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from pretended_cudnn import CudnnModule, pretended_cudnn

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.nn import functional as F

Array = np.ndarray[Any, Any]
REAL = runtime.available() and importlib.util.find_spec("cudnn") is not None
# Of the largest result; tf32 rounds operands to 11 bits, and Winograd's tiles lose some of float32.
TOLERANCE = {"float32": 3e-5, "tf32": 2e-3, "bfloat16": 2**-7, "float16": 2**-9}
CONVOLVE = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}

# Images, weight, and how windows lie.
Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]
CASES: dict[str, Case] = {
    "plain": ((2, 8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "odd channels": ((3, 5, 7, 6), (7, 5, 2, 3), {}),
    "images of one channel": ((4, 1, 8, 8), (6, 1, 3, 3), {"padding": 1}),
    "stride": ((2, 8, 12, 9), (8, 8, 3, 3), {"stride": 2, "padding": 1}),
    "strides that leave a rest": ((2, 3, 11, 13), (4, 3, 4, 2), {"stride": (3, 2)}),
    "dilation": ((2, 4, 12, 12), (8, 4, 3, 3), {"dilation": (2, 3), "padding": 2}),
    "stride and dilation": ((2, 8, 13, 14), (8, 8, 3, 2), {"stride": 2, "dilation": 2}),
    "groups": ((2, 12, 7, 7), (6, 4, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((2, 8, 9, 9), (16, 1, 3, 3), {"groups": 8, "padding": 1, "stride": 2}),
    "pixels": ((2, 16, 6, 5), (8, 16, 1, 1), {}),
    "pixels a stride apart": ((2, 16, 6, 5), (8, 16, 1, 1), {"stride": 2}),
    "one window": ((3, 4, 5, 5), (6, 4, 5, 5), {}),
    "wide padding": ((2, 4, 5, 5), (4, 4, 2, 2), {"padding": 3}),
    "one axis": ((3, 6, 20), (10, 6, 5), {"padding": 2, "stride": 2}),
    "three axes": ((2, 4, 5, 6, 7), (6, 4, 3, 2, 3), {"padding": (1, 0, 1)}),
}
if REAL:
    CASES |= {
        "a layer": ((16, 128, 28, 28), (128, 128, 3, 3), {"padding": 1}),
        "a layer with a stride": ((16, 64, 56, 56), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
        "a first layer": ((8, 3, 112, 112), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
        "many pixels": ((16, 256, 14, 14), (1024, 256, 1, 1), {}),
    }

# A default device chosen while there is a pretended GPU would outlive it.
pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture
def library() -> Iterator[CudnnModule | None]:
    """The library in Python; None where the real one convolves."""
    with contextlib.nullcontext(None) if REAL else pretended_cudnn() as made:
        try:
            with tc.kernels.provider("cudnn"):
                yield made
        finally:
            tc.kernels.provider(None)


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def on_gpu(array: Array, dtype: str = "float32", last: bool = False) -> Any:
    made = tc.tensor(array).to(getattr(tc, dtype)).to("cuda")
    kind = {4: tc.channels_last, 5: tc.channels_last_3d}.get(array.ndim)
    made = made.to(memory_format=kind) if last and kind is not None else made
    return made.detach().requires_grad_()


def passes(x: Any, w: Any, how: dict[str, Any], g: Any) -> list[Any]:
    """The result, and both gradients."""
    y = CONVOLVE[len(x.shape)](x, w, **how)
    return [y.detach(), *tc.autograd.grad(y, (x, w), g)]


def values_of(tensors: list[Any]) -> list[Array]:
    return [tensor.double().cpu().numpy() for tensor in tensors]


def reference(x: Any, w: Any, how: dict[str, Any], g: Any) -> list[Array]:
    """The same in float64 by NumPy's device, of the numbers that the GPU has."""
    with tc.kernels.provider(None):
        given = [t.detach().double().cpu() for t in (x, w, g)]
        return values_of(passes(*(t.requires_grad_() for t in given[:2]), how, given[2]))


def operands(case: Case, dtype: str, last: bool = False) -> tuple[Any, Any, dict[str, Any], Any]:
    images, weight, how = case
    x, w = on_gpu(numbers(1, *images), dtype, last), on_gpu(numbers(2, *weight), dtype)
    with tc.kernels.provider(None):
        shape = CONVOLVE[len(images)](x.detach(), w.detach(), **how).shape
    return x, w, how, on_gpu(numbers(3, *shape), dtype).detach()


def check(found: list[Array], want: list[Array], kind: str) -> None:
    for one, other, name in zip(found, want, ("result", "input gradient", "weight gradient")):
        assert one.shape == other.shape
        error = np.abs(one - other).max(initial=0) / max(1.0, np.abs(other).max(initial=0))
        assert error <= TOLERANCE[kind], f"{name}: {error:.2e}"


def calls(make: Callable[[], Any], capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The kernels that TGC_DEBUG=3 prints of a plan, by their kinds."""
    plans.clear()
    with settings.override(debug=3):
        tc.realize(make())
    printed = capfd.readouterr().out
    return [line.split("<")[1].split()[0] for line in printed.splitlines() if ": <" in line]


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    before = tc.get_float32_matmul_precision()
    tc.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        tc.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_values_of_all_passes(library: CudnnModule | None, name: str, kind: str) -> None:
    """Against float64, and against the package's own kernels; twice the same bits."""
    dtype = "float32" if kind == "tf32" else kind
    with precision("high" if kind == "tf32" else "highest"):
        x, w, how, g = operands(CASES[name], dtype)
        found = values_of(passes(x, w, how, g))
        check(found, reference(x, w, how, g), kind)
        for one, again in zip(found, values_of(passes(x, w, how, g))):
            np.testing.assert_array_equal(one, again)
        with tc.kernels.provider(None):
            check(found, values_of(passes(x, w, how, g)), kind)
    if library is not None:
        assert {form for form, *_ in library.convolutions} == {"fprop", "dgrad", "wgrad"}


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("name", ["plain", "stride", "groups", "three axes"])
def test_images_that_have_the_channels_last(
    library: CudnnModule | None, name: str, kind: str
) -> None:
    dtype = "float32" if kind == "tf32" else kind
    with precision("high" if kind == "tf32" else "highest"):
        x, w, how, g = operands(CASES[name], dtype, last=True)
        check(values_of(passes(x, w, how, g)), reference(x, w, how, g), kind)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_views_are_copied(library: CudnnModule | None, dtype: str) -> None:
    """What is no whole run of aligned memory; and one memory as both operands."""
    x, w = on_gpu(numbers(1, 3, 10, 9, 12), dtype), on_gpu(numbers(2, 9, 8, 3, 3), dtype)
    pairs = (
        (x[:, 1:9], w), (x[1:, :8, :, 3:], w), (x.flip(2)[:, 2:], w), (x[:1, :8], w[1:]),
        (x.transpose(2, 3)[:, :8], w.transpose(2, 3)), (x[:, :8, ::2], w[:, :, :, 1:]),
        (x[:1, :8].expand(4, 8, 9, 12), w), (x[:, :8].exp(), w.tanh()), (x, x[:, :, :3, :3]),
        (tc.ones_like(x)[:, :8], w), (x[:, :, 0, 0].reshape(3, 10, 1, 1), x[:, :, :1, :1]),
    )  # fmt: skip
    for one, other in pairs:
        sizes = [a - b + 1 for a, b in zip(one.shape[2:], other.shape[2:])]
        g = on_gpu(numbers(3, one.shape[0], other.shape[0], *sizes), dtype).detach()
        one, other = one.detach().requires_grad_(), other.detach().requires_grad_()
        check(values_of(passes(one, other, {}, g)), reference(one, other, {}, g), dtype)


def test_transposed_convolutions_and_second_gradients(library: CudnnModule | None) -> None:
    """All three rows as each other's gradients."""
    x, w, v = on_gpu(numbers(1, 2, 6, 7, 8)), on_gpu(numbers(2, 6, 4, 3, 3)), numbers(3, 2, 6, 7, 8)
    how = {"stride": 2, "padding": 1, "output_padding": 1}

    def results(x: Any, w: Any, v: Any) -> list[Any]:
        y = F.conv_transpose2d(x, w, **how)
        first, second = tc.autograd.grad((y * y * y).sum(), (x, w), create_graph=True)
        total = (first * v).sum() + second.square().sum()
        return [y.detach(), *tc.autograd.grad(total, (x, w))]

    found = values_of(results(x, w, on_gpu(v).detach()))
    with tc.kernels.provider(None):
        given = [t.detach().double().cpu().requires_grad_() for t in (x, w)]
        want = values_of(results(*given, tc.tensor(v)))
    for one, other in zip(found, want):
        assert np.abs(one - other).max() <= 1e-4 * np.abs(other).max()


def test_calls_and_what_stands_between_them(
    library: CudnnModule | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """The channels stay last from call to call; turned at the ends of the graph alone."""
    x = on_gpu(numbers(1, 2, 8, 9, 9), "bfloat16").detach()
    weights = [on_gpu(numbers(n, 8, 8, 3, 3), "bfloat16").detach() for n in range(3)]

    def network() -> Any:
        y = x
        for w in weights:
            y = F.conv2d(y, w, padding=1).relu()
        return y

    assert calls(network, capfd).count("library") == 3
    kinds = calls(lambda: F.conv2d(x.float(), weights[0].float()), capfd)
    assert kinds.count("library") == 1


def test_precision_decides_the_arithmetic(library: CudnnModule | None) -> None:
    """tf32 needs the precision and `backends.cudnn.allow_tf32`."""
    x, w, how, g = operands(((4, 64, 12, 12), (64, 64, 3, 3), {"padding": 1}), "float32")
    want = reference(x, w, how, g)

    def errors() -> list[float]:
        found = values_of(passes(x, w, how, g))
        return [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, want)]

    exact, allowed = [*errors()], tc.backends.cudnn.allow_tf32
    try:
        with precision("ieee"):
            exact += errors()
        with precision("high"):
            tc.backends.cudnn.allow_tf32 = False
            exact += errors()
            tc.backends.cudnn.allow_tf32 = True
            rounded = errors()
    finally:
        tc.backends.cudnn.allow_tf32 = allowed
    assert max(exact) < 3e-5 and max(rounded) < 2e-3
    if library is None:
        assert min(rounded) > 5e-5  # tf32 was taken
    else:
        engines = [engine for *_, engine in library.convolutions]
        assert set(engines[:9]) == {"winograd"} and set(engines[9:]) == {"units"}


def net() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(16, 8, 1), nn.Flatten(), nn.Linear(8 * 4 * 4, 10),
    )  # fmt: skip


def losses(steps: int, compiled: bool = False, half: bool = False) -> tuple[list[float], list[Any]]:
    """Of a training run, and the parameters behind it."""
    tc.manual_seed(0)
    model = net().to("cuda")
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = on_gpu(numbers(9, 6, 3, 8, 8)).detach()
    y = tc.tensor(np.arange(6) % 10).to("cuda")

    def step() -> Any:
        optimizer.zero_grad()
        with tc.autocast("cuda", dtype=tc.bfloat16, enabled=half):
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        return loss

    run = tc.compile(step) if compiled else step
    values = [run().item() for _ in range(steps)]
    return values, [p.detach().cpu().numpy() for p in model.parameters()]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_training_by_graphs_has_the_same_bits_twice(
    library: CudnnModule | None, compiled: bool, half: bool
) -> None:
    """Steps replay as CUDA graphs, convolutions and both of their gradients inside."""
    first, parameters = losses(6, compiled, half)
    again, others = losses(6, compiled, half)
    assert first == again
    for one, other in zip(parameters, others):
        np.testing.assert_array_equal(one, other)
    with tc.kernels.provider(None):
        own, _ = losses(6, compiled, half)
    np.testing.assert_allclose(first, own, rtol=3e-2 if half else 1e-3)
    assert first[-1] < first[0]


def test_compiled_and_plain_steps_agree(library: CudnnModule | None) -> None:
    plain, _ = losses(6)
    compiled, _ = losses(6, compiled=True)
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)


def test_a_compiled_function_follows_the_choice(
    library: CudnnModule | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was compiled before is compiled again when another kernel is to convolve."""
    x, w, how, g = operands(CASES["stride"], "float32")
    want = reference(x, w, how, g)[0]
    x, w = x.detach(), w.detach()
    function = tc.compile(lambda x, w: F.conv2d(x, w, **how))
    for provider in ("cudnn", None, "cudnn", None):
        with tc.kernels.provider(provider):
            plans.clear()
            with settings.override(debug=3):
                check(values_of([function(x, w)]), [want], "float32")
            printed = capfd.readouterr().out
            assert ("tier:  cudnn, " in printed) == (provider == "cudnn")
            for _ in range(3):
                check(values_of([function(x, w)]), [want], "float32")


def test_replays_follow_new_addresses(library: CudnnModule | None) -> None:
    """A replayed convolution reads what its operands are now, wherever they lie."""
    w = on_gpu(numbers(2, 8, 4, 3, 3)).detach()
    kept = []
    for turn in range(7):
        x = on_gpu(numbers(10 + turn, 2, 4, 8, 8)).detach()
        kept.append((x, F.conv2d(x.relu(), w) * 2))
        kept[-1][1].cpu()
    with tc.kernels.provider(None):
        for x, y in kept:
            want = F.conv2d(x.double().cpu().relu(), w.double().cpu()) * 2
            check(values_of([y]), values_of([want]), "float32")
    for (_, one), (_, other) in pairwise(kept):
        assert not np.array_equal(one.cpu().numpy(), other.cpu().numpy())


def test_what_a_call_does_not_make_says_why(
    library: CudnnModule | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """float64, padding at one end, and convolutions whose tier is forced, stay with the package."""
    x, w = on_gpu(numbers(1, 2, 8, 9, 9)).detach(), on_gpu(numbers(2, 8, 8, 3, 3)).detach()
    with settings.override(debug=3):
        tc.realize(F.conv2d(x.double(), w.double()))
        tc.realize(F.conv2d(F.pad(x, (1, 0, 0, 0)), w))
        tc.realize(F.conv2d(F.pad(x.bfloat16(), (1, 0, 0, 0)), w.bfloat16()))
        with tc.kernels.use("convolution", "naive"):
            tc.realize(F.conv2d(x, w))
    printed = capfd.readouterr().out
    assert "<library" not in printed
    assert "not by cudnn: float64 is no dtype of its convolutions" in printed
    assert printed.count("not by cudnn: padding is not the same at both ends") == 2
    assert tc.kernels.provider is not None and settings.provider == "cudnn"


def test_each_kernel_validates(library: CudnnModule | None) -> None:
    with settings.override(validate=True):
        x, w, how, g = operands(CASES["plain"], "float32")
        check(values_of(passes(x, w, how, g)), reference(x, w, how, g), "float32")


# Attention ----------------------------------------------------------------------------------------

# Batch, heads, queries, keys, columns of queries and of values.
HEADS = [
    (2, 3, 16, 16, 32, 32), (1, 2, 33, 65, 64, 64), (2, 1, 65, 33, 48, 48), (1, 1, 1, 40, 32, 32),
    (1, 2, 7, 7, 128, 64),
]  # fmt: skip
if REAL:
    HEADS += [(4, 8, 512, 512, 64, 64), (2, 4, 1000, 777, 128, 128)]
ATTENTION_TOLERANCE = {"bfloat16": 2**-6, "float16": 2**-9}


def attended(operands: list[Any], g: Any, causal: bool) -> list[Any]:
    y = F.scaled_dot_product_attention(*operands, is_causal=causal)
    return [y.detach(), *tc.autograd.grad(y, operands, g)]


def check_attention(found: list[Array], want: list[Array], dtype: str) -> None:
    for one, other, name in zip(found, want, ("result", "of q", "of k", "of v"), strict=True):
        error = np.abs(one - other).max() / max(0.1, np.abs(other).max())
        assert error <= ATTENTION_TOLERANCE[dtype], f"{name}: {error:.2e}"


def heads_of(sizes: tuple[int, ...], dtype: str) -> tuple[list[Any], Any]:
    batch, heads, rows, keys, wide, deep = sizes
    shapes = ((rows, wide), (keys, wide), (keys, deep), (rows, deep))
    made = [on_gpu(numbers(n, batch, heads, *shape), dtype) for n, shape in enumerate(shapes)]
    return made[:3], made[3].detach()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ATTENTION_TOLERANCE)
@pytest.mark.parametrize("sizes", HEADS)
def test_attention_and_its_gradients(
    library: CudnnModule | None, sizes: tuple[int, ...], dtype: str, causal: bool
) -> None:
    """Against float64, and against the package's own kernels; twice the same bits."""
    operands, g = heads_of(sizes, dtype)
    found = values_of(attended(operands, g, causal))
    with tc.kernels.provider(None):
        given = [t.detach().double().cpu().requires_grad_() for t in operands]
        check_attention(found, values_of(attended(given, g.double().cpu(), causal)), dtype)
        check_attention(found, values_of(attended(operands, g, causal)), dtype)
    for one, again in zip(found, values_of(attended(operands, g, causal))):
        np.testing.assert_array_equal(one, again)
    if library is not None:
        forms = {"forward"} if sizes[2] == 1 else {"forward", "backward"}
        assert {form for form, *_ in library.convolutions} == forms


def projected(x: Any, w: Any, heads: int) -> Any:
    """A layer whose heads are columns of one product, as are their gradients."""
    batch, rows, columns = x.shape
    q, k, v = (x @ w).chunk(3, -1)
    q, k, v = (t.reshape(batch, rows, heads, -1).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(batch, rows, columns)


def test_heads_beside_each_other_are_read_and_stored_so(
    library: CudnnModule | None, capfd: pytest.CaptureFixture[str]
) -> None:
    x, w = on_gpu(numbers(1, 2, 40, 128), "bfloat16"), on_gpu(numbers(2, 128, 384) / 8, "bfloat16")
    with settings.override(debug=3):
        y = projected(x, w, 4)
        found = values_of([y.detach(), *tc.autograd.grad(y.float().square().sum(), (x, w))])
    printed = capfd.readouterr().out
    assert "tier:  cudnn, forward of" in printed and "tier:  cudnn, backward of" in printed
    with tc.kernels.provider(None):
        y = projected(x, w, 4)
        own = values_of([y.detach(), *tc.autograd.grad(y.float().square().sum(), (x, w))])
    for one, other in zip(found, own):
        assert np.abs(one - other).max() <= 0.03 * np.abs(other).max()


@pytest.mark.parametrize("compiled", [False, True])
def test_training_of_attention_has_the_same_bits_twice(
    library: CudnnModule | None, compiled: bool
) -> None:
    def losses() -> list[float]:
        tc.manual_seed(0)
        model = nn.MultiheadAttention(64, 2, batch_first=True).to("cuda")
        optimizer = optim.SGD(model.parameters(), lr=0.5)
        x = on_gpu(numbers(4, 3, 24, 64)).detach()

        def step() -> Any:
            optimizer.zero_grad()
            with tc.autocast("cuda", dtype=tc.bfloat16):
                y, _ = model(x, x, x, need_weights=False)
            loss = (y.float() - x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = tc.compile(step) if compiled else step
        return [run().item() for _ in range(5)]

    first = losses()
    assert losses() == first and first[-1] < first[0]
    if library is not None:
        assert {"forward", "backward"} <= {form for form, *_ in library.convolutions}
    with tc.kernels.provider(None):
        np.testing.assert_allclose(first, losses(), rtol=1e-2)


def test_attention_that_stays_with_the_package(
    library: CudnnModule | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Masks, dropout, float32 and wide heads: the same values, with the reason."""
    (q, k, v), _ = heads_of((1, 2, 40, 40, 64, 64), "bfloat16")
    q, k, v = (t.detach() for t in (q, k, v))
    mask = tc.tensor(np.tri(40, dtype=bool)).to("cuda")
    wide = on_gpu(numbers(7, 1, 1, 32, 256), "bfloat16").detach()
    with settings.override(debug=3):
        tc.realize(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        tc.realize(F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
        tc.realize(F.scaled_dot_product_attention(q.float(), k.float(), v.float()))
        tc.realize(F.scaled_dot_product_attention(wide, wide, wide))
    printed = capfd.readouterr().out
    assert "<library" not in printed
    assert printed.count("not by cudnn: scores are masked, or weights are dropped") == 2
    assert "not by cudnn: float32 is no dtype of its attention" in printed
    assert "not by cudnn: heads of [256] are no multiples of 8 up to 128" in printed

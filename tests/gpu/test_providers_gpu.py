"""tc.kernels.provider("cublas"): values, epilogues, replays and bits of products by cuBLASLt.

Where a GPU and nvmath-python are missing, the pretended GPU runs them with a library in Python.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretended_cublas import CublasLt, pretended_cublas

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.nn import functional as F

Array = np.ndarray[Any, Any]
REAL = runtime.available() and importlib.util.find_spec("nvmath") is not None
TOLERANCE = {"float64": 1e-13, "float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-9}


# A default device chosen while there is a pretended GPU would outlive it.
pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture
def library() -> Iterator[CublasLt | None]:
    """The library in Python; None where the real one multiplies."""
    with contextlib.nullcontext(None) if REAL else pretended_cublas() as made:
        try:
            with tc.kernels.provider("cublas"):
                yield made
        finally:
            tc.kernels.provider(None)


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def on_gpu(array: Array, dtype: str = "float32") -> Any:
    return tc.tensor(array).to(getattr(tc, dtype)).to("cuda")


def check(found: Any, want: Array, dtype: str = "float32") -> None:
    error = np.abs(found.detach().double().cpu().numpy() - want).max(initial=0)
    assert error <= TOLERANCE[dtype] * max(1.0, np.abs(want).max(initial=0))


def calls(make: Callable[[], Any], capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The kernels that TGC_DEBUG=3 prints of a plan, by their kinds."""
    plans.clear()
    with settings.override(debug=3):
        make().cpu().numpy()
    printed = capfd.readouterr().out
    return [line.split("<")[1].split()[0] for line in printed.splitlines() if ": <" in line]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_transposition_and_size(library: CublasLt | None, dtype: str) -> None:
    for m, n, k in ((1, 1, 1), (17, 33, 16), (40, 7, 67), (1024, 768, 512))[: 4 if REAL else 3]:
        a, b = on_gpu(numbers(1, m, k), dtype), on_gpu(numbers(2, k, n), dtype)
        x, y = a.double().cpu().numpy(), b.double().cpu().numpy()
        check(a @ b, x @ y, dtype)
        check(a.T.contiguous().T @ b, x @ y, dtype)
        check(a @ b.T.contiguous().T, x @ y, dtype)
        check(a.T.contiguous().T @ b.T.contiguous().T, x @ y, dtype)
        check(b.T @ a.T, (x @ y).T, dtype)


def test_batches_views_and_copies(library: CublasLt | None) -> None:
    """Views are strides of a call, what has none is copied; all calls are branches of one graph."""
    a, b, w = (on_gpu(numbers(3, *shape)) for shape in ((2, 3, 20, 18), (2, 3, 18, 19), (18, 24)))
    x, y, z = (t.double().cpu().numpy() for t in (a, b, w))
    counts = tc.tensor([[1, 2], [3, 4]], device="cuda")
    pairs = (
        (a @ b, x @ y),
        (a @ w, x @ z),
        (a.transpose(2, 3) @ w.T[:20], x.swapaxes(2, 3) @ z.T[:20]),
        (a.transpose(0, 1) @ b.transpose(0, 1), x.swapaxes(0, 1) @ y.swapaxes(0, 1)),
        (a[0, 0] @ b, x[0, 0] @ y),
        (a[:, :, 2:9] @ w[:, 4:], x[:, :, 2:9] @ z[:, 4:]),
        (a[0, 0, :, 1:] @ w[1:], x[0, 0, :, 1:] @ z[1:]),
        (a.flip(-1)[0, 1] @ w, x[0, 1, :, ::-1] @ z),
        (a[0, 0, ::2] @ w, x[0, 0, ::2] @ z),
        (a[0, 0, :1].expand(7, 18) @ w, np.repeat(x[0, 0, :1], 7, 0) @ z),
        (a[0, 0].T @ a[0, 0], x[0, 0].T @ x[0, 0]),
        (tc.ones(5, 18, device="cuda") @ w, np.ones((5, 18)) @ z),
        ((a.relu() @ w + 1).tanh(), np.tanh(np.maximum(x, 0) @ z + 1)),
        (a[:0, 0] @ w, np.zeros((0, 20, 24))),
        (a[0, 0, :, :0] @ w[:0], np.zeros((20, 24))),
        (counts @ counts, np.array([[7, 10], [15, 22]])),
    )
    for found, want in pairs:
        assert found.shape == want.shape
        check(found, want)


def linear(dtype: str, bias: bool = True) -> tuple[Any, Any, Any, Array]:
    x, w = on_gpu(numbers(4, 6, 5, 48), dtype), on_gpu(numbers(5, 32, 48), dtype)
    b = on_gpu(numbers(6, 32), dtype) if bias else None
    want = x.double().cpu().numpy() @ w.double().cpu().numpy().T
    return x, w, b, want + (b.double().cpu().numpy() if b is not None else 0)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
def test_epilogues(
    library: CublasLt | None, dtype: str, bias: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bias, ReLU and GELU by tanh are part of the call: one launch, without another kernel.

    The library's GELU of float64 lacks digits: it stays a kernel.
    """
    x, w, b, y = linear(dtype, bias)
    check(F.linear(x, w, b), y, dtype)
    check(F.linear(x, w, b).relu(), np.maximum(y, 0), dtype)
    check(F.gelu(F.linear(x, w, b), approximate="tanh"), gelu(y), dtype)
    assert calls(lambda: F.linear(x, w, b), capfd) == ["library"]
    assert calls(lambda: F.linear(x, w, b).relu(), capfd) == ["library"]
    gelus = calls(lambda: F.gelu(F.linear(x, w, b), approximate="tanh"), capfd)
    assert gelus == (["library", "map"] if dtype == "float64" else ["library"])


def test_other_epilogues_are_kernels(
    library: CublasLt | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """What cuBLASLt does not have is computed behind its call, as is what others read besides."""
    x, w, b, y = linear("float32")
    other = on_gpu(numbers(7, 6, 5, 32))
    z = other.double().cpu().numpy()
    check(F.linear(x, w, b) + other, y + z)
    assert calls(lambda: F.linear(x, w, b) + other, capfd) == ["library", "map"]
    assert calls(lambda: F.linear(x, w, b).tanh(), capfd) == ["library", "map"]
    assert calls(lambda: F.relu6(F.linear(x, w, b)), capfd) == ["library", "map"]
    assert calls(lambda: F.leaky_relu(F.linear(x, w, b), 0.1), capfd) == ["library", "map"]
    wide = F.linear(x, w, b)
    both = wide.relu() * wide.sigmoid()
    check(both, np.maximum(y, 0) / (1 + np.exp(-y)))
    column = on_gpu(numbers(8, 6, 5, 1))
    check(F.linear(x, w) + column, y - b.double().cpu().numpy() + column.double().cpu().numpy())


def test_relu_and_gelu_of_what_is_not_finite(library: CublasLt | None) -> None:
    """NaN and infinities pass through the epilogue as PyTorch's ReLU and GELU have them."""
    x = on_gpu(np.array([[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0], [1.0, 1.0]]))
    w, b = on_gpu(np.array([[1.0, 0.0]])), on_gpu(np.zeros(1))
    found = F.linear(x, w, b).relu().cpu().numpy()[:, 0]
    np.testing.assert_array_equal(found, [np.nan, np.inf, 0.0, 1.0])
    found = F.gelu(F.linear(x, w, b), approximate="tanh").cpu().numpy()[:, 0]
    assert np.isnan(found[0]) and found[1] == np.inf


def model() -> tuple[Any, Any]:
    tc.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10)).to("cuda")
    return net, optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def losses(steps: int, compiled: bool = False) -> tuple[list[float], list[Array]]:
    """Of a training run, and the parameters behind it."""
    net, optimizer = model()
    x = on_gpu(numbers(9, 32, 48))
    y = tc.tensor(np.arange(32) % 10).to("cuda")

    def step() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = tc.compile(step) if compiled else step
    values = [run().item() for _ in range(steps)]
    return values, [p.detach().cpu().numpy() for p in net.parameters()]


def test_training_by_graphs_has_the_same_bits_twice(library: CublasLt | None) -> None:
    """Steps replay as CUDA graphs, products and their three gradients inside."""
    first, parameters = losses(6)
    again, others = losses(6)
    assert first == again
    for one, other in zip(parameters, others):
        np.testing.assert_array_equal(one, other)
    with tc.kernels.provider(None):
        own, _ = losses(6)
    np.testing.assert_allclose(first, own, rtol=1e-4)
    assert first[-1] < first[0]


def test_compiled_training(library: CublasLt | None) -> None:
    plain, _ = losses(6)
    compiled, _ = losses(6, compiled=True)
    np.testing.assert_allclose(compiled, plain, rtol=1e-6)


def test_many_steps_in_one_call(library: CublasLt | None, tmp_path: Path) -> None:
    """Calls are nodes of a graph of three steps, too; a file of CUDA C++ cannot hold them."""

    def training() -> tuple[Any, Any]:
        net, optimizer = model()

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, net

    x, y = on_gpu(numbers(9, 3, 32, 48)), tc.tensor(np.arange(96).reshape(3, 32) % 10).to("cuda")
    plain, own = training()
    compiled, other = training()
    function = tc.compile(compiled, steps=3)
    for _ in range(3):
        for turn in range(3):
            last = plain(x[turn], y[turn])
        losses = function(x, y).cpu().numpy()
        np.testing.assert_allclose(losses[-1], last.item(), rtol=1e-6)
    for one, two in zip(own.parameters(), other.parameters()):
        np.testing.assert_allclose(
            one.detach().cpu().numpy(), two.detach().cpu().numpy(), 1e-5, 1e-6
        )
    with pytest.raises(ArgumentError, match="a library's call is no kernel that a file can hold"):
        tc.export_cuda(function, tmp_path / "step.cu", x, y)
    assert not list(tmp_path.iterdir())


def test_a_compiled_function_follows_the_choice(
    library: CublasLt | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was compiled before is compiled again when another kernel is to multiply."""
    a, b = on_gpu(numbers(1, 32, 48)), on_gpu(numbers(2, 48, 16))
    want = a.double().cpu().numpy() @ b.double().cpu().numpy()
    function = tc.compile(lambda x, y: x @ y)
    for provider in ("cublas", None, "cublas", None):
        with tc.kernels.provider(provider):
            plans.clear()
            with settings.override(debug=3):
                check(function(a, b), want)
            printed = capfd.readouterr().out
            assert ("tier:  cublas" in printed) == (provider == "cublas")
            for _ in range(3):
                check(function(a, b), want)


def test_a_call_is_timed_by_its_name(
    library: CublasLt | None, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = on_gpu(numbers(1, 32, 48)), on_gpu(numbers(2, 48, 16))
    tc.realize(a, b)
    with settings.override(debug=2):
        (a @ b).cpu()
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "cublaslt_matmul" in line]
    assert "(32, 16)" in line and " us " in line


def test_replays_follow_new_addresses(library: CublasLt | None) -> None:
    """A replayed product reads what its operands are now, wherever they lie."""
    w, b = on_gpu(numbers(5, 32, 48)), on_gpu(numbers(6, 32))
    kept = []
    for turn in range(7):
        x = on_gpu(numbers(10 + turn, 16, 48))
        kept.append((x, F.linear(x.relu(), w, b).relu() * 2))
        kept[-1][1].cpu()
        if turn == 4:
            b = b + 1
    shift = [0] * 5 + [1] * 2
    for (x, y), more in zip(kept, shift):
        bias = numbers(6, 32).astype(np.float32) + more
        product = np.maximum(x.double().cpu().numpy(), 0) @ numbers(5, 32, 48).astype("f4").T
        check(y, 2 * np.maximum(product + bias, 0))


def test_precision_decides_the_arithmetic(library: CublasLt | None) -> None:
    """float32 errs by 1e-6 at "highest" and "ieee"; "high" permits tf32, and it is taken."""
    a, b = on_gpu(numbers(1, 256, 512)), on_gpu(numbers(2, 512, 256))
    want = a.double().cpu().numpy() @ b.double().cpu().numpy()
    errors = {}
    try:
        for precision in ("highest", "ieee", "high"):
            tc.set_float32_matmul_precision(precision)
            found = (a @ b).double().cpu().numpy()
            errors[precision] = np.abs(found - want).max() / np.abs(want).max()
    finally:
        tc.set_float32_matmul_precision("highest")
    assert max(errors["highest"], errors["ieee"]) < 2e-6
    assert errors["high"] < 3e-3
    if library is None:
        assert errors["high"] > 1e-5  # tf32 was taken
    else:
        assert [product.compute for product in library.products[-3:]] == [68, 69, 77]


def test_the_reason_is_printed(library: CublasLt | None, capfd: pytest.CaptureFixture[str]) -> None:
    a = on_gpu(numbers(1, 32, 32))
    counts = tc.tensor(np.eye(3, dtype=np.int32)).to("cuda")
    with settings.override(debug=3):
        (a @ a).cpu()
        (counts @ counts).cpu()
    printed = capfd.readouterr().out
    assert "tier:  cublas, " in printed
    assert "not cublas: int32 is no dtype of its products" in printed


def test_each_kernel_validates(library: CublasLt | None) -> None:
    with settings.override(validate=True):
        x, w, b, y = linear("float32")
        check(F.linear(x, w, b).relu() + 1, np.maximum(y, 0) + 1)


if REAL:

    def test_the_pretended_library_has_the_numbers_of_the_real_one() -> None:
        """Enumerations and sizes of attributes, by which the library in Python was written."""
        import pretended_cublas as pretended
        from nvmath.bindings import cublasLt as real

        for name in ("MatmulDescAttribute", "MatrixLayoutAttribute", "MatmulPreferenceAttribute",
                     "Epilogue"):  # fmt: skip
            for member in getattr(pretended, name):
                assert int(getattr(real, name)[member.name]) == int(member)
        for kinds, dtype_of in (
            (pretended.MatmulDescAttribute, real.get_matmul_desc_attribute_dtype),
            (pretended.MatrixLayoutAttribute, real.get_matrix_layout_attribute_dtype),
            (pretended.MatmulPreferenceAttribute, real.get_matmul_preference_attribute_dtype),
        ):
            for member in kinds:
                size = np.dtype(pretended.SIZES[member.name]).itemsize
                assert np.dtype(dtype_of(int(member))).itemsize == size

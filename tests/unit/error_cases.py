"""Programs that go wrong, one an error; the line that must be named ends with `# here`."""

from __future__ import annotations

import copy
import gzip
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulation
import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.data import idx
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering import emit as codegen
from tinygrad_cuda.lowering.codegen.skeleton import fill
from tinygrad_cuda.tensors.base import wrap

CASES: dict[str, Callable[..., Any]] = {}


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enters a program into the table."""
    CASES[function.__name__] = function
    return function


def t(*shape: int, dtype: Any = None, grad: bool = False) -> Any:
    """A Tensor of ones on the CPU."""
    return tc.ones(*shape, dtype=dtype or tc.float32, device="cpu", requires_grad=grad)


# Shapes -------------------------------------------------------------------------------------------


@case
def matmul_inner() -> None:
    h, w = t(32, 20), t(16, 20)
    h @ w  # here


@case
def matmul_no_way() -> None:
    h, w = t(32, 20), t(16, 10)
    h @ w  # here


@case
def matmul_batches() -> None:
    a, b = t(3, 2, 4), t(5, 4, 2)
    a @ b  # here


@case
def matmul_scalar() -> None:
    a, b = t(3, 2), tc.tensor(2.0, device="cpu")
    a @ b  # here


@case
def mm_of_three_dimensions() -> None:
    tc.mm(t(2, 3, 4), t(4, 5))  # here


@case
def add_broadcast() -> None:
    x, y = t(8, 3), t(8, 4)
    x + y  # here


@case
def add_broadcast_columns() -> None:
    x, y = t(8, 3), t(8)
    x * y  # here


@case
def in_place_broadcast() -> None:
    x = t(3)
    x += t(2, 3)  # here


@case
def cat_sizes() -> None:
    a, b = t(2, 3), t(2, 4)
    tc.cat([a, b], dim=0)  # here


@case
def cat_ranks() -> None:
    tc.cat([t(2, 3), t(2, 3, 1)])  # here


@case
def stack_sizes() -> None:
    tc.stack([t(2), t(3)])  # here


@case
def reshape_count() -> None:
    t(4, 6).reshape(5, 5)  # here


@case
def reshape_unknown() -> None:
    t(4, 6).reshape(5, -1)  # here


@case
def view_with_strides() -> None:
    x = t(4, 6).T
    x.view(24)  # here


@case
def expand_wrong() -> None:
    t(3, 2).expand(3, 4)  # here


@case
def permute_twice() -> None:
    t(2, 3).permute(0, 0)  # here


@case
def split_sizes() -> None:
    t(10).split([3, 3, 3])  # here


@case
def dim_out_of_range() -> None:
    t(2, 3).sum(dim=2)  # here


@case
def size_negative() -> None:
    tc.zeros(2, -3, device="cpu")  # here


@case
def einsum_sizes() -> None:
    tc.einsum("ij,jk->ik", t(2, 3), t(4, 5))  # here


@case
def max_of_nothing() -> None:
    t(0, 3).max()  # here


@case
def mse_broadcast() -> None:
    prediction, y = t(64, 1), t(64)
    nn.functional.mse_loss(prediction, y)  # here


@case
def mse_no_broadcast() -> None:
    nn.functional.mse_loss(t(64, 10), t(32, 10))  # here


@case
def linear_features() -> None:
    layer = nn.Linear(784, 10, device="cpu")
    layer(t(32, 28, 28))  # here


# dtypes -------------------------------------------------------------------------------------------


@case
def matmul_dtypes() -> None:
    t(2, 3) @ t(3, 2, dtype=tc.float64)  # here


@case
def unknown_dtype() -> None:
    tc.zeros(3, dtype="float31", device="cpu")  # here


@case
def array_of_texts() -> None:
    tc.tensor(np.zeros(3, "U4"), device="cpu")  # here


@case
def uint64_with_signed() -> None:
    tc.ones(3, dtype=tc.uint64, device="cpu") + tc.ones(3, dtype=tc.int32, device="cpu")  # here


@case
def complex_order() -> None:
    z = tc.tensor([1j, 2.0], device="cpu")
    tc.lt(z, z.conj())  # here


@case
def grad_of_integers() -> None:
    tc.tensor([1, 2], device="cpu", requires_grad=True)  # here


@case
def not_a_number() -> None:
    t(3) + "1"  # here


@case
def bitwise_of_floats() -> None:
    t(3) & t(3)  # here


@case
def mean_of_integers() -> None:
    tc.arange(3, device="cpu").mean()  # here


@case
def ragged_lists() -> None:
    tc.tensor([[1, 2], [3]], device="cpu")  # here


# Devices ------------------------------------------------------------------------------------------


@case
def two_devices() -> None:
    x = t(3)
    y = tc.ones(3, device="emu")
    x + y  # here


@case
def unknown_device() -> None:
    tc.ones(3, device="gpu")  # here


@case
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = runtime._Gate()
    gate.tried, gate.reason = True, "the NVIDIA driver finds no GPU"
    monkeypatch.setattr(runtime, "_gate", gate)
    monkeypatch.setattr(registry, "_backends", {})
    t(3).to("cuda")  # here


@case
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(registry, "_backends", {})
    tc.tensor([1.0], device="emu")  # here


# Indices ------------------------------------------------------------------------------------------


@case
def index_int() -> None:
    t(3)[3]  # here


@case
def index_list() -> None:
    t(3)[[0, 5]]  # here


@case
def index_computed() -> None:
    x = t(3)
    positions = tc.tensor([0, 7], device="cpu")
    y = x[positions]  # here
    y.sum().item()


@case
def index_too_many() -> None:
    t(2, 3)[0, 1, 2]  # here


@case
def index_not_one() -> None:
    t(2, 3)["row"]  # here


@case
def index_float() -> None:
    t(3)[tc.tensor([0.5], device="cpu")]  # here


@case
def index_mask_shape() -> None:
    t(2, 3)[tc.tensor([True, False, True], device="cpu")]  # here


@case
def slice_backwards() -> None:
    t(3)[::-1]  # here


@case
def setitem_shape() -> None:
    x = t(2, 3)
    x[0] = t(4)  # here


@case
def labels_out_of_range() -> None:
    scores = t(4, 10)
    labels = tc.tensor([0, 9, 10, 3], device="cpu")
    loss = nn.functional.cross_entropy(scores, labels)  # here
    loss.item()


@case
def labels_float() -> None:
    nn.functional.cross_entropy(t(4, 10), t(4))  # here


@case
def labels_shape() -> None:
    nn.functional.cross_entropy(t(4, 10), tc.zeros(4, 1, dtype=tc.int64, device="cpu"))  # here


# Gradients ----------------------------------------------------------------------------------------


@case
def backward_of_vector() -> None:
    x = t(3, grad=True)
    (x * 2).backward()  # here


@case
def backward_twice() -> None:
    x = t(3, grad=True)
    y = (x * x).sum()
    y.backward()
    y.backward()  # here


@case
def backward_without_history() -> None:
    x = t(3)
    (x * 2).sum().backward()  # here


@case
def backward_seed_shape() -> None:
    x = t(3, grad=True)
    (x * 2).backward(t(2))  # here


@case
def gradient_missing() -> None:
    ceiling = Op(
        "staircase",
        "elementwise",
        common.same,
        numpy=np.ceil,
        gradient="its derivative is zero almost everywhere and says nothing",
    )
    x = t(3, grad=True)
    y = wrap(ceiling(x.node)).sum()  # here
    y.backward()


@case
def grad_unused() -> None:
    x, y = t(3, grad=True), t(3, grad=True)
    tc.autograd.grad((x * 2).sum(), [x, y])  # here


@case
def grad_of_constant() -> None:
    x, y = t(3, grad=True), t(3)
    tc.autograd.grad((x * y).sum(), y)  # here


@case
def leaf_in_place() -> None:
    w = t(3, grad=True)
    w += 1  # here


@case
def expanded_write() -> None:
    row = tc.zeros(1, 3, device="cpu").expand(4, 3)
    row[:2, 0] = 1.0  # here


@case
def numpy_with_grad() -> None:
    t(3, grad=True).numpy()  # here


@case
def item_of_several() -> None:
    t(3).item()  # here


@case
def bool_of_several() -> None:
    if t(3) > 0:  # here
        pass


@case
def deepcopy_with_history() -> None:
    y = t(3, grad=True) * 2
    copy.deepcopy(y)  # here


@case
def retain_grad_without() -> None:
    t(3).retain_grad()  # here


@case
def function_count() -> None:
    class Scaled(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            return x * factor

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2.0

    y = Scaled.apply(t(3, grad=True), 2.0)  # here
    y.sum().backward()


@case
def function_shape() -> None:
    class Total(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    y = Total.apply(t(3, grad=True))  # here
    y.backward()


@case
def function_not_a_tensor() -> None:
    class Half(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 0.5

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 0.5

    y = Half.apply(t(3, grad=True))  # here
    y.sum().backward()


@case
def function_without_backward() -> None:
    class Half(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 0.5

    y = Half.apply(t(3, grad=True))  # here
    y.sum().backward()


@case
def gradcheck_float32() -> None:
    tc.autograd.gradcheck(lambda x: x * x, (t(3, grad=True),))  # here


@case
def gradcheck_wrong() -> None:
    class Cube(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 2 * x * x

    x = tc.tensor([[1.0, 2.0]], dtype=tc.float64, device="cpu", requires_grad=True)
    tc.autograd.gradcheck(Cube.apply, (x,))  # here


@case
def nan_forward() -> None:
    x = tc.tensor([1.0, 3.0], device="cpu", requires_grad=True)
    with tc.detect_nan():
        y = (x - 2).sqrt()  # here
        y.sum().backward()


@case
def nan_backward() -> None:
    x = tc.tensor([0.0, 3.0], device="cpu", requires_grad=True)
    with tc.detect_nan():
        y = x.sqrt()  # here
        y.sum().backward()


# Compilers ----------------------------------------------------------------------------------------


@case
def nvrtc_refuses() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    source = (
        'extern "C" __global__ void twice(float* out) {\n  out[threadIdx.x] = 2 * missing;\n}\n'
    )
    compiler.compile_source(source, "sm_75")  # here


@case
def emulator_bounds() -> None:
    body = "  tgc_store(p.out, (long long)threadIdx.x + 1, 1.0f);"
    unit = emulation.module(emulation.kernel("shifted", "float* out;", body))
    out = np.zeros(32, np.float32)
    words, ranges = np.array([out.ctypes.data], np.uint64), [(out.ctypes.data, out.nbytes)]
    unit.launch("shifted", 1, 32, 0, words, ranges)  # here


# Data ---------------------------------------------------------------------------------------------


@case
def emulator_bounds_of_a_user_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: str, section: str, **holes: Any) -> str:
        return fill(file, section, **(holes | {"items": int(holes["items"]) + 1}))

    monkeypatch.setattr(codegen, "fill", broken)
    x = tc.tensor(np.arange(6.0, dtype=np.float32), device="emu")
    y = x * 1.25 + 0.625  # here
    y.numpy()


@case
def kernel_differs_from_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: str, section: str, **holes: Any) -> str:
        text = fill(file, section, **holes)
        return text.replace("* 1.375f", "* 1.5f").replace("1.375f *", "1.5f *")

    monkeypatch.setattr(codegen, "fill", broken)
    x = tc.tensor(np.arange(6.0, dtype=np.float32), device="emu")
    with settings.override(validate=True):
        y = x * 1.375  # here
        y.numpy()


@case
def idx_missing(tmp_path: Path) -> None:
    idx.read_idx(tmp_path / "train-images-idx3-ubyte")  # here


@case
def idx_foreign(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"<html>Not found</html>")
    idx.read_idx(path)  # here


@case
def idx_truncated(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    idx.write_idx(path, np.arange(10, dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:-3])
    idx.read_idx(path)  # here


@case
def idx_damaged(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(b"\0" * 100, mtime=0)[:20])
    idx.read_idx(path)  # here


# Transforms and mixed precision -------------------------------------------------------------------


@case
def vmap_looks_at_an_example() -> None:
    def sign(v: Any) -> Any:
        return v if v.sum() > 0 else -v  # here

    tc.vmap(sign)(t(3, 2))


@case
def vmap_writes_outside() -> None:
    total = t(2)

    def add(v: Any) -> Any:
        return total.add_(v)  # here

    tc.vmap(add)(t(3, 2))


@case
def vmap_draws() -> None:
    tc.vmap(lambda v: tc.nn.functional.dropout(v))(t(3, 2))  # here


@case
def vmap_counts() -> None:
    tc.vmap(tc.mul)(t(3, 2), t(4, 2))  # here


@case
def grad_of_several() -> None:
    tc.func.grad(tc.sin)(t(3))  # here


@case
def autocast_unsafe_loss() -> None:
    p = t(2).half()
    with tc.autocast("cpu", dtype=tc.float16):
        tc.nn.functional.binary_cross_entropy(p, p)  # here


@case
def scaler_out_of_order() -> None:
    scaler = tc.amp.GradScaler("cpu")
    scaler.update()  # here


# Layers, losses, optimizers, states ---------------------------------------------------------------


@case
def layer_of_array() -> None:
    model = nn.Sequential(nn.Linear(3, 2, device="cpu"), nn.ReLU())
    model(np.ones((2, 3), np.float32))  # here


@case
def layer_of_none() -> None:
    nn.Conv2d(1, 1, 3, device="cpu")(None)  # here


@case
def loss_of_array() -> None:
    nn.CrossEntropyLoss()(t(2, 3), np.array([0, 1]))  # here


@case
def batch_norm_channels() -> None:
    norm = nn.BatchNorm2d(3, device="cpu")
    norm(t(2, 4, 5, 5))  # here


@case
def broadcast_of_channels() -> None:
    x, scale = t(1, 4, 1, 1), t(3, 1, 1)
    x * scale  # here


@case
def loss_called_as_function() -> None:
    nn.CrossEntropyLoss(t(2, 3), tc.tensor([0, 1], device="cpu"))  # here


@case
def optimizer_of_model() -> None:
    model = nn.Linear(3, 2, device="cpu")
    tc.optim.SGD(model, lr=0.1)  # here


@case
def optimizer_lr_of_text() -> None:
    tc.optim.SGD([t(3, grad=True)], lr="0.1")  # here


@case
def optimizer_betas_of_number() -> None:
    tc.optim.Adam([t(3, grad=True)], betas=0.9)  # here


@case
def optimizer_state_shape() -> None:
    x = t(3, grad=True)
    optimizer = tc.optim.Adam([x])
    x.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    tc.optim.Adam([t(4, grad=True)]).load_state_dict(state)  # here


@case
def state_shape() -> None:
    state = nn.Linear(3, 2, device="cpu").state_dict()
    nn.Linear(4, 2, device="cpu").load_state_dict(state)  # here


@case
def state_shape_and_names() -> None:
    state = nn.Linear(3, 2, bias=False, device="cpu").state_dict()
    nn.Linear(4, 2, device="cpu").load_state_dict(state)  # here


@case
def state_of_model() -> None:
    model = nn.Linear(3, 2, device="cpu")
    model.load_state_dict(model)  # here


# Others -------------------------------------------------------------------------------------------


@case
def constructed_directly() -> None:
    tc.Tensor("1.0, 2.0")  # here


@case
def arange_backwards() -> None:
    tc.arange(3, 0, device="cpu")  # here


@case
def in_another_thread() -> None:
    x = t(3)
    found: list[BaseException] = []

    def work() -> None:
        try:
            x.reshape(2)  # here
        except tc.TgcError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise found[0]

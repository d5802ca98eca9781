"""`tc.RawKernel`: order of launches, values that others hold, checks before, faults during one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from execution import device_or_skip
from pretended_gpu import pretended_gpu

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.cuda.raw_kernel import gpu_source
from tinygrad_cuda.backend.emu.backend import EmuBackend
from tinygrad_cuda.backend.emu.runtime import KernelFault
from tinygrad_cuda.backend.launch.raw_text import raw_text

ADD = """
// y[i] += a * x[i]
extern "C" __global__ void add(const float* x, float* __restrict__ y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
"""
SUM = """
extern "C" __global__ void total(const float* x, float* y, int n) {
  __shared__ float part[256];
  int t = threadIdx.x;
  part[t] = t < n ? x[t] : 0.0f;
  BARRIER
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];
    __syncthreads();
  }
  if (t == 0) y[0] = part[0];
}
"""
TRANSPOSE = """
extern __shared__ float tile[];
extern "C" __global__ void __launch_bounds__(64) turn(
    const float* __restrict__ x, float* y, int rows, int columns) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c < columns && r < rows) tile[threadIdx.y * 9 + threadIdx.x] = x[r * columns + c];
  __syncthreads();
  int row = blockIdx.x * blockDim.x + threadIdx.y, column = blockIdx.y * blockDim.y + threadIdx.x;
  if (row < columns && column < rows) y[row * rows + column] = tile[threadIdx.x * 9 + threadIdx.y];
}
"""
COUNT = """
struct Box { float low, high; };
__device__ bool inside(float v, Box b) { return v >= b.low && v < b.high; }
extern "C" __global__ void count(const float* x, int* bins, long long n, float width) {
  __shared__ int own[4];
  if (threadIdx.x < 4) own[threadIdx.x] = 0;
  __syncthreads();
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    for (int b = 0; b < 4; b++)
      if (inside(x[i], Box{b * width, (b + 1) * width})) atomicAdd(&own[b], 1);
  __syncthreads();
  if (threadIdx.x < 4) atomicAdd(bins + threadIdx.x, own[threadIdx.x]);
}
"""
WARP = """
extern "C" __global__ void warp(const double* x, double* y, tgc_half* h) {
  double v = x[threadIdx.x];
  for (int k = 16; k; k /= 2) v += __shfl_xor_sync(0xffffffffu, v, k);
  if (threadIdx.x == 0) { y[0] = v; tgc_store(h, 0, v); }
}
"""
PTX = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry nothing(.param .u64 x, .param .u32 n) { ret; }
"""


@pytest.fixture(autouse=True)
def emu(request: pytest.FixtureRequest) -> Iterator[None]:
    device_or_skip("emu", request)
    tc.set_default_device("emu")
    yield
    tc.set_default_device(None)


def floats(count: int) -> Any:
    return tc.tensor(np.arange(count, dtype="f"))


def test_it_reads_pending_values_and_others_keep_what_it_overwrites() -> None:
    add = tc.RawKernel(ADD, "add")
    x, y = floats(100), tc.ones(100)
    before, view = y.clone(), y[10:12]
    later = y * 10  # recorded before the launch: of the old value
    add(1, 128, (2 * x + 1, y, 0.5, 100))
    np.testing.assert_array_equal(y.numpy(), 1.5 + np.arange(100))
    assert before.tolist() == [1] * 100 and later.tolist() == [10] * 100
    assert view.tolist() == [11.5, 12.5]  # a view of the Tensor sees the write
    assert (y * 2)[0].item() == 3  # recorded after it
    add((1, 1), (8, 1, 1), [y, y, 1, 2])
    assert y[:3].tolist() == [3, 5, 3.5]


def test_a_contiguous_view_is_written_where_it_lies() -> None:
    y = tc.zeros(4, 3)
    tc.RawKernel(ADD, "add")(1, 32, (tc.ones(3), y[2], 5.0, 3))
    assert y.sum(1).tolist() == [0, 0, 15, 0]


def test_storage_stays_where_nobody_else_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the same memory, but for values that a clone or a history holds."""
    monkeypatch.setattr(EmuBackend, "writes_in_place", True)
    add = tc.RawKernel(ADD, "add")
    x, y = floats(4), tc.ones(4)
    assert x.tolist() and y.tolist()
    first = y.cell.node.storage.address
    add(1, 32, (x, y, 1.0, 4))
    assert y.cell.node.storage.address == first and y.tolist() == [1, 2, 3, 4]
    copy = y.clone()
    copy.tolist()
    add(1, 32, (x, y, 1.0, 4))
    assert y.tolist() == [1, 3, 5, 7] and copy.tolist() == [1, 2, 3, 4]
    w = tc.ones(4, requires_grad=True)
    z = w * y  # its gradient reads y
    z.tolist()
    add(1, 32, (x, y, 1.0, 4))
    z.sum().backward()
    assert w.grad.tolist() == [1, 3, 5, 7] and y.tolist() == [1, 4, 7, 10]


def test_grids_of_two_dimensions_and_dynamic_memory() -> None:
    x = tc.tensor(np.random.default_rng(0).random((13, 21), dtype="f"))
    y = tc.empty(21, 13)
    tc.RawKernel(TRANSPOSE, "turn")((3, 2), (8, 8), (x, y, 13, 21), shared_mem=4 * 9 * 8)
    np.testing.assert_array_equal(y.numpy(), x.numpy().T)


def test_barriers_warps_and_atomics() -> None:
    total = tc.RawKernel(SUM.replace("BARRIER", "__syncthreads();"), "total")
    y = tc.empty(1)
    total(1, 256, (floats(200), y, 200))
    assert y.item() == 19900
    bins = tc.zeros(4, dtype=tc.int32)
    tc.RawKernel(COUNT, "count")(3, 64, (floats(1000) / 1000, bins, 1000, 0.25))
    assert bins.tolist() == [250] * 4
    wide, narrow = tc.empty(1, dtype=tc.float64), tc.empty(1, dtype=tc.float16)
    tc.RawKernel(WARP, "warp")(1, 32, (floats(32).double(), wide, narrow))
    assert wide.item() == narrow.item() == 496


def launched(source: str, name: str, grid: int, block: int, *args: Any) -> str:
    with pytest.raises(KernelFault) as caught:
        tc.RawKernel(source, name)(grid, block, args)
    return str(caught.value)


def test_faults_are_reported_with_the_argument_and_change_nothing() -> None:
    y = tc.zeros(100)
    unguarded = ADD.replace("if (i < n) ", "")
    text = launched(unguarded, "add", 1, 128, floats(128), y, 1.0, 100)
    assert "outside the buffer" in text and "for y" in text and "index 100" in text
    assert y.sum().item() == 0
    assert "a race" in launched(SUM.replace("BARRIER", ""), "total", 1, 256, floats(256), y, 256)
    racing = re.sub(r"int i = .*", "int i = 0;", ADD)
    assert "thread 0 has written" in launched(racing, "add", 1, 64, floats(4), y, 1.0, 4)
    assert "thread 0 of block 0" in launched(racing, "add", 4, 1, floats(4), y, 1.0, 4)
    some = SUM.replace("BARRIER", "if (t < 100) __syncthreads();")
    assert "barrier" in launched(some, "total", 1, 256, floats(256), y, 256)
    wild = "*(float*)16 = 0;"
    assert "outside" in launched(ADD.replace("if", wild + " if"), "add", 1, 1, y, y, 1.0, 1)
    assert y.sum().item() == 0


def test_what_does_not_fit_is_refused_before_a_launch() -> None:
    add = tc.RawKernel(ADD, "add")
    x, y = floats(4), tc.ones(4)
    for wrong, error, message in (
        ((x, y, 1.0), tc.ArgumentError, "4: .const float. x, float. y, float a, int n"),
        ((x, y, 1.0, 2.5), tc.ArgumentError, "int n"),
        ((x, y, 1.0, 1 << 40), tc.ArgumentError, "int n"),
        ((x, 3.0, 1.0, 4), tc.ArgumentError, "a Tensor for float. y"),
        ((x, y, x, 4), tc.ArgumentError, "a number for float a"),
        ((x.double(), y, 1.0, 4), tc.DTypeError, "float64"),
        ((x.reshape(2, 2).T, y, 1.0, 4), tc.ArgumentError, "not contiguous"),
        ((x, tc.ones(1).expand(4), 1.0, 4), tc.ArgumentError, "not contiguous"),
        ((x, y.to("cpu"), 1.0, 4), tc.DeviceError, "emu, cpu"),
        ((y[1:], y, 1.0, 3), tc.ArgumentError, "share memory"),
        ((x, y.clone().requires_grad_(), 1.0, 4), tc.GradientError, "custom_op"),
    ):
        with pytest.raises(error, match=message):
            add(1, 32, wrong)
        assert y.tolist() == [1] * 4
    switch = tc.RawKernel(
        'extern "C" __global__ void set(float* y, bool on) { if (on) y[threadIdx.x] = 2; }', "set"
    )
    for wrong in ("yes", 0.5, None, [0]):  # packed as a bool each would be true or false
        with pytest.raises(tc.ArgumentError, match="a value of bool on"):
            switch(1, 4, (y, wrong))
    switch(1, 4, (y, np.bool_(False)))
    assert y.tolist() == [1] * 4
    for sizes in ((0, 32), (1, 2048), ((1, 1, 1, 1), 1), (1, (64, 64)), (1.5, 1)):
        with pytest.raises(tc.ArgumentError):
            add(*sizes, (x, y, 1.0, 4))
    with tc.no_grad():
        w = tc.ones(4, requires_grad=True)
        add(1, 32, (x, w, 1.0, 4))
        assert w.tolist() == [1, 2, 3, 4] and w.requires_grad


def test_cpu_and_ptx_are_refused_by_name() -> None:
    add = tc.RawKernel(ADD, "add")
    with pytest.raises(tc.DeviceError, match="emulator"):
        add(1, 32, (tc.ones(4, device="cpu"), tc.ones(4, device="cpu"), 1.0, 4))
    ptx = tc.RawKernel(PTX, "nothing", signature="const float* x, int n")
    with pytest.raises(tc.DeviceError, match="runs no PTX: nothing"):
        ptx(1, 32, (tc.ones(4), 4))
    with pytest.raises(tc.ArgumentError, match="signature="):
        tc.RawKernel(PTX, "nothing")
    with pytest.raises(tc.ArgumentError, match="kernels: nothing"):
        tc.RawKernel(PTX, "other", signature="int n")


def test_compiled_functions_and_vmap_refuse_it_with_the_line() -> None:
    add = tc.RawKernel(ADD, "add")
    y = tc.ones(4)

    @tc.compile
    def step(x: Any) -> Any:
        add(1, 32, (x, y, 1.0, 4))
        return x + y

    with pytest.raises(tc.TgcError, match=r"(?s)add.*compiled function.*tc.kernel"):
        step(floats(4))
    with pytest.raises(tc.ArgumentError, match="inside vmap"):
        tc.vmap(lambda x: add(1, 32, (x, y, 1.0, 4)))(tc.ones(2, 4))
    assert y.tolist() == [1] * 4


def test_signatures() -> None:
    source = """
    extern "C" {
    __global__ void all(float const *x, unsigned char* restrict_me, const __restrict__ double* d,
                        void* any, size_t n, unsigned int k, bool flag, const int64_t *q) {}
    }"""
    parsed = raw_text(source, "all").parameters
    assert [p.written for p in parsed] == [False, True, False, True, False, False, False, False]
    assert [p.dtype.name if p.dtype else "" for p in parsed] == [
        "float32", "uint8", "float64", "", "", "", "", "int64",
    ]  # fmt: skip
    assert [p.letter for p in parsed] == list("QQQQQI?Q")
    with pytest.raises(tc.ArgumentError, match="kernels: all"):
        raw_text(source, "none")
    with pytest.raises(tc.ArgumentError, match="mangled"):
        raw_text("__global__ void f(int n) {}", "f")
    with pytest.raises(tc.ArgumentError, match="cannot be passed"):
        raw_text('extern "C" __global__ void f(float4 v) {}', "f")
    with pytest.raises(tc.ArgumentError, match="cannot be passed"):
        raw_text('extern "C" __global__ void f(float** v) {}', "f")
    source = """extern "C" __global__ void wide(unsigned short* a, uint32_t* b, const size_t* c,
                                                unsigned* d, unsigned long long* e) {}"""
    assert [p.dtype.name if p.dtype else "" for p in raw_text(source, "wide").parameters] == [
        "uint16", "uint32", "uint64", "uint32", "uint64",
    ]  # fmt: skip


def test_texts_that_no_compiler_takes_show_the_line() -> None:
    broken = tc.RawKernel(ADD.replace("a * x[i]", "a * z[i]"), "add")
    with pytest.raises(tc.CompileError, match=r"add\.cu:5: .z. was not declared"):
        broken(1, 32, (floats(4), tc.ones(4), 1.0, 4))


def test_the_launches_of_a_gpu_by_a_pretended_driver() -> None:
    """Each parameter by a pointer of its own, in order with plans, in the same memory if it may."""
    pytest.importorskip("cuda.bindings.driver")
    add, turn = tc.RawKernel(ADD, "add"), tc.RawKernel(TRANSPOSE, "turn")
    with pretended_gpu() as driver:
        x, y = tc.tensor(np.arange(100, dtype="f"), device="cuda"), tc.ones(100, device="cuda")
        assert y.sum().item() == 100
        first = y.cell.node.storage.address
        add(1, 128, (2 * x + 1, y, 0.5, 100))
        assert y.cell.node.storage.address == first and driver.launched[-1] != "add"  # not waited
        copy = y.clone()
        add(1, 128, (x, y, 1.0, 100))
        later = y - copy
        assert y.cell.node.storage.address != first
        np.testing.assert_array_equal(copy.cpu().numpy(), 1.5 + np.arange(100))
        np.testing.assert_array_equal(later.cpu().numpy(), np.arange(100))
        image = tc.tensor(np.random.default_rng(0).random((13, 21), dtype="f"), device="cuda")
        turned = tc.empty(21, 13, device="cuda")
        turn((3, 2), (8, 8), (image, turned, 13, 21), shared_mem=4 * 9 * 8)
        np.testing.assert_array_equal(turned.cpu().numpy(), image.cpu().numpy().T)
        assert driver.launched.count("add") == 2 and driver.launched.count("turn") == 1


def test_nvrtc_takes_the_same_texts(architectures: list[str]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    barrier = SUM.replace("BARRIER", "__syncthreads();")
    texts = {"add": ADD, "total": barrier, "turn": TRANSPOSE, "count": COUNT, "warp": WARP}
    for arch in architectures:
        for name, source in texts.items():
            binary = compile_source(gpu_source(raw_text(source, name)), arch)
            assert name.encode() in binary.cubin

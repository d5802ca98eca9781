"""The CUDA text of an op against its reference: once, at the first use on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend.emu.backend import EmuBackend
from tinygrad_cuda.core.errors import TgcError

TEXT = """
extern "C" __global__ void scaled(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = i == 2 ? 0.0f : 2.0f * x[i];
}"""


def whole(calls: list[int], **options: Any) -> Any:
    """An op whose kernel is wrong at element 2, and which counts calls of its reference."""

    def reference(x: Any) -> Any:
        calls.append(x.size)
        return 2 * x

    @tc.custom_op(
        tc.RawKernel(TEXT, "scaled"), numpy=reference, outputs=lambda x: x.shape,
        launch=lambda x, y: (1, 32, (x, y, x.numel())), **options,
    )  # fmt: skip
    def scaled(x: Any) -> Any:
        """2 * x"""

    return scaled


def test_a_wrong_kernel_is_seen_at_its_first_use() -> None:
    """It gave wrong values, which only TGC_VALIDATE noticed."""
    calls: list[int] = []
    op = whole(calls)
    x = tc.tensor([1.0, 2.0, 3.0, 4.0], device="emu")
    for _ in range(2):  # a wrong one does not pass the second time
        with pytest.raises(TgcError, match="the kernel gives other values") as raised:
            op(x)
    assert "6.0 at element (2,)" in str(raised.value) and "check=False" in str(raised.value)
    assert op(x.cpu()).tolist() == [2.0, 4.0, 6.0, 8.0]
    assert op(x[:2]).tolist() == [2.0, 4.0]


def test_a_right_one_is_compared_once() -> None:
    calls: list[int] = []
    op = whole(calls)
    x = tc.tensor([1.0, 2.0], device="emu")
    for _ in range(3):
        assert op(x).tolist() == [2.0, 4.0]
    assert calls == [2]
    calls.clear()
    op = whole(calls, check=False)
    assert op(tc.tensor([1.0, 2.0, 3.0], device="emu")).tolist() == [2.0, 4.0, 0.0]
    assert calls == []


def wrong(**options: Any) -> Any:
    @tc.kernel("y = x * x * 1.5", numpy=lambda x: x * x, **options)
    def square(x: Any) -> Any:
        """x * x"""

    return square


def test_an_expression_is_compared_at_points_of_its_domain() -> None:
    x = tc.tensor([1.0, 2.0], device="emu")
    with pytest.raises(TgcError, match=r"\[square\] the kernel gives other values"):
        wrong()(x)
    with pytest.raises(TgcError, match=r"at element \(0,\), of "):
        wrong()(tc.tensor([1.0], device="emu", dtype=tc.float64))
    assert wrong()(x.cpu()).tolist() == [1.0, 4.0]
    assert wrong(check=False)(x).tolist() == [1.5, 6.0]

    @tc.custom_op("y = x + 1", numpy=lambda x: x + 2)
    def moved(x: Any) -> Any:
        """x + 1"""

    with pytest.raises(TgcError, match=r"\[moved\]"):
        moved(x)


def test_each_dtype_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of integers, half types and a compiled function; the comparison records nothing."""
    compiled: list[Any] = []
    plain = EmuBackend.compile

    def noted(self: EmuBackend, program: Any) -> Any:
        compiled.append(program)
        return plain(self, program)

    monkeypatch.setattr(EmuBackend, "compile", noted)

    @tc.kernel("y = 3 * x + 1", gradient="3 * g")
    def line(x: Any) -> Any:
        """3 * x + 1"""

    for dtype in (tc.float32, tc.int32, tc.bfloat16, tc.float32):
        x = tc.tensor([1, 2], dtype=dtype, device="emu")
        with tc.no_grad():
            assert line(x).tolist() == [4, 7]
    assert len({program.outputs[0].dtype for program in compiled}) == 3
    alone = [program for program in compiled if program.outputs[0].shape == (16,)]
    assert len(alone) == 3

    @tc.kernel("y = x * x", gradient="2 * x * g")
    def square(x: Any) -> Any:
        """x * x"""

    step = tc.compile(lambda x: square(x).sum())
    x = tc.tensor([1.0, 2.0], device="emu")
    assert [step(x).item() for _ in range(3)] == [5.0] * 3


def test_nans_and_infinities_agree() -> None:
    @tc.kernel("y = logf(x)", numpy=lambda x: np.log(x))
    def logarithm(x: Any) -> Any:
        """log(x)"""

    assert logarithm(tc.tensor([1.0], device="emu")).tolist() == [0.0]

"""uint16, uint32 and uint64: values of all their bits, PyTorch's rules, the standard's table."""

from __future__ import annotations

import io
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.dtypes import ALL, COMPLEX, DType

pytestmark = pytest.mark.usefixtures("on_cpu")
UNSIGNED = (tc.uint16, tc.uint32, tc.uint64)
INTEGERS = tuple(dtype for dtype in ALL if dtype.is_integer)
DEVICES = pytest.mark.parametrize("device", ["cpu", "emu"])
EACH = pytest.mark.parametrize("dtype", UNSIGNED, ids=lambda dtype: dtype.name)


def largest(dtype: DType) -> int:
    return 2 ** (8 * dtype.itemsize) - 1


def some(dtype: DType) -> np.ndarray[Any, Any]:
    top = largest(dtype)
    return np.array([0, 1, 2, 7, top // 2, top // 2 + 1, top - 1, top], dtype.numpy)


# Promotion ------------------------------------------------------------------------------------

# The standard's table: the larger of two of a sign, and the next larger signed one of both.
STANDARD = {
    ("uint8", "uint16"): "uint16", ("uint8", "uint32"): "uint32", ("uint8", "uint64"): "uint64",
    ("uint16", "uint32"): "uint32", ("uint16", "uint64"): "uint64", ("uint32", "uint64"): "uint64",
    ("int8", "uint16"): "int32", ("int8", "uint32"): "int64", ("int16", "uint16"): "int32",
    ("int16", "uint32"): "int64", ("int32", "uint16"): "int32", ("int32", "uint32"): "int64",
    ("int64", "uint16"): "int64", ("int64", "uint32"): "int64", ("int8", "uint8"): "int16",
    ("int16", "uint8"): "int16", ("int32", "uint8"): "int32", ("int64", "uint8"): "int64",
}  # fmt: skip


@pytest.mark.parametrize("names", STANDARD, ids="-".join)
def test_integers_promote_as_in_the_standard(names: tuple[str, str]) -> None:
    a, b = (getattr(tc, name) for name in names)
    wanted = getattr(tc, STANDARD[names])
    assert tc.promote_types(a, b) is tc.promote_types(b, a) is wanted
    assert (tc.ones(2, dtype=a) + tc.ones(2, dtype=b)).dtype is wanted
    assert tc.array_api.result_type(a, b) is wanted
    assert tc.array_api.can_cast(a, b) is (wanted is b)


@pytest.mark.parametrize("signed", [tc.int8, tc.int16, tc.int32, tc.int64])
def test_uint64_and_a_signed_dtype_have_none_in_common(signed: DType) -> None:
    x, y = tc.ones(2, dtype=tc.uint64), tc.ones(2, dtype=signed)
    for use in (lambda: x + y, lambda: tc.cat([x, y]), lambda: tc.promote_types(signed, x.dtype)):
        with pytest.raises(tc.DTypeError, match=f"no integer dtype.*(?s:.*){signed.name}"):
            use()
    assert not tc.array_api.can_cast(signed, tc.uint64)
    assert not tc.array_api.can_cast(tc.uint64, signed)
    # A number and a tensor without dimensions take the dtype of the other, as in PyTorch.
    assert (x + 1).dtype is (x * y[0]).dtype is tc.uint64


def test_promotion_is_torchs_where_torch_has_it() -> None:
    torch = pytest.importorskip("torch")
    refused = 0
    for a, b in product((*ALL, *COMPLEX), repeat=2):
        try:
            wanted = torch.promote_types(getattr(torch, a.name), getattr(torch, b.name))
        except RuntimeError:
            refused += 1
            continue
        assert tc.promote_types(a, b).name == str(wanted).removeprefix("torch.")
    assert refused == 54


# Values ---------------------------------------------------------------------------------------


@EACH
def test_what_a_dtype_says_of_itself(dtype: DType) -> None:
    top = largest(dtype)
    info = tc.iinfo(dtype)
    assert (info.min, info.max, info.bits) == (0, top, 8 * dtype.itemsize)
    x = tc.tensor([1, top], dtype=dtype)
    assert not x.is_signed() and not dtype.is_signed and dtype.is_integer
    assert x.tolist() == [1, top] and x[1].item() == top and f"{top}]" in repr(x)
    assert f"dtype=tinygrad_cuda.{dtype.name}" in repr(x)
    assert x.type() == f"torch.{dtype.name.replace('uint', 'UInt')}Tensor"
    assert x.dtype is tc.tensor(x.numpy()).dtype is dtype


@EACH
def test_numbers_wrap_or_are_refused_as_in_torch(dtype: DType) -> None:
    top = largest(dtype)
    for number, held in ((-1, top), (top, top), (-top, 1), (1.5, 1), (True, 1)):
        assert tc.full((2,), number, dtype=dtype).tolist() == [held] * 2
        assert tc.zeros(2, dtype=dtype).fill_(number).tolist() == [held] * 2
        assert tc.tensor([0, number], dtype=dtype).tolist() == [0, held]
    for number in (top + 1, -top - 1, -1.0, float(2**64), float("nan")):
        for use in (
            lambda n=number: tc.full((2,), n, dtype=dtype),
            lambda n=number: tc.zeros(2, dtype=dtype).fill_(n),
            lambda n=number: tc.tensor([0, n], dtype=dtype),
        ):
            with pytest.raises(tc.ArgumentError, match="the number does not fit"):
                use()


@DEVICES
@EACH
def test_arithmetic_is_numpys(dtype: DType, device: str) -> None:
    with tc.device(device):
        _compare_with_numpy(dtype)


def _compare_with_numpy(dtype: DType) -> None:
    a, b = (grid.ravel() for grid in np.meshgrid(some(dtype), some(dtype)))
    x, y, top = tc.tensor(a), tc.tensor(b), dtype.numpy.type(largest(dtype))
    bits = np.array(8 * dtype.itemsize - 1, dtype.numpy)
    divisor = np.where(b == 0, 1, b).astype(dtype.numpy)
    with np.errstate(over="ignore"):
        cases = [
            (x + y, a + b), (x - y, a - b), (x * y, a * b), (-x, 0 - a), (~x, ~a),
            (x**3, a * a * a), (tc.maximum(x, y), np.maximum(a, b)), (x & y, a & b),
            (x // y.clamp(min=1), a // divisor), (x % y.clamp(min=1), a % divisor),
            (x ^ y, a ^ b), (x << int(bits), a << bits), (x >> int(bits), a >> bits),
            (x >> 3, a >> np.array(3, a.dtype)), (x + int(top), a + top), (x * int(top), a * top),
            (x.clamp(2, int(top) - 1), a.clip(2, top - 1)), (x < y, a < b), (x == y, a == b),
            (x >= int(top), a >= top), (x.abs(), a), (x.sign(), np.sign(a)), (x.max(), a.max()),
            (x.argmin(), np.int64(a.argmin())), (x.sort().values, np.sort(a)),
            (x.cummax(0).values, np.maximum.accumulate(a)), (x.unique(), np.unique(a)),
            (x.sum(dtype=dtype), a.sum(dtype=a.dtype)),
            (tc.where(x < y, x, y), np.where(a < b, a, b)),
            (x.view(8, 8) @ y.view(8, 8), a.reshape(8, 8) @ b.reshape(8, 8)),
            (x.gather(0, tc.tensor([3, 60])), a[[3, 60]]), (x[tc.tensor([3, 60])], a[[3, 60]]),
            (tc.searchsorted(tc.tensor(some(dtype)), x), np.searchsorted(some(dtype), a)),
            (tc.arange(int(top) - 3, int(top), dtype=dtype), top - np.arange(3, 0, -1, a.dtype)),
        ]  # fmt: skip
    for number, (got, wanted) in enumerate(cases):
        np.testing.assert_array_equal(got.numpy(), wanted, err_msg=str(number), strict=True)


def test_integers_of_any_size_are_looked_at() -> None:
    """NumPy makes objects of them, or floats."""
    for numbers, dtype in (([2**70], tc.int64), ([1, 2**64], tc.uint64), ([2**70, 1.5], tc.uint8)):
        with pytest.raises(tc.ArgumentError, match="the number does not fit"):
            tc.tensor(numbers, dtype=dtype)
    with pytest.raises(tc.DTypeError, match="not a number"):
        tc.tensor([None, 1], dtype=tc.int64)
    assert tc.tensor([2**63 + 1, -1], dtype=tc.uint64).tolist() == [2**63 + 1, 2**64 - 1]


def test_sums_are_int64_as_in_torch_and_uint64_in_the_standard() -> None:
    for dtype in UNSIGNED:
        x = tc.tensor([1, 2], dtype=dtype)
        for function in ("sum", "prod"):
            assert getattr(x, function)().dtype is tc.int64
            assert getattr(tc.array_api, function)(x).dtype is tc.uint64
        assert x.cumsum(0).dtype is tc.int64 and x.mean(dtype=tc.float64).item() == 1.5
        assert tc.array_api.cumulative_sum(x).dtype is tc.uint64
        assert x.all().dtype is tc.bool and (x / 2).dtype is tc.float32
    top = tc.tensor([2**64 - 1], dtype=tc.uint64)
    assert tc.array_api.sum(top).item() == 2**64 - 1


@DEVICES
@EACH
def test_casts(dtype: DType, device: str) -> None:
    with tc.device(device):
        _compare_casts(dtype)


def _compare_casts(dtype: DType) -> None:
    a = some(dtype)
    for other in (*INTEGERS, tc.bool, tc.float64, tc.float32):
        found = tc.tensor(a).to(other).numpy()
        np.testing.assert_array_equal(found, a.astype(other.numpy), strict=True)
        back = tc.tensor(np.array([1, 0, 100], other.numpy)).to(dtype)
        assert back.tolist() == np.array([1, 0, 100], other.numpy).astype(a.dtype).tolist()
    assert tc.tensor([-1]).to(dtype).item() == largest(dtype)
    # Numbers that a cast of floats defines here, and torch's CPU gives: truncated, low bits.
    assert tc.tensor([-1.5, 70000.5]).to(dtype).tolist() == [
        largest(dtype),
        70000 % (largest(dtype) + 1),
    ]
    limit = float(largest(dtype) // 2 + 1)
    assert tc.tensor([limit], dtype=tc.float64).to(dtype).item() == int(limit)


def test_signed_bytes_do_not_pass_an_unsigned_dtype_unchanged() -> None:
    """Of two casts one is left out only where the first keeps every value."""
    x = tc.tensor([-1, 3], dtype=tc.int8)
    assert x.to(tc.uint16).to(tc.int32).tolist() == [65535, 3]
    assert x.to(tc.uint16).to(tc.float32).tolist() == [65535.0, 3.0]
    assert x.to(tc.uint64).to(tc.uint32).to(tc.int64).tolist() == [2**32 - 1, 3]


@EACH
def test_compiled_functions_and_random_numbers(dtype: DType) -> None:
    x = tc.tensor(some(dtype))
    step = tc.compile(lambda x, n: (x * n + 1).max())
    for n in (1, 2, 3):
        assert step(x, n).item() == int(
            (some(dtype) * dtype.numpy.type(n) + dtype.numpy.type(1)).max()
        )
    drawn = tc.randint(3, 9, (50,), dtype=dtype)
    assert drawn.dtype is dtype and 3 <= drawn.min().item() <= drawn.max().item() < 9
    assert tc.randint(largest(tc.uint16), largest(tc.uint16) + 1, (1,), dtype=dtype).item() == 65535
    with pytest.raises(tc.ArgumentError, match="does not hold all of the range"):
        tc.randint(-1, 3, (2,), dtype=dtype)
    assert tc.zeros(50, dtype=dtype).random_().max().item() > 100


@DEVICES
@EACH
def test_kernels_of_an_expression(dtype: DType, device: str) -> None:
    a = some(dtype)

    @tc.kernel("y = a > 7 ? b / a + 3 : a * b + 1")
    def mixed(a: tc.Tensor, b: tc.Tensor) -> tc.Tensor:
        return a

    found = mixed(tc.tensor(a, device=device), tc.tensor(a[::-1].copy(), device=device))
    pairs = zip(a.tolist(), a[::-1].tolist())
    wanted = [y // x + 3 if x > 7 else x * y + 1 for x, y in pairs]
    assert found.tolist() == [number % (largest(dtype) + 1) for number in wanted]


def test_an_unsigned_index_is_refused_as_in_torch() -> None:
    with pytest.raises(tc.IndexError, match="no index"):
        tc.ones(3)[tc.tensor([1], dtype=tc.uint32)]


# Exchange -------------------------------------------------------------------------------------


@EACH
def test_memory_is_shared_with_numpy_and_torch(dtype: DType) -> None:
    array = some(dtype)
    x = tc.from_dlpack(array)
    assert x.dtype is dtype and x.data_ptr() == array.ctypes.data
    assert np.from_dlpack(x).dtype == array.dtype and tc.from_numpy(array).tolist() == x.tolist()
    torch = pytest.importorskip("torch")
    theirs = torch.from_dlpack(x)
    assert theirs.dtype is getattr(torch, dtype.name) and theirs.tolist() == array.tolist()
    assert tc.from_dlpack(theirs).dtype is dtype


def test_files(tmp_path: Path) -> None:
    state = {dtype.name: tc.tensor(some(dtype)) for dtype in UNSIGNED}
    tc.save(state, tmp_path / "x.safetensors")
    again = tc.load(tmp_path / "x.safetensors")
    for name, x in state.items():
        assert again[name].dtype is x.dtype and again[name].tolist() == x.tolist()
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save({name: torch.from_numpy(x.numpy().copy()) for name, x in state.items()}, file)
    again = tc.load(io.BytesIO(file.getvalue()))
    for name, x in state.items():
        assert again[name].dtype is x.dtype and again[name].tolist() == x.tolist()


@EACH
def test_onnx(dtype: DType) -> None:
    onnx = pytest.importorskip("onnx")

    class Program(tc.nn.Module):
        def forward(self, x: tc.Tensor) -> tc.Tensor:
            return tc.where(x > 2, x * 3, x)

    x, file = tc.tensor(some(dtype)), io.BytesIO()
    tc.onnx.export(Program(), (x,), file)
    model = onnx.load_from_string(file.getvalue())
    kind = model.graph.input[0].type.tensor_type.elem_type
    assert onnx.helper.tensor_dtype_to_np_dtype(kind) == dtype.numpy
    result = tc.onnx.load(io.BytesIO(file.getvalue()))(x)
    assert result.dtype is dtype and result.tolist() == Program()(x).tolist()


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_isin_of_dtypes_that_no_dtype_holds(device: str) -> None:
    """Nothing is in an empty tensor, and one element is taken as a number; as torch has both."""
    signed = tc.tensor([44, 2, -1], dtype=tc.int64, device=device)
    assert tc.isin(signed, tc.zeros(0, dtype=tc.uint64, device=device)).tolist() == [False] * 3
    none = tc.zeros(0, dtype=tc.uint64, device=device)
    assert tc.isin(none, signed).tolist() == []
    assert tc.isin(signed, none, invert=True).tolist() == [True] * 3
    one = tc.tensor(2, dtype=tc.uint64, device=device)
    assert tc.isin(signed, one).tolist() == [False, True, False]
    assert tc.isin(one, signed).item() is True
    with pytest.raises(tc.DTypeError, match="no integer dtype"):
        tc.isin(signed, one[None])

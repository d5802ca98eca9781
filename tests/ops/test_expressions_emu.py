"""Programs of a user on the emulator beside the NumPy backend: what the generated text must say.

The first look realizes all results of a program: one call of the C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import Tensor, nn
from tinygrad_cuda.core.dtypes import DType

Program = Callable[[str], list[Tensor]]


def agree(program: Program, tolerance: float = 1e-5) -> None:
    """Asserts that the emulator gives the values and dtypes that NumPy gives."""
    results, expected = program("emu"), program("cpu")
    for position, (actual, right) in enumerate(zip(results, expected, strict=True)):
        assert actual.dtype is right.dtype
        np.testing.assert_allclose(
            actual.numpy(), right.numpy(), tolerance, tolerance, err_msg=f"result {position}"
        )


def _operands(device: str) -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng(0)
    a = tc.tensor(random.standard_normal((4, 5)), dtype=tc.float32, device=device)
    b = tc.tensor(random.standard_normal((5, 4)), dtype=tc.float32, device=device)
    return a, b, tc.arange(10.0, device=device)


def test_gathers_at_an_index_that_the_kernel_computes() -> None:
    """The position is declared in the scope of the product, the sum or the gather behind it."""

    def program(device: str) -> list[Tensor]:
        a, b, table = _operands(device)
        wide = tc.tensor(np.arange(24.0).reshape(3, 8), dtype=tc.float32, device=device)
        i = tc.arange(8, device=device)
        product = a @ b
        positive = (product > 0).long()
        whole = a.abs().int() @ b.abs().int()
        return [
            wide @ wide.T @ wide + tc.arange(20.0, device=device)[i * 2 - i],
            table[positive],
            table[whole % 10],
            table[table[positive].long() * 2] + product,
            a.gather(1, positive),
            table[positive].sum(0),
            table[(a.sum(0) > 0.2).long()] + a.sum(0),
            table[product.argmax(0)] + product,
            table[product.argmax(1)] + product,
            table[(a.softmax(1) > 0.2).int()].sum(1),
        ]

    agree(program)


@pytest.mark.parametrize("columns", [4, 25])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gathers_behind_sums_of_columns(columns: int, dtype: type) -> None:
    """An odd number of columns has a lane of one value, which no vector holds."""
    numbers = np.random.default_rng(0).standard_normal((5, columns)).astype(dtype)

    def of(device: str) -> tuple[Tensor, Tensor]:
        return tc.tensor(numbers, device=device), tc.tensor([-1.0, 0.5, 2.0], device=device)

    def gathered(device: str) -> list[Tensor]:
        x, table = of(device)
        return [table[(x.float().sum(0) > 0).long()]]

    def bucket(device: str) -> list[Tensor]:
        x, table = of(device)
        return [tc.bucketize(x.mean(0), table)]

    agree(gathered)
    agree(bucket)


def test_labels_that_are_sums_of_the_same_rows() -> None:
    """The label of a cross-entropy was loaded before the sum of which it is made was complete."""

    def program(device: str) -> list[Tensor]:
        a, b, _ = _operands(device)
        label = (a[0] * b[:, 0]).sum().long().remainder(5)
        labels = (a * b.T).sum(1).long().remainder(5)
        top = a.exp().argmax(1)
        return [
            nn.functional.cross_entropy(a[0], label),
            nn.functional.cross_entropy(a, labels, reduction="none"),
            nn.functional.cross_entropy(a, (top + labels) % 5),
            nn.functional.nll_loss(a.log_softmax(1), a.argmin(1), reduction="none"),
        ]

    agree(program)


@pytest.mark.parametrize("dtype", [tc.uint8, tc.int8, tc.int16, tc.uint16, tc.uint32, tc.uint64])
def test_small_integers_meet_a_python_number(dtype: DType) -> None:
    """A literal has the dtype's own C type: no overload is left to choose."""

    def program(device: str) -> list[Tensor]:
        x = tc.tensor([1, 2, 3, 100, 5, 7], dtype=dtype, device=device)
        y = tc.where(x > 2, -x, x) if dtype.is_signed else x
        numbers = (3, -2) if dtype.is_signed else (3, 2)
        return [
            result
            for n in numbers
            for result in (
                y // n, y % n, n // y, n % y, tc.fmod(y, n), tc.div(y, n, rounding_mode="trunc"),
                abs(n) ** (x % 8), y ** 2, y.clamp(min=n), y.clamp(max=n), y & n, y << 1, y >> 1,
                tc.where(y > 1, y, n), n - y, (y + n).prod(), (y[None] + n) @ (y[:, None] + n),
                tc.arange(30, device=device)[(y % n).abs().long()],
            )
        ]  # fmt: skip

    agree(program)


@pytest.mark.parametrize("dtype", [tc.float32, tc.float16])
def test_a_number_is_divided_by_a_product(dtype: DType) -> None:
    """The product's accumulator is a divisor only where it is known: behind the loop."""

    def program(device: str) -> list[Tensor]:
        a = (tc.arange(12.0, device=device).reshape(3, 4) + 1).to(dtype) / 8
        image = a.reshape(1, 1, 3, 4)
        one = a[:1] @ a[:1].T
        return [
            a[:, :3] / (a @ a.T),
            2.5 / (a @ a.T),
            one / one.sqrt() / one,
            1.5 / tc.nn.functional.conv2d(image, image[:, :, :2, :2]),
            (a[:, :3] / (a @ a.T)).softmax(1),
        ]

    agree(program)

"""`tc.custom_op`: of an expression, of a whole kernel; what is checked when it is defined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings

ROWS = tc.RawKernel(
    """
extern "C" __global__ void rows(const float* x, float* sums, int* largest, int n, int width) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  float sum = 0;
  int at = 0;
  for (int k = 0; k < width; k++) {
    float v = x[row * width + k];
    sum += v * v;
    if (v > x[row * width + at]) at = k;
  }
  sums[row] = sum;
  largest[row] = at;
}
""",
    "rows",
)


def rows_numpy(x: Any) -> Any:
    return (x * x).sum(1), x.argmax(1).astype(np.int32)


def rows_op(**changes: Any) -> Any:
    parts: dict[str, Any] = {
        "numpy": rows_numpy,
        "gradient": lambda g, y, x: 2 * x * g[0].unsqueeze(1),
        "outputs": lambda x: [(x.shape[:1], x.dtype), (x.shape[:1], tc.int32)],
        "launch": lambda x, s, a: (-(-len(x) // 64), 64, (x, s, a, *x.shape)),
        "samples": [np.random.default_rng(0).standard_normal((3, 4))],
    }

    @tc.custom_op(ROWS, **{**parts, **changes})
    def rows(x: Any) -> Any:
        """The squares' sum of each row, and its largest element's position."""

    return rows


@pytest.fixture(params=["cpu", "emu"])
def device(request: pytest.FixtureRequest) -> str:
    device_or_skip(request.param, request)
    return str(request.param)


def test_a_whole_kernel_with_two_outputs(device: str) -> None:
    rows = rows_op()
    x = np.random.default_rng(1).standard_normal((5, 7)).astype("f")
    t = tc.tensor(x, device=device, requires_grad=True)
    sums, largest = rows(t * 2)  # its input is pending
    np.testing.assert_allclose(sums.detach().numpy(), 4 * (x * x).sum(1), rtol=1e-5)
    assert largest.tolist() == x.argmax(1).tolist() and largest.dtype is tc.int32
    assert sums.requires_grad and not largest.requires_grad
    sums.sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), 8 * x, rtol=1e-5)
    turned = tc.tensor(x, device=device).T  # no row-major memory: it is copied first
    np.testing.assert_allclose(rows(turned)[0].numpy(), (x * x).sum(0), rtol=1e-5)
    assert rows.__name__ == "rows" and "largest" in rows.__doc__


def test_second_derivatives_of_a_whole_kernel() -> None:
    x = tc.tensor([[0.5, -1.0], [2.0, 0.25]], dtype=tc.float64, device="cpu", requires_grad=True)
    assert tc.autograd.gradgradcheck(lambda x: rows_op()(x)[0], (x,))


def test_an_expression_fuses_and_is_mapped_and_compiled(device: str) -> None:
    @tc.custom_op(
        "y = a / (1 + expf(-b))",
        numpy=lambda a, b: a / (1 + np.exp(-b)),
        gradient=lambda g, y, a, b: (g * tc.sigmoid(b), g * y * (1 - tc.sigmoid(b))),
    )
    def gate(a: Any, b: Any) -> Any: ...

    rng = np.random.default_rng(2)
    a, b = (tc.tensor(rng.random((2, 3)), device=device) for _ in range(2))
    expected = a.numpy() / (1 + np.exp(-b.numpy()))
    np.testing.assert_allclose(tc.vmap(gate)(a, b).numpy(), expected)
    np.testing.assert_allclose(tc.compile(lambda a, b: gate(a, b) * 2)(a, b).numpy(), 2 * expected)
    if device == "emu":
        assert len((gate(a, b) + 1).explain().split("\n")) == 2  # one kernel, and the memory
    pair = [tc.tensor([v], dtype=tc.float64, device="cpu", requires_grad=True) for v in (0.3, 0.7)]
    assert tc.autograd.gradgradcheck(gate, pair)


def test_wrong_definitions_are_refused() -> None:
    with pytest.raises(tc.GradientError, match="input 0 is wrong"):
        rows_op(gradient=lambda g, y, x: x * g[0].unsqueeze(1))
    with pytest.raises(tc.ShapeError, match=r"(?s)expect: \(4,\) float64.*actual: \(3,\) float64"):
        rows_op(outputs=lambda x: [(x.shape[1:], x.dtype), (x.shape[:1], tc.int32)])
    with pytest.raises(tc.ArgumentError, match="samples="):
        rows_op(samples=None)
    with pytest.raises(tc.ArgumentError, match="how it is launched"):
        rows_op(launch=None)
    with pytest.raises(tc.ArgumentError, match="does not belong to an expression"):
        tc.custom_op("y = x", numpy=lambda x: x, samples=[1.0])(lambda x: x)
    with pytest.raises(tc.GradientError, match="input 'b' is wrong"):
        tc.custom_op("y = a * b", numpy=lambda a, b: a * b, gradient=lambda g, y, a, b: (g * b, g))(
            lambda a, b: a
        )


def test_compiled_and_mapped_functions_refuse_a_whole_kernel(device: str) -> None:
    rows = rows_op()
    x = tc.ones(2, 3, device=device)
    with pytest.raises(tc.TgcError, match=r"(?s)rows.*compiled function.*tc.kernel"):
        tc.compile(lambda x: rows(x)[0])(x)
    with pytest.raises(tc.ArgumentError, match="inside vmap"):
        tc.vmap(lambda x: rows(x)[0])(tc.ones(4, 2, 3, device=device))


def test_without_a_gradient_and_with_wrong_inputs(device: str) -> None:
    rows = rows_op(gradient=None, samples=None)
    x = tc.ones(2, 3, device=device, requires_grad=True)
    with pytest.raises(tc.GradientError, match="rows"):
        rows(x)[0].sum().backward()
    with pytest.raises(tc.ArgumentError, match="Tensors x"):
        rows(x, x)
    with pytest.raises(tc.ArgumentError, match="Tensors x"):
        rows(3.0)


def test_validation_compares_the_kernel_with_numpy(request: pytest.FixtureRequest) -> None:
    device_or_skip("emu", request)
    x = tc.tensor([[1.0, 3.0], [2.0, 0.0]], device="emu")
    half = rows_op(
        numpy=lambda x: (rows_numpy(x)[0] / 2, rows_numpy(x)[1]), gradient=None, samples=None,
        check=False,
    )  # fmt: skip
    assert half(x)[0].tolist() == [10, 4]  # what the kernel says
    with (
        settings.override(validate=True),
        pytest.raises(tc.TgcError, match="other values than the reference"),
    ):
        half(x)
    with settings.override(validate=True):
        assert rows_op()(x)[1].tolist() == [1, 0]

"""Functions of linalg with `out`, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
A = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
PROGRAMS: dict[str, Any] = {
    "norm": lambda lib, a, out: lib.linalg.norm(a, dim=1, out=out),
    "vector_norm": lambda lib, a, out: lib.linalg.vector_norm(a, 3, dim=0, out=out),
    "matrix_norm": lambda lib, a, out: lib.linalg.matrix_norm(a, out=out),
    "det": lambda lib, a, out: lib.linalg.det(a, out=out),
    "inv": lambda lib, a, out: lib.linalg.inv(a, out=out),
    "solve": lambda lib, a, out: lib.linalg.solve(a, a[:, 0], out=out),
    "solve_triangular": lambda lib, a, out: lib.linalg.solve_triangular(a, a, upper=True, out=out),
    "matrix_power": lambda lib, a, out: lib.linalg.matrix_power(a, 3, out=out),
    "multi_dot": lambda lib, a, out: lib.linalg.multi_dot([a, a], out=out),
    "eigvalsh": lambda lib, a, out: lib.linalg.eigvalsh(a, out=out),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_result_is_in_out(name: str) -> None:
    values = []
    for lib in (tc, torch):
        a, out = lib.tensor(A), lib.zeros(0, dtype=lib.float64)
        result = PROGRAMS[name](lib, a, out)
        assert result is out
        values.append(out.numpy())
    np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-12)


def test_several_results() -> None:
    values = []
    for lib in (tc, torch):
        out = [lib.zeros(0, dtype=lib.float64) for _ in range(2)]
        lib.linalg.slogdet(lib.tensor(A), out=tuple(out))
        values.append([float(x) for x in out])
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_out_passes_no_gradient() -> None:
    for lib in (tc, torch):
        a = lib.tensor(A, requires_grad=True)
        with pytest.raises(RuntimeError):
            lib.linalg.inv(a, out=lib.zeros(3, 3, dtype=lib.float64))

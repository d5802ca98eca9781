"""The node tests of the package onnx: how many of them `tc.onnx.load` computes.

`onnx_cases.txt` lists those that do not pass, each below its reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

import tinygrad_cuda as tc
from tinygrad_cuda.onnx.load import ONNXModule

LIST = Path(__file__).with_name("onnx_cases.txt")
PASSED = 1558  # of 1884, with onnx 1.23


def listed() -> set[str]:
    """Cases that do not pass; a line with # is a reason."""
    lines = LIST.read_text().splitlines()
    return {f"test_{name}" for line in lines if not line.startswith("#") for name in line.split()}


def value(given: Any) -> Any:
    """A case's value as ours."""
    if given is None:
        return None
    if isinstance(given, list):
        return [value(part) for part in given]
    return tc.tensor(array(given), device="cpu")


def array(given: Any) -> np.ndarray[Any, Any]:
    if isinstance(given, onnx.TensorProto):
        return onnx.numpy_helper.to_array(given)
    return np.asarray(given)


def check(got: Any, want: Any, case: Any) -> None:
    """Raises unless values, shapes and dtypes are the case's."""
    if isinstance(want, list):
        assert len(got) == len(want)
        for own, other in zip(got, want, strict=True):
            check(own, other, case)
        return
    expected, actual = array(want), got.numpy()
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.itemsize == 2 and expected.dtype.kind not in "iu":
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=case.rtol, atol=case.atol)


def passes(case: Any) -> bool:
    try:
        model = ONNXModule(case.model)
        for inputs, outputs in case.data_sets:
            with tc.no_grad():
                result = model(*map(value, inputs))
            results = list(result) if len(model.output_names) > 1 else [result]
            check(results, outputs, case)
    except Exception:
        return False
    return True


@pytest.mark.filterwarnings("ignore")
def test_node_tests(record_property: Callable[[str, object], None]) -> None:
    """Those that fail are listed with a reason, and no fewer pass than once did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases themselves overflow and divide by zero
        cases = load_model_tests(kind="node")
    failed = {case.name for case in cases if not passes(case)}
    passed = len(cases) - len(failed)
    record_property(
        "number",
        f"onnx {onnx.__version__}: {passed} of {len(cases)} node tests pass, "
        f"{len(listed() - failed)} of them listed in {LIST.name}",
    )
    assert not failed - listed(), f"not listed in {LIST.name}: {sorted(failed - listed())}"
    assert listed() <= {case.name for case in cases}
    assert passed >= PASSED

"""tc.testing against torch's: what passes, what does not, and the text."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

CASES = {
    "equal": "(t.ones(3), t.ones(3))",
    "near": "(t.ones(3), t.ones(3) + 1e-6)",
    "far": "(t.ones(3), t.tensor([1.0, 2.0, 3.0]))",
    "two dimensions": "(t.ones(2, 2), t.tensor([[1.0, 1.5], [1.0, 4.0]]))",
    "shapes": "(t.ones(3), t.ones(2))",
    "dtypes": "(t.ones(3), t.ones(3).double())",
    "dtypes that may differ": "(t.ones(3), t.ones(3).double(), {'check_dtype': False})",
    "strides": "(t.ones(2, 3), t.ones(3, 2).T, {'check_stride': True})",
    "strides that may differ": "(t.ones(2, 3), t.ones(3, 2).T)",
    "half": "(t.ones(2).half(), (t.ones(2) + 1e-3).half())",
    "double": "(t.ones(2).double(), t.ones(2).double() + 1e-6)",
    "tolerances": "(t.ones(2), t.ones(2) * 1.1, {'rtol': 0.2, 'atol': 0.0})",
    "integers": "(t.tensor([1, 2]), t.tensor([1, 3]))",
    "large integers": "(t.tensor([2**62]), t.tensor([2**62 + 1]))",
    "bools": "(t.tensor([True, False]), t.tensor([True, False]))",
    "nan": "(t.tensor([float('nan')]), t.tensor([float('nan')]))",
    "equal nan": "(t.tensor([float('nan')]), t.tensor([float('nan')]), {'equal_nan': True})",
    "infinite": "(t.tensor([float('inf')]), t.tensor([float('inf')]))",
    "complex": "(t.tensor([1 + 2j]), t.tensor([1 + 2.5j]))",
    "nothing": "(t.ones(0), t.ones(0))",
    "numbers": "(1.0, 1.0 + 1e-9)",
    "other numbers": "(1.0, 2.0)",
    "kinds of numbers": "(1, 1.0)",
    "lists": "([t.ones(2), 1.0], [t.ones(2), 1.0])",
    "lists of other lengths": "([1.0], [1.0, 2.0])",
    "in a dict": "({'a': [t.ones(1), 1.0]}, {'a': [t.ones(1), 2.0]})",
    "other keys": "({'a': 1.0}, {'b': 1.0})",
    "a message": "(1.0, 2.0, {'msg': 'they differ'})",
    "a message of the message": "(1.0, 2.0, {'msg': lambda text: text[:7]})",
    "a tensor and a list": "(t.ones(2), [1.0, 1.0])",
    "one tolerance": "(1.0, 2.0, {'rtol': 0.5})",
}


def outcome(lib: Any, text: str) -> tuple[str, str]:
    actual, expected, *options = eval(text, {"t": lib})
    try:
        lib.testing.assert_close(actual, expected, **(options[0] if options else {}))
    except Exception as error:
        kind = next(k for k in (AssertionError, TypeError, ValueError) if isinstance(error, k))
        return kind.__name__, str(error)
    return "", ""


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name: str) -> None:
    with tc.device("cpu"):
        ours, theirs = (outcome(lib, CASES[name]) for lib in (tc, torch))
    assert ours[0] == theirs[0]
    if ours[0] == "AssertionError":
        texts = [re.sub(r"tinygrad_cuda|torch", "", text) for _, text in (ours, theirs)]
        first = [text.split(chr(10))[0].replace(".Size", "Size") for text in texts]
        assert first[0] == first[1]
        digits = [re.findall(r"index \(.*?\)|^Mismatched.*$|item .*$", t, re.M) for t in texts]
        assert digits[0] == digits[1]


def test_older_form() -> None:
    tc.testing.assert_allclose(tc.ones(2, device="cpu").double(), tc.ones(2, device="cpu"))
    with pytest.raises(AssertionError):
        tc.testing.assert_allclose(tc.ones(2, device="cpu"), tc.zeros(2, device="cpu"))

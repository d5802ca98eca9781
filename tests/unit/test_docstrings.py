"""Every example in a docstring of the package runs and prints what it says."""

from __future__ import annotations

import builtins
import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import tinygrad_cuda as tc

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tc.__path__, "tinygrad_cuda.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    """Examples may use tc and np without importing them; `round` is Python's, as in a shell."""
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
    )
    report: list[str] = []
    names = {**vars(builtins), "tc": tc, "np": np}
    for example in doctest.DocTestFinder().find(module, extraglobs=names):
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)

"""A pytest plugin: of what is collected only the tests of a list run, in its order.

An id that has gone since the list was made is left out; a file that cannot be imported still
fails. `FUZZ_SELECTION` names the file that holds the ids, one a line; without it all run.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

import tinygrad_cuda

# Bytes of address space: a mutant that asks for more fails, and takes no other process with it.
MEMORY = 24 << 30


def pytest_configure(config: pytest.Config) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    imported = Path(tinygrad_cuda.__file__).resolve()
    if not imported.is_relative_to(config.rootpath):
        raise RuntimeError(f"the package under test is another one: {imported}")
    if "FUZZ_SELECTION" in os.environ:
        wanted = Path(os.environ["FUZZ_SELECTION"]).read_text().splitlines()
        order = {test: number for number, test in enumerate(wanted)}
        chosen = [item for item in items if item.nodeid in order]
        items[:] = sorted(chosen, key=lambda item: order[item.nodeid])

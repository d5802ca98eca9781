"""A pytest plugin: of what is collected only the tests of a list run, in its order.

An id that has gone since the list was made is left out; a file that cannot be imported still
fails. `FUZZ_SELECTION` names the file that holds the ids, one a line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = Path(os.environ["FUZZ_SELECTION"]).read_text().splitlines()
    order = {test: number for number, test in enumerate(wanted)}
    chosen = [item for item in items if item.nodeid in order]
    items[:] = sorted(chosen, key=lambda item: order[item.nodeid])

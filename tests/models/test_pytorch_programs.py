"""PyTorch programs run with only the import changed, and compute what they compute there.

The programs stand in pytorch_programs/, as anybody would write them for PyTorch. `build` makes the
model, `train` trains it and returns losses, and numbers that must agree too.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

pytestmark = pytest.mark.usefixtures("on_cpu")
FOLDER = Path(__file__).parent / "pytorch_programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
# Products rounded to bfloat16 may round to neighbours; everything else is float32.
TOLERANCES = {"mixed_precision": 5e-3}
PACKAGE = "tinygrad_cuda"


def with_import_changed(text: str) -> str:
    """The program for this package: the lines that import from torch name it instead."""
    text = re.sub(r"^import torch$", f"import {PACKAGE} as torch", text, flags=re.M)
    text = re.sub(r"^import torch\.(.*) as ", rf"import {PACKAGE}.\1 as ", text, flags=re.M)
    return re.sub(r"^from torch(\.| )", rf"from {PACKAGE}\1", text, flags=re.M)


def loaded(name: str, here: bool) -> dict[str, Any]:
    path = FOLDER / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    if here:
        text = with_import_changed(text)
    space: dict[str, Any] = {"__name__": f"{name}_{'here' if here else 'torch'}"}
    exec(compile(text, str(path), "exec"), space)
    return space


def numbers(result: Any) -> list[np.ndarray]:
    """What a program returned: losses first."""
    parts = result if isinstance(result, tuple) else (result,)
    return [np.asarray(part, dtype=np.float64) for part in parts]


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_import_changes(name: str) -> None:
    """Every line that is changed is an import, and afterwards nothing is imported from torch."""
    before = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    after = with_import_changed(before)
    changed = [
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    assert changed
    assert all(re.match(r"(import|from) torch\b", old) for old, _ in changed)
    assert not re.search(r"^\s*(import|from) torch\b", after, flags=re.M)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_learns_and_does_what_it_does_in_torch(name: str) -> None:
    """The loss falls; from the same initial values torch's losses and other numbers are the same.

    Without torch the first half is tested.
    """
    program = loaded(name, here=True)
    tc.manual_seed(1)
    model = program["build"]()
    state = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    found = numbers(program["train"](model))
    assert all(np.isfinite(part).all() for part in found)
    if name != "gradient_penalty":  # a game, where no loss need fall
        assert found[0][-3:].mean() < 0.95 * found[0][:3].mean()
    if find_spec("torch") is None:
        return
    import torch

    torch.set_num_threads(1)  # more threads than cores cost far more than these small products
    program = loaded(name, here=False)
    model = program["build"]()
    assert list(model.state_dict()) == list(state)
    model.load_state_dict({key: torch.tensor(value) for key, value in state.items()})
    tolerance = TOLERANCES.get(name, 1e-4)
    for one, other in zip(found, numbers(program["train"](model)), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)

"""What the two diffusion models share: the linear noise schedule and the reverse step.

The reverse step is DDIM's without noise, so that every peer can be compared to the last digit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array

STEPS = 1000


def tables() -> dict[str, Array]:
    """Square roots of the kept and the added share of variance, of each step and the one before."""
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, STEPS))
    before = np.concatenate([[1.0], kept[:-1]])
    values = {"kept": kept, "added": 1 - kept, "kept_before": before, "added_before": 1 - before}
    return {name: np.sqrt(value).astype(np.float32) for name, value in values.items()}


def reverse(net: Any, x: Any, t: Any, noise: Any) -> tuple[Any, Any]:
    """The sample one step earlier, and that step's number, which comes round after the last."""
    kept, added = net.take("kept", t), net.take("added", t)
    clean = net.clamp((x - added * noise) / kept, -1.0, 1.0)
    # The noise that goes with the clamped image: this way samples of any network stay bounded.
    noise = (x - kept * clean) / added
    x = net.take("kept_before", t) * clean + net.take("added_before", t) * noise
    return x, (t + (STEPS - 1)) % STEPS

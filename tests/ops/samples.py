"""THE table of samples: for every row of the op table, a family at a time.

Values, gradients, mutations and every device are tested from it; a row without samples fails.
"""

from __future__ import annotations

import samples_attention
import samples_complex
import samples_compositions
import samples_convolution
import samples_elementwise
import samples_indexing
import samples_leaf
import samples_movement
import samples_recurrence
import samples_reduction
import samples_scan
import samples_special
import samples_winograd
from sampling import Sample

from tinygrad_cuda.graph.node import Op

FAMILIES: dict[str, tuple[Sample, ...]] = {
    "elementwise": tuple(samples_elementwise.samples()),
    "special": tuple(samples_special.samples()),
    "rare": tuple(samples_special.rare()),
    "movement": tuple(samples_movement.samples()),
    "reduction": tuple(samples_reduction.samples()),
    "leaf": tuple(samples_leaf.leaves()),
    "identity": tuple(samples_leaf.identities()),
    "convolution": tuple(samples_convolution.samples()),
    "indexing": tuple(samples_indexing.samples()),
    "scan": tuple(samples_scan.samples()),
    "winograd": tuple(samples_winograd.samples()),
    "attention": tuple(samples_attention.samples()),
    "recurrence": tuple(samples_recurrence.samples()),
    "complex": tuple(samples_complex.samples()),
    "fft": tuple(samples_complex.transforms()),
    "random": tuple(samples_leaf.randoms()),
    "composition": tuple(samples_compositions.samples()),
}
SAMPLES: tuple[Sample, ...] = tuple(sample for family in FAMILIES.values() for sample in family)


def of(op: Op) -> tuple[Sample, ...]:
    return tuple(sample for sample in SAMPLES if sample.op is op)


def chunks(size: int, differentiate: bool = False) -> dict[str, tuple[Sample, ...]]:
    """Families, split so that one translation unit stays small, by name."""
    found = {}
    for family, samples in FAMILIES.items():
        chosen = tuple(s for s in samples if s.differentiate) if differentiate else samples
        for number, start in enumerate(range(0, len(chosen), size)):
            found[f"{family}-{number}"] = chosen[start : start + size]
    return found

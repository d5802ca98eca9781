"""Generated kernels compile with NVRTC for each architecture, without spills, without a GPU."""

from __future__ import annotations

import pytest
from programs import TARGET, family, launches, launches_of, target_of

from tinygrad_cuda.backend.cuda.compiler import (
    REPORT,
    architecture_of,
    compile_source,
    kernel_names,
    resources,
)
from tinygrad_cuda.lowering.codegen.pack import (
    UNIT_KERNELS,
    translation_unit,
    translation_units,
)
from tinygrad_cuda.lowering.target import ARCHITECTURES, Target

pytest.importorskip("cuda.bindings.nvrtc")

# Bytes that the square product, whose threads have no register to spare, spills once for sm_75
# under NVRTC 13.0, and under 13.5 not.
WORD = 4


def test_every_family_of_kernels_compiles(architectures: list[str]) -> None:
    square = [launch.name for launch in launches_of("product_square")]
    for arch in architectures:
        target = target_of(arch)
        made = [launch for name in family() for launch in launches_of(name, target)]
        source = translation_unit(made, target)
        used = resources(compile_source(source, architecture_of(source, arch), REPORT).log)
        assert {launch.name for launch in made} <= set(used)
        stored = {name: r.spill_stores for name, r in used.items() if r.spill_stores}
        allowed = dict.fromkeys(square, WORD) if arch == "sm_75" else {}
        assert not {name: n for name, n in stored.items() if n > allowed.get(name, 0)}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_largest_tile_of_float32_spills_nowhere(arch: str) -> None:
    """On a usual GPU of each architecture; its 64 sums and two blocks leave no register."""
    target = Target.of_architecture((int(arch[3:-1]), int(arch[-1])))
    made = launches_of("product_square", target)
    source = translation_unit(made, target)
    used = resources(compile_source(source, arch, REPORT).log)
    assert {launch.name: used[launch.name].spill_stores for launch in made} == {
        launch.name: 0 for launch in made
    }


def test_text_names_kernels_by_structure() -> None:
    """The same program twice gives the same text; a name never carries a counter of the process."""
    texts = []
    for _ in range(2):
        made = [launch for program in family().values() for launch in launches(program)]
        texts.append(translation_unit(made, TARGET))
    assert texts[0] == texts[1]


def test_parts_that_compile_side_by_side_have_each_kernel_once() -> None:
    made = [launch for name in family() for launch in launches_of(name)]
    parts = [kernel_names(unit) for unit in translation_units(made + made, TARGET)]
    names = [name for part in parts for name in part]
    assert sorted(names) == sorted({launch.name for launch in made})
    assert all(len(part) <= UNIT_KERNELS for part in parts)

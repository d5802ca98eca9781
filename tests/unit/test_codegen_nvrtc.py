"""Generated kernels compile with NVRTC for each architecture, without spills, without a GPU."""

from __future__ import annotations

import pytest
from programs import family, scheduled

from tinygrad_cuda.backend.cuda.compiler import REPORT, compile_source, resources
from tinygrad_cuda.lowering.codegen.pack import packed, translation_unit
from tinygrad_cuda.lowering.emit import stages

pytest.importorskip("cuda.bindings.nvrtc")


def test_every_family_of_kernels_compiles(architectures: list[str]) -> None:
    launches = []
    for program in family().values():
        launches += packed([stages(kernel) for kernel in scheduled(program).kernels])
    source = translation_unit(launches)
    for arch in architectures:
        used = resources(compile_source(source, arch, REPORT).log)
        assert {launch.name for launch in launches} <= set(used)
        assert not [name for name, r in used.items() if r.spill_stores or r.spill_loads]


def test_text_names_kernels_by_structure() -> None:
    """The same program twice gives the same text; a name never carries a counter of the process."""
    texts = []
    for _ in range(2):
        launches = []
        for program in family().values():
            launches += packed([stages(kernel) for kernel in scheduled(program).kernels])
        texts.append(translation_unit(launches))
    assert texts[0] == texts[1]

"""A value's rounding does not depend on what shares its kernel: no compiler fuses a * b + c."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from programs import TARGET, family, launches, launches_of

from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.backend.emu import compiler as emulator
from tinygrad_cuda.lowering.codegen.pack import translation_unit
from tinygrad_cuda.lowering.codegen.skeleton import FOLDER

# A running float value that takes something: `sum[q] += a * b`, `t1 = t1 - a * b`.
TAKEN = re.compile(r"\b(?:sum|total|mean|m2|half|to|[rst]\d+)(?:\.\w+)? *([+-]?=) *(.+)", re.DOTALL)


def bare(text: str) -> list[str]:
    """Statements in which a running value takes a product that is rounded by itself."""
    text = re.sub(r"//[^\n]*|@\w+@", "", text)
    before = ""
    while before != text:  # what stands in brackets counts elements; a call is one operand
        before, text = text, re.sub(r"\[[^\[\]]*\]", "", text)
        text = re.sub(r"(\btgc_\w+(?:<[^<>]*>)?)\([^()]*\)", r"\1", text)
    found = [match for piece in re.split(r"[;,{}]", text) if (match := TAKEN.search(piece))]
    return [
        match[0] for match in found
        if "*" in match[2] and (match[1] != "=" or re.search(r" [+-] ", match[2]))
    ]  # fmt: skip


def text_of(name: str) -> str:
    return "\n".join(launch.text for launch in launches_of(name))


def test_both_compilers_are_told_not_to_contract() -> None:
    assert "--fmad=false" in compiler.OPTIONS
    assert "-ffp-contract=off" in emulator.options()


def test_the_search_finds_bare_products() -> None:
    for line in (
        "sum[q][j] += weight[q] * near[j * 2 + 1];", "m2 += (x - mean) * (x - mean);",
        "total = total + a * b;", "half[0][v] = 4.0f * from[0][v] - from[2][v];",
        "t3 -= off * t2;", "mean = a.mean + delta * tgc_share_of(n);",
    ):  # fmt: skip
        assert bare(line), line
    for line in (
        "sum[m * 4 + n] = tgc_fma(a[i * 2], b[j], sum[m * 4 + n]);",
        "total += shared[other * 8 + e];", "half[0][v] = from[0][v] - from[2][v];",
    ):  # fmt: skip
        assert not bare(line), line


# Series of one argument, in double: nothing that is fused stands beside their terms.
SERIES = ("special",)
ZETA = ("total += tgc_pow / (s - 1.0) + 0.5 * power", "total += terms * factor")


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(FOLDER.rglob("*.cuh")) if p.stem not in SERIES],
    ids=lambda p: p.stem,
)
def test_skeletons_have_no_bare_product_in_a_sum(path: Path) -> None:
    lines = bare(path.read_text())
    if path.stem == "device":
        lines = [line for line in lines if line not in ZETA]
    assert not lines


@pytest.mark.parametrize("name", sorted(family()))
def test_generated_kernels_have_no_bare_product_in_a_sum(name: str) -> None:
    assert not bare(text_of(name))


def ptx_of(source: str) -> str:
    """What NVRTC makes of a source with the package's options, as PTX."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, None, None)
    flags = ["--gpu-architecture=compute_90", *compiler.OPTIONS]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    assert int(status) == 0
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytes(size)
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.decode()


def test_nvrtc_rounds_each_operation() -> None:
    """Gradients of a layer norm multiply and add, and have no function of the library."""
    unit = translation_unit(launches(family()["layer_norm_gradients"]), TARGET)
    text = ptx_of(unit)
    assert "fma.rn.f32" not in text
    assert "mul.rn.f32" in text and "add.rn.f32" in text


@pytest.mark.parametrize("name", ["product", "product_split", "product_half", "product_double"])
def test_nvrtc_fuses_inner_products(name: str) -> None:
    text = ptx_of(translation_unit(launches_of(name), TARGET))
    kind = "f64" if name == "product_double" else "f32"
    assert text.count(f"fma.rn.{kind}") >= 64
    assert f"mul.rn.{kind}" not in text

"""The parameters and names of a stage, and numbers as C text."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf, isnan
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.program import Argument
from tinygrad_cuda.lowering.codegen.skeleton import (
    MAP_WORDS,
    Exchange,
    KernelParam,
    Scratch,
    TensorMap,
)

STATISTICS = frozenset(("mean", "var", "mean_square", "rstd", "rrms"))  # they need no number


class KernelParams:
    """The parameters of a stage, in the order of their first use, and its variables' names."""

    def __init__(self) -> None:
        self.list: list[KernelParam] = []
        self._names: dict[Any, str] = {}
        self._counts: dict[str, int] = {}  # parameters of each stem
        self._variables: dict[str, int] = {}  # variables of each stem

    def fresh(self, stem: str) -> str:
        """A name that no variable has yet: exp0, exp1; `mean` and the parameter in0 come bare."""
        number = self._variables.get(stem, 0)
        self._variables[stem] = number + 1
        bare = stem in STATISTICS or stem[-1].isdigit()
        if bare and not number:
            return stem
        return f"{stem}_{number}" if bare else f"{stem}{number}"

    def _add(self, key: Any, stem: str, kind: str, item: Any, ctype: str, write: bool) -> str:
        if key not in self._names:
            number = self._counts.get(stem, 0)
            self._counts[stem] = number + 1
            name = stem if stem == "error" else f"{stem}{number}"
            self.list.append(KernelParam(kind, item, f"{ctype} {name}", write))
            self._names[key] = f"p.{name}"
        return self._names[key]

    def read(self, node: Node) -> str:
        return self._add(("in", node), "in", "value", node, f"const {node.dtype.c}*", False)

    def name(self, node: Node) -> str:
        """What an operand is called: its parameter's name."""
        return self.read(node).removeprefix("p.")

    def write(self, node: Node) -> str:
        return self._add(("out", node), "out", "value", node, f"{node.dtype.c}*", True)

    def argument(self, argument: Argument, ctype: str) -> str:
        """A number of the program, which lies in memory; see `template.wrapped`."""
        item = argument.position, ctype
        pointer = self._add((argument, ctype), "number", "argument", item, f"const {ctype}*", False)
        return pointer.removeprefix("p.")

    def number(self, value: Any, ctype: str) -> str:
        """A number of a node's attribute: a word if runs may change it, else a literal."""
        if isinstance(value, Argument):
            return self.argument(value, ctype)
        return str(float(value)) if ctype == "double" else f"{int(value)}LL"

    def scratch(self, scratch: Scratch, ctype: str, write: bool) -> str:
        return self._add(scratch, "partial", "scratch", scratch, f"{ctype}*", write)

    def exchange(self, memory: Exchange) -> str:
        return self._add(memory, "words", "exchange", memory, "unsigned long long*", True)

    def tensor_maps(self, maps: Sequence[TensorMap]) -> list[str]:
        """Tensor maps, before all other parameters, which end at a map's alignment."""
        names = [f"map_{self.name(tensor.node)}" for tensor in maps]
        if len(set(names)) < len(names):  # one value with both operands
            names = [f"{name}_{number}" for number, name in enumerate(names)]
        rest = KernelParam("unused", None, "")
        for name, tensor in zip(reversed(names), reversed(maps)):
            word = KernelParam("map", tensor, f"tgc_tensor_map {name}")
            self.list[:0] = [word, *[rest] * (MAP_WORDS - 1)]
        self.list += [rest] * (-len(self.list) % (MAP_WORDS // 2))
        return [f"p.{name}" for name in names]

    def error(self) -> str:
        return self._add("error", "error", "error", None, "unsigned long long*", True)


def literal(value: Any, dtype: DType) -> str:
    """A number as C text of the dtype's compute type."""
    with np.errstate(all="ignore"):
        item = np.asarray(value).astype(dtype.numpy)
    if dtype.name == "bool":
        return "true" if item else "false"
    if dtype.category == 1:
        number = int(item)
        if number == -(2**63):
            return "(-9223372036854775807LL - 1)"
        text = str(number) + ("LL" if dtype.itemsize == 8 else "")
        if number == -(2**31) and dtype.itemsize == 4:
            return "(-2147483647 - 1)"
        if dtype.itemsize < 4:  # C has no literals of these types, and templates compare types
            return f"({dtype.compute}){text}"
        return f"({text})" if number < 0 else text
    real = float(item)
    cast = "" if dtype.compute == "float" else "(double)"
    if isnan(real):
        return f"({cast}NAN)"
    if isinf(real):
        return f"({cast}{'-' if real < 0 else ''}INFINITY)"
    text = repr(real) if dtype.compute == "double" else _short_float(real)
    return f"({text})" if text.startswith("-") else text


def _short_float(number: float) -> str:
    text = str(np.float32(number))
    return (text if any(mark in text for mark in ".e") else text + ".0") + "f"

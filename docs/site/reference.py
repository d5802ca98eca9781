"""Writes the API reference: a page a namespace, an entry for every public name.

What is public is what the package says: `__all__` of `tinygrad_cuda` and of every namespace that
is reached from there. Sphinx's autodoc fills the entries from the docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import tinygrad_cuda as tc
from tinygrad_cuda.core.dtypes import DType

PACKAGE = tc.__name__
# Public, though no `__all__` above them has their names.
FURTHER = (
    "array_api.fft", "array_api.linalg", "data.transforms", "nn.flex_attention", "utils.checkpoint",
    "utils.metrics",
)  # fmt: skip
FAMILY = 8  # names of a family from which on it has a page of its own


class Entry(NamedTuple):
    """A public name.

    Attributes:
        namespace: the module in which it is public.
        name: in that module.
        value: what it stands for.
    """

    namespace: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        """Such as ``tinygrad_cuda.nn.Linear``."""
        return f"{self.namespace}.{self.name}"


def names_of(module: ModuleType) -> list[str]:
    """The public names of a namespace: its `__all__`, or what it defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(set(listed))
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_own(module, name, value)
    )


def _is_own(module: ModuleType, name: str, value: Any) -> bool:
    """Whether a module without `__all__` offers a name, and did not merely import it."""
    if inspect.ismodule(value):
        return False
    if isinstance(value, (bool, float, DType)):
        return name.islower()
    owner = getattr(value, "__module__", None) or ""
    return owner == module.__name__ or owner.startswith(f"{module.__name__}.")


@cache
def namespaces() -> tuple[str, ...]:
    """All public namespaces, the package first."""
    todo: list[str] = [PACKAGE, *(f"{PACKAGE}.{name}" for name in FURTHER)]
    seen: dict[str, None] = {}
    while todo:
        module = importlib.import_module(todo.pop(0))
        if module.__name__ in seen:
            continue
        seen[module.__name__] = None
        for name in names_of(module):
            value = getattr(module, name)
            if inspect.ismodule(value) and value.__name__ == f"{module.__name__}.{name}":
                todo.append(value.__name__)
    return (PACKAGE, *sorted(seen.keys() - {PACKAGE}))


@cache
def entries() -> tuple[Entry, ...]:
    """Every public name of every namespace; modules are pages, not entries."""
    found = []
    for namespace in namespaces():
        module = importlib.import_module(namespace)
        for name in names_of(module):
            value = getattr(module, name)
            if not inspect.ismodule(value):
                found.append(Entry(namespace, name, value))
    return tuple(found)


def methods() -> list[str]:
    """The public methods and attributes of a Tensor."""
    return [name for name in dir(tc.Tensor) if not name.startswith("_")]


def _object(value: Any) -> Any:
    """What is behind wrappers such as that of ``out=``."""
    return inspect.unwrap(value) if callable(value) else value


def _has_text(value: Any) -> bool:
    return inspect.isroutine(value) or inspect.isclass(value)


@cache
def homes() -> dict[int, Entry]:
    """Where the text of an object stands: in the namespace that defines it, under its own name."""
    chosen: dict[int, tuple[tuple[int, bool], Entry]] = {}
    for entry in entries():
        if not _has_text(entry.value):
            continue
        inner = _object(entry.value)
        owner = f"{getattr(inner, '__module__', '')}."
        depth = len(entry.namespace) if owner.startswith(f"{entry.namespace}.") else 0
        rank = (depth, getattr(inner, "__name__", "") == entry.name)
        if id(inner) not in chosen or chosen[id(inner)][0] < rank:
            chosen[id(inner)] = (rank, entry)
    return {key: entry for key, (_, entry) in chosen.items()}


def _lines(entry: Entry) -> list[str]:
    """The directive of a name: its docstring, or where that stands."""
    value = entry.value
    if not _has_text(value):
        if isinstance(value, (str, int, float, DType)) or value is None:
            return [f".. py:data:: {entry.path}", f"   :value: {value!r}"]
        if isinstance(value, partial):
            text = f"See :py:obj:`{homes()[id(_object(value.func))].path}`."
        else:
            text = _first_line(type(value)).replace("*", r"\*") + "."
        return [f".. py:data:: {entry.path}", "", f"   {text}"]
    home = homes()[id(_object(value))]
    if home.path != entry.path:
        kind = "class" if inspect.isclass(value) else "function"
        return [f".. py:{kind}:: {entry.path}", "", f"   See :py:obj:`{home.path}`."]
    if not inspect.isclass(value):
        return [f".. autofunction:: {entry.path}"]
    if not _is_at(value):
        text = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
        return [f".. py:class:: {entry.path}", "", f"   {text}"]
    return [f".. autoclass:: {entry.path}", "   :show-inheritance:", "   :members:"]


def _is_at(value: type) -> bool:
    """Whether a class stands under its name in its module; those made by a call may not."""
    module = sys.modules.get(value.__module__)
    return getattr(module, value.__name__, None) is value


def _heading(text: str, line: str = "=") -> list[str]:
    return [text, line * len(text), ""]


def _short(path: str) -> str:
    return path.replace(PACKAGE, "tc", 1)


def _first_line(described: Any) -> str:
    text = inspect.getdoc(described) or ""
    return text.split("\n\n")[0].replace("\n", " ").rstrip(".")


def _page(title: str, text: str, listed: list[Entry]) -> str:
    names = " ".join(f":py:obj:`~{entry.path}`" for entry in listed)
    lines = [*_heading(title), f"{text}.", "", names, ""]
    for entry in listed:
        lines += [*_lines(entry), ""]
    return "\n".join(lines)


def _families() -> Iterator[tuple[str, str, list[Entry]]]:
    """The names of the package by the file that defines them: page, text, names."""
    families: dict[str, list[Entry]] = {}
    for entry in entries():
        if entry.namespace != PACKAGE or entry.value is tc.Tensor:
            continue
        home = getattr(_object(entry.value), "__globals__", {})
        families.setdefault(home.get("__name__", ""), []).append(entry)
    rest: list[Entry] = []
    for module, listed in sorted(families.items()):
        if module and len(listed) >= FAMILY:
            yield module.removeprefix(f"{PACKAGE}."), _first_line(sys.modules[module]), listed
        else:
            rest += listed
    yield "further", "Dtypes, errors, constants and settings", sorted(rest)


def _tensor_page() -> str:
    """The class, and each of its methods; a method that is a function too refers to it."""
    lines = [*_heading("tc.Tensor"), f".. autoclass:: {PACKAGE}.Tensor", ""]
    for name in methods():
        path = f"{PACKAGE}.Tensor.{name}"
        value = inspect.getattr_static(tc.Tensor, name)
        home = homes().get(id(_object(getattr(tc.Tensor, name))))
        if isinstance(value, property) or not callable(getattr(tc.Tensor, name)):
            lines += [f"   .. autoattribute:: {path}", ""]
        elif home:
            lines += [f"   .. py:method:: {name}", "", f"      See :py:obj:`{home.path}`.", ""]
        else:
            lines += [f"   .. automethod:: {path}", ""]
    return "\n".join(lines)


def write(folder: Path) -> int:
    """Writes the pages, and says how many names they have."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"tensor": _tensor_page()}
    groups: dict[str, list[str]] = {"tc": ["tensor"], "Namespaces": []}
    for family, text, listed in _families():
        name = f"tc.{family.rpartition('.')[2]}"
        pages[name] = _page(f"tc: {family.rpartition('.')[2].replace('_', ' ')}", text, listed)
        groups["tc"].append(name)
    for namespace in namespaces()[1:]:
        name = _short(namespace).removeprefix("tc.")
        own = [entry for entry in entries() if entry.namespace == namespace]
        pages[name] = _page(_short(namespace), _first_line(sys.modules[namespace]), own)
        groups["Namespaces"].append(name)
    index = [*_heading("Reference"), "Every public name; ``import tinygrad_cuda as tc``.", ""]
    for caption, names in groups.items():
        index += [".. toctree::", "   :maxdepth: 1", f"   :caption: {caption}", ""]
        index += [*(f"   {name}" for name in names), ""]
    pages["index"] = "\n".join(index)
    for name, text in pages.items():
        (folder / f"{name}.rst").write_text(text + "\n", encoding="utf-8")
    return len(entries()) + len(methods())

"""The site's pages: every public name has an entry, every page a line in the menu."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tinygrad_cuda as tc

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"


def site_module(name: str) -> ModuleType:
    """A module of the folder that makes the site, which is no package."""
    sys.path.insert(0, str(SITE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SITE))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages in one folder, as Sphinx reads them."""
    folder = tmp_path_factory.mktemp("site") / "source"
    site_module("pages").assemble(folder)
    return folder


@pytest.fixture(scope="module")
def listed(pages: Path) -> set[str]:
    """The names for which the reference has a directive."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages.glob("reference/*.rst"))
    return set(re.findall(r"^ *\.\. (?:py:|auto)\w+:: (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    "namespace",
    [
        "", "nn", "nn.functional", "nn.init", "nn.utils", "nn.utils.rnn", "optim",
        "optim.lr_scheduler", "optim.swa_utils", "data", "data.transforms", "autograd",
        "autograd.functional", "amp", "array_api.fft", "array_api.linalg", "backends", "cuda",
        "distributions", "func", "hub", "jit", "kernels", "linalg", "onnx", "profiler", "random",
        "special", "utils.checkpoint", "utils.metrics", "utils.training",
    ],
)  # fmt: skip
def test_every_public_name_has_an_entry(namespace: str, listed: set[str]) -> None:
    """What `__all__` has, or, without it, what the module defines."""
    path = f"tinygrad_cuda.{namespace}".rstrip(".")
    module = importlib.import_module(path)
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == path
    ]
    names = getattr(module, "__all__", own)
    assert names
    absent = {name for name in names if not isinstance(getattr(module, name), ModuleType)}
    assert not {f"{path}.{name}" for name in absent} - listed


def test_every_method_of_a_tensor_has_an_entry(listed: set[str]) -> None:
    methods = {name for name in dir(tc.Tensor) if not name.startswith("_")}
    text = {name.rpartition(".")[2] for name in listed if "." not in name or ".Tensor." in name}
    assert len(methods) > 500
    assert not methods - text


def test_an_object_is_described_once(listed: set[str], pages: Path) -> None:
    """`tc.conv2d` leads to `nn.functional`, `absolute` to `abs`."""
    text = (pages / "reference" / "tc.further.rst").read_text(encoding="utf-8")
    assert ".. py:function:: tinygrad_cuda.conv2d\n\n   See :py:obj:" in text
    functional = (pages / "reference" / "nn.functional.rst").read_text(encoding="utf-8")
    assert ".. autofunction:: tinygrad_cuda.nn.functional.conv2d\n" in functional
    math = (pages / "reference" / "tc.math.rst").read_text(encoding="utf-8")
    assert ".. py:function:: tinygrad_cuda.absolute\n\n   See :py:obj:`tinygrad_cuda.abs`" in math


def test_every_page_is_in_the_menu(pages: Path) -> None:
    menu = (pages / "index.md").read_text(encoding="utf-8")
    trees = "\n".join(re.findall(r"^```\{toctree\}\n(.*?)^```$", menu, re.MULTILINE | re.DOTALL))
    found = {
        path.relative_to(pages).with_suffix("").as_posix()
        for path in pages.rglob("*")
        if path.suffix in (".md", ".ipynb") and path.name != "index.md"
    }
    assert len(found) > 25
    assert found <= set(trees.split())


def test_links_lead_to_pages(pages: Path) -> None:
    """In the site, as in the repository, where their folders differ."""
    for page in pages.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)[)#]", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), (page.name, link)


def test_a_public_module_without_a_list_shows_what_it_defines() -> None:
    """Not what it imported for itself."""
    reference = site_module("reference")
    init = reference.names_of(tc.nn.init)
    assert {"xavier_uniform_", "calculate_gain", "orthogonal_"} <= set(init)
    assert not {"math", "Tensor", "erfinv", "np", "TYPE_CHECKING"} & set(init)
    assert {"asin", "float32", "pi", "isdtype"} <= set(reference.names_of(tc.array_api))
    assert "tinygrad_cuda.nn.utils.parametrize" in reference.namespaces()


def test_a_class_lists_no_function_that_has_its_own_entry() -> None:
    """Pooling layers listed the function that they call as a static method, `function`."""
    reference = site_module("reference")
    homes, shown = reference.homes(), []
    classes = [entry for entry in reference.entries() if inspect.isclass(entry.value)]
    assert "tinygrad_cuda.nn.MaxPool2d" in {entry.path for entry in classes}
    for entry in classes:
        # A Tensor's page leads from such a method to the function.
        for name, member in vars(entry.value).items() if entry.value is not tc.Tensor else ():
            inner = inspect.unwrap(member) if callable(member) else member
            if inspect.isroutine(inner) and not name.startswith("_") and id(inner) in homes:
                shown.append(f"{entry.path}.{name}")
    assert not shown


def test_private_bases_are_not_shown() -> None:
    pytest.importorskip("sphinx.addnodes")
    hidden, public = type("_Hidden", (dict,), {}), type("Public", (), {})
    public_bases = site_module("conf").public_bases
    for bases, shown in (([hidden], [dict]), ([hidden, public], [public]), ([public], [public])):
        value = type("Shown", tuple(bases), {})
        public_bases(None, "", value, None, bases)
        assert bases == shown


def test_a_page_named_like_a_builtin_is_linked() -> None:
    """The index led to all pages but complex.md, taken for Python's `complex`."""
    addnodes = pytest.importorskip("sphinx.addnodes")
    utils = pytest.importorskip("docutils.utils")
    conf = site_module("conf")
    document = utils.new_document("index")
    document += addnodes.pending_xref(reftarget="complex", refdomain="doc")
    document += addnodes.pending_xref(reftarget="bool", refdomain="py")
    conf.plain_builtins(None, document)
    left = [node["reftarget"] for node in document.findall(addnodes.pending_xref)]
    assert left == ["complex"]

"""Settings of Sphinx; `make docs` calls it through build.py."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

project = "tinygrad_cuda"
copyright = "the authors of tinygrad_cuda"
extensions = [
    "formulas",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
root_doc = "index"
default_role = "code"
# A block without a language is a shell's or an error's text.
highlight_language = "none"
add_module_names = False
# Two thousand names in the menu of each page would make it slow; pages of the reference list them.
toc_object_entries = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

html_theme = "furo"
html_title = "tinygrad_cuda"
html_math_renderer = "mathml"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False


def plain_builtins(app: Sphinx, document: nodes.document) -> None:
    """`bool` in a signature is Python's; Sphinx would link the dtype `tc.bool`."""
    for reference in list(document.findall(addnodes.pending_xref)):
        # A link to the page complex.md is not Python's `complex`.
        python = reference.get("refdomain") == "py"
        if python and hasattr(builtins, str(reference.get("reftarget"))):
            short = [
                part
                for part in reference.findall(addnodes.pending_xref_condition)
                if part["condition"] == "resolved"
            ]
            reference.replace_self(short[0].children if short else reference.children)


def public_bases(app: Sphinx, name: str, value: type, options: object, bases: list[type]) -> None:
    """A private base has no page to lead to; the nearest public class stands where no other is."""
    nearest = next(base for base in value.__mro__[1:] if not base.__name__.startswith("_"))
    public = [base for base in bases if not getattr(base, "__name__", "").startswith("_")]
    bases[:] = public or [nearest]


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("doctree-read", plain_builtins)
    app.connect("autodoc-process-bases", public_bases)

"""Formulas as MathML, written when the site is built: a reader needs neither network nor script."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

# An index of what has a bar: it belongs beside, and docutils puts it below.
BELOW = re.compile(
    r"<munderover>\s*(<mi>.*?</mi>)\s*(.*?)\s*(<mo stretchy=\"false\">\u02c9</mo>)\s*</munderover>",
    re.DOTALL,
)
logger = logging.getLogger(__name__)


def _mathml(text: str, as_block: bool) -> str:
    if as_block and "\\\\" in text and "\\begin" not in text:
        text = f"\\begin{{aligned}}{text}\\end{{aligned}}"
    try:
        text = str(tex2mathml(text, as_block=as_block))
        return BELOW.sub(r"<msub><mover>\1\3</mover>\2</msub>", text)
    except MathError as error:
        logger.warning("formula %r: %s", text, error)
        return text


def inline(self: Any, node: nodes.math) -> None:
    """A formula in a line of text."""
    self.body.append(_mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    self.body.append(f'<div class="math">{_mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this; `html_math_renderer = "mathml"` chooses it."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

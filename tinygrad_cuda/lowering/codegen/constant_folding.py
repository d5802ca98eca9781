"""Sizes put into a skeleton: a loop of one trip is its body, and neutral arithmetic is left out.

It works on the skeleton's own lines, before generated statements are put in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

_LOOP = re.compile(
    r"^(?P<indent> *)for \(int (?P<name>\w+) = (?P<start>\d+); (?P=name) < (?P<end>\d+); "
    r"(?P=name)(?:\+\+| \+= (?P<step>\d+))\)(?P<rest>.*)$"
)
_DECLARED = re.compile(r"^ *(?:const )?[a-z]\w*(?:<[^>]*>)?\*? (\w+)(?:\[.*\])? =", re.MULTILINE)
_OPERAND = r"(?:@\w+@|\w[\w.]*|\([^()]*\))"
_FACTORS = rf"{_OPERAND}(?: [*/%] {_OPERAND})*"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (rf"(?<![\w.@])(?<! [*/%] ){_FACTORS} % 1\b(?!\.)", "0"),
        (r" [*/] 1\b(?!\.)", ""),
        (r"(?<![\w.])(?<! [/%] )1 \* ", ""),
        (rf"(?<![\w.])(?<! [*/%] )0 [*/%] {_FACTORS}", "0"),
        (r"(?<![\w.])(?<! [*/%-] )0 \+ ", ""),
        (r" [+-] 0\b(?!\.)(?! [*/%])", ""),
    )
)
_CONSTANT = re.compile(
    r"(?:(?<=[(\[])|(?<=[=?:<,] ))(\d+) (?:([*/]) (\d+)(?=[)\]; ])|([+-]) (\d+)(?=[)\];]))"
)
_BRACKETS = re.compile(r"(?<![\w>\])])(?<!\bif )\((\w+)\)(?= [-+*/%<>=]|[;\])])")


@lru_cache(maxsize=1 << 12)
def folded(text: str, words: frozenset[tuple[str, str]] = frozenset()) -> str:
    """A skeleton whose sizes are numbers, without loops of one trip, ``* 1`` and the like.

    Args:
        text: with its holes for statements.
        words: pairs of a hole and a word in its statements, a loop's variable or what leaves a
            loop: such a loop stays.
    """
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        loop = _LOOP.match(lines[number])
        if loop is not None:
            trips = -(-(int(loop["end"]) - int(loop["start"])) // int(loop["step"] or 1))
            if trips <= 1 and _replaced(lines, number, loop, trips, words):
                number = max(number - 2, 0)
                continue
        number += 1
    return "\n".join(map(_simplified, lines))


def _replaced(
    lines: list[str],
    number: int,
    loop: re.Match[str],
    trips: int,
    words: frozenset[tuple[str, str]],
) -> bool:
    """Puts a loop's body in its place, if nothing in it is tied to the loop."""
    braces = loop["rest"] == " {"
    last = _end(lines, number, loop["indent"], braces)
    body = lines[number + 1 : last + 1] if not braces else lines[number + 1 : last]
    if loop["rest"] and not braces:
        body = [loop["indent"] + "  " + loop["rest"].strip()]
    ties = ("break", "continue", loop["name"])
    if any((line.strip(), tie) in words for line in body for tie in ties):
        return False
    if any(f"{tie};" in line for line in body for tie in ties[:2]):
        return False
    first = number
    while first and lines[first - 1].startswith("#pragma unroll"):
        first -= 1
    if braces and first and lines[first - 1].endswith(")"):  # a loop around it takes its braces
        lines[first - 1] += " {"
        body.append(lines[last])
    elsewhere = _DECLARED.findall("\n".join(lines[:number] + lines[last:]))
    if braces and trips and not set(elsewhere).isdisjoint(_DECLARED.findall("\n".join(body))):
        head, tail = f"  {loop['indent']}{{", f"  {loop['indent']}}}"
        body = [head, *(f"  {line}" for line in body), tail]
    value = re.compile(rf"(?<![\w.@]){loop['name']}(?![\w@])")
    lines[first : last + 1] = [
        value.sub(loop["start"], line if line.startswith("#") else line[2:])
        for line in (body if trips else [])
    ]
    return True


def _end(lines: list[str], number: int, indent: str, braces: bool) -> int:
    """The last line of a loop: its closing brace, or the end of its only statement."""
    if braces:
        return lines.index(f"{indent}}}", number)
    while lines[number].startswith("#") or not lines[number].endswith(("{", ";")):
        number += 1
    if lines[number].endswith("{"):
        inner = lines[number]
        return lines.index(" " * (len(inner) - len(inner.lstrip())) + "}", number)
    return number


def _simplified(line: str) -> str:
    """A line without neutral arithmetic, its comment left alone."""
    if line.startswith("#") or not line.strip():
        return line
    code, slashes, comment = line.partition("//")
    before = ""
    while before != code:
        before = code
        for pattern, text in _RULES:
            code = pattern.sub(text, code)
        code = _CONSTANT.sub(_computed, code)
        code = _BRACKETS.sub(r"\1", code)
    return code + slashes + comment


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
}


def _computed(match: re.Match[str]) -> str:
    a, operator, b = (part for part in match.groups() if part)
    return str(_OPERATIONS[operator](int(a), int(b)))


__all__ = ["folded"]

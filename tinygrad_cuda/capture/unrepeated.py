"""What a traced call does with its arguments and results that no replay would do: it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from tinygrad_cuda.capture.signature import Given
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.core.trees import described, leaves
from tinygrad_cuda.engine.capture import Capture
from tinygrad_cuda.replay.guards.values import (
    NOTHING,
    PLAIN,
    Fields,
    Name,
    Names,
    referents_of,
)
from tinygrad_cuda.tensors.base import TensorBase


class ArgumentsBefore:
    """What the arguments of a call hold before it.

    Args:
        given: the arguments.

    Attributes:
        followed: their leaves, and the classes of what holds these.
    """

    def __init__(self, given: Given) -> None:
        self.given = given
        self.leaves = leaves((given.args, given.options))
        self.structure = described((given.args, given.options))
        kinds = [fact[0] for fact in self.structure if isinstance(fact, tuple)]
        self.followed = [*self.leaves, *kinds]
        self.attributes = [_attributes(tensor) for tensor in given.tensors]

    def check(self, result: Any, capture: Capture, names: Names) -> None:
        """Compares after the call, and looks at what it returns.

        Raises:
            CompileError: a container among the arguments holds something else, a Tensor has got
                an attribute, or an object that is returned holds Tensors of this call.
        """
        if described((self.given.args, self.given.options)) != self.structure:
            raise _refusal("changes what a list, dict or dataclass among its arguments holds", "")
        for tensor, before in zip(self.given.tensors, self.attributes):
            for name, value in _attributes(tensor).items():
                if before.get(name) != value:
                    raise _refusal("gives an argument an attribute", name, names)
        cells = {*capture.born, *self.given.cells}
        known = {*map(id, self.leaves)}
        for leaf in leaves(result):
            if type(leaf) in PLAIN or id(leaf) in known:
                continue
            if isinstance(leaf, TensorBase):
                for name in vars(leaf) if leaf.cell in cells else ():
                    raise _refusal("returns a Tensor with an attribute", name, names)
                continue
            for thing in _held(leaf, TensorBase):
                if isinstance(thing, TensorBase) and thing.cell in cells:
                    what = f"{type(leaf).__qualname__} with a tensor of shape {tuple(thing.shape)}"
                    raise _refusal("returns an object that holds Tensors of its call", what)


def _held(value: Any, last: type[Any]) -> Iterator[Any]:
    """All that an object holds and leads to, itself first.

    Args:
        last: objects of this class are followed no further, as are classes and Python modules.
    """
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType):
            continue
        seen[id(thing)] = thing
        yield thing
        if isinstance(thing, FunctionType):  # its globals are not its own
            waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        elif not isinstance(thing, last):
            waiting += referents_of(thing)


def _attributes(tensor: Any) -> dict[str, int]:
    """What programs have noted on a Tensor, by identity."""
    return {name: id(value) for name, value in vars(tensor).items()}


def _refusal(what: str, actual: str, names: Names | None = None) -> CompileError:
    return CompileError(
        "compile", f"a compiled function {what}",
        expect="results that are Tensors, or tuples, lists, dicts, dataclasses and "
        "SimpleNamespaces of them, and arguments left as they are but for Tensors' values",
        actual=actual or "another structure than before the call",
        site=None if names is None else names.sites.get(actual),
        hint="return the tensors, and put them into objects outside",
    )  # fmt: skip


def lacking_of(capture: Capture, given: Given, names: Names) -> list[tuple[int, str]]:
    """Attributes that the call has asked Tensors for which do not have them.

    Those of a Tensor that was there before are named among `names`.

    Returns:
        Numbers of Tensor arguments, with the names: a later argument may have them.
    """
    numbers = {id(tensor): number for number, tensor in enumerate(given.tensors)}
    found: dict[tuple[int, str], None] = {}
    for reference, name in capture.lacking:
        tensor: Any = reference()
        if tensor is None:
            continue
        if id(tensor) in numbers:
            found[numbers[id(tensor)], name] = None
        elif tensor.cell not in capture.born:
            names.values.append(Name(name, Fields(reference), NOTHING))
    return [*found]

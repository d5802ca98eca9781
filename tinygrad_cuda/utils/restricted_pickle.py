"""Runs a pickle that can build nothing but containers, numbers and what a table names.

Python's unpickler calls whatever a file names. This one has a table of opcodes and one of globals,
imports nothing and calls only its own functions; the rest is refused with opcode and global.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad_cuda.core.errors import DataError, TgcError

# Containers may stand inside each other this deep: Python's own functions recurse over them.
DEEPEST = 200
# Values that a walk through all containers meets, shared ones each time that they occur.
MOST_VALUES = 10_000_000


class Refusal(Exception):
    """Why an opcode is refused; `run` adds which one, and where."""


class Global:
    """What a pickle names instead of a value.

    Args:
        name: module and name, as in the file.
        call: what REDUCE does with its arguments; None for a global that is no function.
        value: what it stands for as a value.
    """

    __slots__ = ("name", "call", "value")

    def __init__(
        self, name: str, call: Callable[..., Any] | None = None, value: Any = None
    ) -> None:
        self.name, self.call, self.value = name, call, value


class _Mark:
    """A MARK on the stack: opcodes such as TUPLE take all that stands above it."""


_MARK = _Mark()


def run(
    content: bytes, what: str, globals_: dict[str, Global], persistent: Callable[[Any], Any]
) -> Any:
    """The value of a pickle.

    Args:
        content: the pickle.
        what: its name, for errors.
        globals_: all that it may name, by "module name".
        persistent: makes the value of a persistent id.

    Raises:
        DataError: an opcode or a global is not allowed, or the pickle is damaged.
    """
    machine = _Machine(globals_, persistent)
    name, position = "", 0
    try:
        for opcode, argument, at in pickletools.genops(content):
            name, position = opcode.name, at or 0
            machine.step(name, argument)
        _check_extent(machine.result)
    except Refusal as reason:
        raise DataError(
            "load", f"{what}: the pickle is refused: {reason}",
            expect="a pickle of containers, numbers and tensors",
            actual=f"opcode {name} at byte {position}",
            hint="in PyTorch, save the state dict alone: torch.save(model.state_dict(), path)",
        ) from None  # fmt: skip
    except TgcError:  # of a dtype or a device that is not here
        raise
    except (
        ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
        raise DataError(
            "load", f"{what}: the pickle is damaged", expect="what torch.save wrote",
            actual=f"{type(error).__name__} after opcode {name} at byte {position}: {error}"[:200],
            hint="copy or download it again",
        ) from None  # fmt: skip
    return machine.result


class _Machine:
    """The stack and the memo, and what each opcode does with them."""

    def __init__(self, globals_: dict[str, Global], persistent: Callable[[Any], Any]) -> None:
        self.globals, self.persistent = globals_, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def step(self, name: str, argument: Any) -> None:
        """Carries out one opcode."""
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif (method := _METHODS.get(name)) is not None:
            method(self, argument)
        else:
            raise Refusal("this opcode builds no container, number or tensor")

    def above_mark(self) -> list[Any]:
        """Takes what stands above the last mark, and the mark."""
        for position in range(len(self.stack) - 1, -1, -1):
            if self.stack[position] is _MARK:
                values = self.stack[position + 1 :]
                del self.stack[position:]
                return values
        raise ValueError("there is no mark")

    def top(self, *kinds: type) -> Any:
        """The container that the next values go into."""
        if type(self.stack[-1]) not in kinds:
            raise TypeError(f"{type(self.stack[-1]).__name__} takes no elements")
        return self.stack[-1]

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value should be")
        return value

    def global_(self, argument: Any) -> None:
        if argument is None:  # STACK_GLOBAL
            name, module = self.pop(), self.pop()
            if type(name) is not str or type(module) is not str:
                raise TypeError("a global has a module and a name")
            argument = f"{module} {name}"
        entry = self.globals.get(argument)
        if entry is None:
            raise Refusal(f"global {'.'.join(argument.split(' ', 1))[:120]}")
        self.stack.append(entry)

    def reduce(self, argument: Any) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global):
            raise Refusal(f"a call of a {type(function).__name__}")
        if function.call is None or type(arguments) is not tuple:
            raise Refusal(f"a call of global {function.name.replace(' ', '.')}")
        self.stack.append(function.call(*map(plain, arguments)))

    def build(self, argument: Any) -> None:
        """Attributes: of an OrderedDict that is a state dict alone, which has one."""
        state = self.pop()
        target = self.stack[-1]
        if type(target) is not OrderedDict or type(state) is not dict or set(state) - {"_metadata"}:
            raise Refusal(f"attributes of a {type(target).__name__}")
        vars(target).update(state)

    def persistent_id(self, argument: Any) -> None:
        self.stack.append(self.persistent(self.pop()))

    def mark(self, argument: Any) -> None:
        self.stack.append(_MARK)

    def tuple_(self, argument: Any) -> None:
        self.stack.append(tuple(map(plain, self.above_mark())))

    def tuple_of(self, count: int) -> None:
        values = [plain(self.pop()) for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def list_(self, argument: Any) -> None:
        self.stack.append(list(map(plain, self.above_mark())))

    def dict_(self, argument: Any) -> None:
        values = self.above_mark()
        self.stack.append({})
        self.put_pairs(values)

    def append(self, argument: Any) -> None:
        value = plain(self.pop())
        self.top(list).append(value)

    def appends(self, argument: Any) -> None:
        values = self.above_mark()
        self.top(list).extend(map(plain, values))

    def add(self, argument: Any) -> None:
        values = self.above_mark()
        self.top(set).update(map(hashable, values))

    def set_pair(self, argument: Any) -> None:
        value, key = self.pop(), self.pop()
        self.put_pairs([key, value])

    def set_pairs(self, argument: Any) -> None:
        self.put_pairs(self.above_mark())

    def put_pairs(self, values: list[Any]) -> None:
        if len(values) % 2:
            raise ValueError("a key without a value")
        target = self.top(dict, OrderedDict)
        for key, value in zip(values[::2], values[1::2]):
            target[hashable(key)] = plain(value)

    def put(self, argument: Any) -> None:
        self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]

    def get(self, argument: Any) -> None:
        self.stack.append(self.memo[argument])

    def stop(self, argument: Any) -> None:
        self.result = plain(self.pop())
        if self.stack:
            raise ValueError(f"{len(self.stack)} values are left over")

    def nothing(self, argument: Any) -> None:
        """PROTO and FRAME say how the file is written."""


_LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set,
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_METHODS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.nothing, "FRAME": _Machine.nothing, "STOP": _Machine.stop,
    "MARK": _Machine.mark, "TUPLE": _Machine.tuple_, "LIST": _Machine.list_,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "DICT": _Machine.dict_, "APPEND": _Machine.append, "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.add, "SETITEM": _Machine.set_pair, "SETITEMS": _Machine.set_pairs,
    "PUT": _Machine.put, "BINPUT": _Machine.put, "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put, "GET": _Machine.get, "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get, "GLOBAL": _Machine.global_, "STACK_GLOBAL": _Machine.global_,
    "REDUCE": _Machine.reduce, "BUILD": _Machine.build, "BINPERSID": _Machine.persistent_id,
}  # fmt: skip


def plain(value: Any) -> Any:
    """A value of the stack as it goes into a container: of a global what it stands for."""
    if value is _MARK:
        raise ValueError("a mark where a value should be")
    if isinstance(value, Global):
        if value.value is None:
            raise Refusal(f"global {value.name.replace(' ', '.')} as a value")
        return value.value
    return value


def hashable(key: Any, depth: int = 0) -> Any:
    """A key of a dict: numbers, strings, and tuples of such, which Python hashes by recursion."""
    if isinstance(key, tuple):
        if depth > 8:
            raise ValueError("a key of tuples inside tuples")
        for element in key:
            hashable(element, depth + 1)
    elif key is not None and not isinstance(key, bool | int | float | complex | str | bytes):
        raise TypeError(f"a key of type {type(key).__name__}")
    return key


def _check_extent(value: Any) -> None:
    """Refuses a container inside itself, and one whose walk would take for ever.

    Few bytes build a list of ten lists of ten lists ..., each the same one from the memo.
    """
    counts: dict[int, int] = {}  # of the values that a walk through a finished container meets
    depths: dict[int, int] = {}
    open_: set[int] = set()
    stack: list[tuple[Any, Iterator[Any]]] = [(value, _parts(value))]
    while stack:
        container, parts = stack[-1]
        for part in parts:
            if not isinstance(part, _CONTAINERS) or id(part) in counts:
                continue
            if id(part) in open_:
                raise Refusal("a container inside itself")
            open_.add(id(part))
            stack.append((part, _parts(part)))
            break
        else:
            stack.pop()
            inner = [id(part) for part in _parts(container) if isinstance(part, _CONTAINERS)]
            size = len(container) if isinstance(container, _CONTAINERS) else 0
            counts[id(container)] = 1 + size + sum(counts[part] for part in inner)
            depths[id(container)] = 1 + max((depths[part] for part in inner), default=0)
            if counts[id(container)] > MOST_VALUES:
                raise Refusal(f"shared containers that unfold to over {MOST_VALUES:,} values")
            if depths[id(container)] > DEEPEST:
                raise Refusal(f"containers inside each other more than {DEEPEST} deep")


_CONTAINERS = (dict, list, tuple, set, frozenset)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
        if isinstance(value, OrderedDict):
            yield from vars(value).values()
    elif isinstance(value, _CONTAINERS):
        yield from value

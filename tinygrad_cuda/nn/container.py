"""Containers: Sequential, ModuleList and ModuleDict; ParameterList and ParameterDict."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, IndexError
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.base import TensorBase

# Values by name, as a dict has them or as pairs.
Named = Mapping[str, Any] | Module | Iterable[tuple[str, Any]]


def _pairs(op: str, values: Any) -> list[tuple[str, Any]]:
    """Names and values of a dict, of a container like one, or of pairs."""
    if hasattr(values, "items"):
        return list(values.items())
    pairs = list(values) if isinstance(values, Iterable) else [values]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DTypeError(
                op, "these are no names and values", expect="a dict, or pairs of names and values",
                actual=f"{type(pair).__name__} {pair!r}",
            )  # fmt: skip
    return [(name, value) for name, value in pairs]


class _Numbered(Module):
    """Modules under the names "0", "1", ..., or under names of their own, in order."""

    def _name(self, index: Any) -> str:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(
                type(self).__name__,
                "no module at this index",
                expect=f"{-len(self)} <= index < {len(self)}",
                actual=str(position),
            )
        return list(self._modules)[position]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._part(list(self._modules.items())[index])
        return self._modules[self._name(index)]

    def _part(self, modules: list[tuple[str, Module]]) -> Any:
        return type(self)([module for _, module in modules])  # type: ignore[call-arg]

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(self._name(index), module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)
        gone = names[index] if isinstance(index, slice) else [self._name(index)]
        left = [(name, self._modules[name]) for name in names if name not in gone]
        # Numbers close up; names of the user's own stay.
        if all(name.isdigit() for name in names):
            left = [(str(number), module) for number, (_, module) in enumerate(left)]
        self._modules.clear()
        self._modules.update(left)

    def pop(self, index: int | slice) -> Any:
        """Takes a module out; the numbers after it shrink by one."""
        taken = self[index]
        del self[index]
        return taken

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def append(self, module: Module) -> Self:
        """Adds a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Adds modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Adds a module before `index`; the numbers after it grow by one.

        Raises:
            IndexError: there is no such place.
        """
        if not -len(self) <= operator.index(index) <= len(self):
            raise IndexError(
                type(self).__name__, "no place at this index",
                expect=f"{-len(self)} <= index <= {len(self)}", actual=str(index),
            )  # fmt: skip
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._modules.clear()
        return self.extend(modules)


class Sequential(_Numbered):
    """Modules called one after another.

    Args:
        modules: modules, or one OrderedDict of names and modules.

    Example:
        >>> from tinygrad_cuda import nn
        >>> Sequential(nn.Flatten(), nn.ReLU())
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): ReLU()
        )
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named: Iterable[tuple[str, Any]] = modules[0].items()
        else:
            named = ((str(number), module) for number, module in enumerate(modules))
        for name, module in named:
            self.add_module(name, module)

    def _part(self, modules: list[tuple[str, Module]]) -> Any:
        return type(self)(OrderedDict(modules))

    def __add__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self, *other)

    def __iadd__(self, other: Sequential) -> Self:
        if not isinstance(other, Sequential):
            return NotImplemented
        return self.extend(list(other))

    def __mul__(self, times: int) -> Sequential:
        return Sequential(*(module for _ in range(_times(times)) for module in self))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        modules = list(self)
        for _ in range(_times(times) - 1):
            self.extend(modules)
        return self

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input


def _times(times: int) -> int:
    """How often the same modules are repeated."""
    if operator.index(times) < 1:
        raise ArgumentError(
            "Sequential", "repeated less than once", expect="an integer >= 1", actual=str(times)
        )
    return times


class ModuleList(_Numbered):
    """A list whose modules are registered for `parameters`, `state_dict` and the like.

    Args:
        modules: what is in it at first.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __add__(self, modules: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *modules])

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(list(modules))

    def __repr__(self) -> str:
        if not len(self):
            return f"{type(self).__name__}()"
        runs: list[list[int]] = []  # first and last number of equal texts
        texts = [repr(module) for module in self]
        for number, text in enumerate(texts):
            if runs and texts[runs[-1][0]] == text:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        body = ""
        for first, last in runs:
            many = f"({first}-{last}): {last - first + 1} x " if last > first else f"({first}): "
            body += "\n" + many + texts[first]
        return f"{type(self).__name__}(" + body.replace("\n", "\n  ") + "\n)"


class ModuleDict(Module):
    """A dict whose modules are registered for `parameters`, `state_dict` and the like.

    Args:
        modules: what is in it at first.
    """

    def __init__(self, modules: Named | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Module:
        module: Module = self._modules[key]
        return module

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def pop(self, key: str) -> Module:
        """Takes a module out."""
        taken = self[key]
        del self[key]
        return taken

    def clear(self) -> None:
        """Takes all modules out."""
        self._modules.clear()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def keys(self) -> Iterable[str]:
        """The names, in order."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules, in order."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules, in order."""
        return self._modules.items()

    def update(self, modules: Named) -> None:
        """Adds or replaces modules.

        Args:
            modules: modules by name, or pairs of names and modules.

        Raises:
            DTypeError: it is neither.
        """
        for name, module in _pairs("ModuleDict", modules):
            self.add_module(name, module)


# Parameters ---------------------------------------------------------------------------------------


def _as_parameter(value: Any) -> Any:
    plain = isinstance(value, TensorBase) and not isinstance(value, Parameter)
    return Parameter(value) if plain else value


class ParameterList(Module):
    """A list whose parameters are registered for `parameters`, `state_dict` and the like.

    Args:
        values: what is in it at first; Tensors become Parameters.

    Example:
        >>> import tinygrad_cuda as tc
        >>> values = ParameterList([tc.zeros(2, device="cpu"), tc.zeros(3, device="cpu")])
        >>> len(values), list(values.state_dict())
        (2, ['0', '1'])
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._count = 0
        self.extend(values or ())

    def _name(self, index: int) -> str:
        if not -self._count <= index < self._count:
            raise IndexError(
                "ParameterList", "no parameter at this index",
                expect=f"{-self._count} <= index < {self._count}", actual=str(index),
            )  # fmt: skip
        return str(index % self._count)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)([self[k] for k in range(*index.indices(self._count))])
        return getattr(self, self._name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._name(index), _as_parameter(value))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(self._count))

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def append(self, value: Any) -> Self:
        """Adds a parameter at the end."""
        setattr(self, str(self._count), _as_parameter(value))
        self._count += 1
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Adds parameters at the end."""
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(f"  ({k}): {_described(value)}" for k, value in enumerate(self))


class ParameterDict(Module):
    """A dict whose parameters are registered for `parameters`, `state_dict` and the like.

    Args:
        parameters: what is in it at first; Tensors become Parameters.
    """

    def __init__(self, parameters: Named | None = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, _as_parameter(value))
        self._keys[key] = None

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def keys(self) -> Iterable[str]:
        """The names, in order."""
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        """The parameters, in order."""
        return [self[key] for key in self._keys]

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and parameters, in order."""
        return [(key, self[key]) for key in self._keys]

    def update(self, parameters: Named) -> None:
        """Adds or replaces parameters.

        Args:
            parameters: values by name, or pairs of names and values. Names of a plain dict are
                sorted, as in PyTorch, whose states of optimizers number the parameters so.

        Raises:
            DTypeError: it is neither.
        """
        pairs = _pairs("ParameterDict", parameters)
        if isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict):
            pairs.sort(key=lambda pair: pair[0])
        for key, value in pairs:
            self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter of a name, or `default`."""
        return getattr(self, key) if key in self._keys else default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The parameter of a name, which is `default` from now on if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str) -> Any:
        """Takes a parameter out.

        Raises:
            KeyError: there is none.
        """
        taken = self[key]
        del self[key]
        return taken

    def popitem(self) -> tuple[str, Any]:
        """Takes the last parameter out; its name and it.

        Raises:
            KeyError: there is none.
        """
        if not self._keys:
            raise KeyError("the ParameterDict is empty")
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def clear(self) -> None:
        """Takes all parameters out."""
        for key in list(self._keys):
            del self[key]

    def copy(self) -> Self:
        """Another dict with the same parameters."""
        return type(self)(self.items())

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> Self:
        """A new dict with `default` under each name."""
        return type(self)((key, default) for key in keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __or__(self, others: Mapping[str, Any] | ParameterDict) -> Self:
        joined = self.copy()
        joined.update(others)
        return joined

    def __ror__(self, others: Mapping[str, Any] | ParameterDict) -> Self:
        joined = type(self)(others)
        joined.update(self)
        return joined

    def __ior__(self, others: Mapping[str, Any] | ParameterDict) -> Self:
        self.update(others)
        return self

    def extra_repr(self) -> str:
        return "\n".join(f"  ({key}): {_described(value)}" for key, value in self.items())


def _described(value: Any) -> str:
    if not isinstance(value, TensorBase):
        return f"Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    sizes = "x".join(map(str, value.shape))
    where = "" if value.device.type == "cpu" else f" ({value.device})"
    return f"{kind} containing: [{value.dtype} of size {sizes}{where}]"

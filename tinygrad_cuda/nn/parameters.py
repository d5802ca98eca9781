"""ParameterList and ParameterDict: parameters in a list or a dict, found by their module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from tinygrad_cuda.core.errors import IndexError
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.base import TensorBase


def _as_parameter(value: Any) -> Any:
    plain = isinstance(value, TensorBase) and not isinstance(value, Parameter)
    return Parameter(value) if plain else value


class ParameterList(Module):
    """A list whose parameters are found by `parameters`, `state_dict` and the like.

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
        return "\n".join(f"({k}): {_described(value)}" for k, value in enumerate(self))


class ParameterDict(Module):
    """A dict whose parameters are found by `parameters`, `state_dict` and the like.

    Args:
        parameters: what is in it at first; Tensors become Parameters.
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

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

    def update(self, parameters: Mapping[str, Any]) -> None:
        """Adds or replaces parameters."""
        for key, value in parameters.items():
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(f"({key}): {_described(value)}" for key, value in self.items())


def _described(value: Any) -> str:
    if isinstance(value, TensorBase):
        return f"Parameter of shape {tuple(value.shape)}, {value.dtype.name}"
    return repr(value)

"""Parameters that modules compute from others at each access.

The module's class becomes a subclass that computes the attribute; the originals are in a tree
``parametrizations`` below it, so that `parameters`, `state_dict` and `train` reach them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.container import ModuleDict, ModuleList
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter, share_cell
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization",
    "remove_parametrizations", "type_before_parametrizations",
]  # fmt: skip

_CONTAINER = "parametrizations"


class _ParametrizationCache:
    """Values computed inside `cached`, by module and name."""

    depth = 0
    values: dict[tuple[int, str], Tensor]


_cache = _ParametrizationCache()
_cache.values = {}


@contextmanager
def cached() -> Iterator[None]:
    """Inside, each parametrized Tensor is computed once, however often it is looked at."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.values.clear()


class ParametrizationList(ModuleList):
    """The modules that one Tensor passes, and what it starts from.

    Attributes:
        original: what the first module is called with; original0, original1, ... if several.
        is_tensor: there is one original.
        ntensors: how many there are.
        unsafe: parametrizations may change shape and dtype.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = tuple(original.shape), original.dtype
        with gradient_mode(False):
            new: Any = original
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    try:
                        new = module.right_inverse(new)
                    except NotImplementedError:
                        continue
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            _write(original, new)
            _register(self, "original", original)
        else:
            for number, part in enumerate(new):
                if isinstance(original, Parameter):
                    part = Parameter(part, original.requires_grad)
                _register(self, f"original{number}", part)
        if not unsafe:
            _check_same("register_parametrization", self(), shape, dtype)

    def originals(self) -> list[Any]:
        """What the first module is called with."""
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{number}") for number in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Stores the originals from which `value` is computed.

        Raises:
            ArgumentError: a module has no right_inverse, or it gives another number of Tensors.
        """
        with gradient_mode(False):
            new: Any = value
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise ArgumentError(
                        "right_inverse", f"{type(module).__name__} has none",
                        expect="a method right_inverse", actual="none",
                    )  # fmt: skip
                new = module.right_inverse(new)
            parts = [new] if isinstance(new, Tensor) else list(new)
            if len(parts) != self.ntensors:
                raise ArgumentError(
                    "right_inverse", "gives another number of tensors",
                    expect=str(self.ntensors), actual=str(len(parts)),
                )  # fmt: skip
            for original, part in zip(self.originals(), parts):
                _write(original, part)

    def forward(self) -> Any:
        """The computed Tensor."""
        first, *rest = self
        value = first(*self.originals())
        for module in rest:
            value = module(value)
        return value


def _write(original: Tensor, value: Tensor) -> None:
    """Gives an original another value; it stays the same object, so optimizers go on with it.

    What shares the original's memory keeps the old value.
    """
    if value is not original:
        share_cell(original, value)


def _register(module: Module, name: str, value: Tensor) -> None:
    if isinstance(value, Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def _check_same(op: str, value: Any, shape: tuple[int, ...], dtype: Any) -> None:
    same = isinstance(value, Tensor) and tuple(value.shape) == shape and value.dtype is dtype
    if not same:
        difference = (
            f"{value.dtype.name} {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else type(value).__name__
        )
        raise ArgumentError(
            op, "the tensor changes its shape or dtype", expect=f"{dtype.name} {shape}",
            actual=difference, hint="unsafe=True allows it",
        )  # fmt: skip


# The class with computed attributes -----------------------------------------------------------


@functools.cache
def _parametrized_class(kind: Any) -> Any:
    class Parametrized(kind):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            lists = self.__dict__.get("_modules", {}).get(_CONTAINER)
            if lists is None or name not in lists:
                return super().__getattr__(name)
            if not _cache.depth:
                return lists[name]()
            key = (id(self), name)
            if key not in _cache.values:
                _cache.values[key] = lists[name]()
            return _cache.values[key]

        def __setattr__(self, name: str, value: Any) -> None:
            if is_parametrized(self, name):
                self.parametrizations[name].right_inverse(value)
            else:
                super().__setattr__(name, value)

    Parametrized.__name__ = Parametrized.__qualname__ = f"Parametrized{kind.__name__}"
    return Parametrized


def register_parametrization(
    module: Any, tensor_name: str, parametrization: Any, *, unsafe: bool = False
) -> Any:
    """Makes ``module.tensor_name`` the result of a module, called with what it was before.

    A method ``right_inverse(value)`` of the parametrization, if it has one, gives the original
    from which the present value is computed; assigning to the attribute calls it too.

    Args:
        module: changed in place.
        tensor_name: a parameter, a buffer, or a name that is parametrized already.
        parametrization: a module; follows the training mode of `module`.
        unsafe: the result may differ in shape and dtype.

    Returns:
        The module.

    Raises:
        ArgumentError: there is no such Tensor, or its shape or dtype changes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> class Symmetric(tc.nn.Module):
        ...     def forward(self, x):
        ...         return x.triu() + x.triu(1).T
        >>> layer = register_parametrization(
        ...     tc.nn.Linear(3, 3, device="cpu"), "weight", Symmetric()
        ... )
        >>> tc.equal(layer.weight, layer.weight.T), list(dict(layer.named_parameters()))
        (True, ['bias', 'parametrizations.weight.original'])
    """
    op = "register_parametrization"
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        lists = module.parametrizations[tensor_name]
        if not unsafe:
            before = getattr(module, tensor_name)
            _check_same(op, parametrization(before), tuple(before.shape), before.dtype)
        lists.append(parametrization)
        lists.unsafe = lists.unsafe or unsafe
        return module
    original = module._parameters.get(tensor_name)
    original = module._buffers.get(tensor_name) if original is None else original
    if original is None:
        raise ArgumentError(
            op, "there is no such parameter or buffer",
            expect=", ".join([*module._parameters, *module._buffers]), actual=repr(tensor_name),
        )  # fmt: skip
    made = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        kind: Any = type(module)
        module.__class__ = _parametrized_class(kind)
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = made
    return module


def is_parametrized(module: Any, tensor_name: str | None = None) -> bool:
    """Whether a Tensor of the module, or any if no name is given, is parametrized."""
    lists = module.__dict__.get("_modules", {}).get(_CONTAINER)
    if not isinstance(lists, ModuleDict):
        return False
    return len(lists) > 0 if tensor_name is None else tensor_name in lists


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Makes the Tensor an ordinary one again.

    Args:
        module: changed in place.
        tensor_name: what is parametrized.
        leave_parametrized: it keeps its present value; otherwise that of its original.

    Raises:
        ArgumentError: it is not parametrized, or has no single original to go back to.
    """
    op = "remove_parametrizations"
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(
            op, f"{tensor_name!r} is not parametrized", expect="a parametrized tensor",
            actual=type(module).__name__,
        )  # fmt: skip
    lists = module.parametrizations[tensor_name]
    if not lists.is_tensor and not leave_parametrized:
        raise ArgumentError(
            op, "there is no single original", expect="leave_parametrized=True",
            actual=f"{lists.ntensors} originals",
        )  # fmt: skip
    with gradient_mode(False):
        value = getattr(module, tensor_name).detach() if leave_parametrized else None
    if lists.is_tensor:
        original = lists.original
        if value is not None:
            _write(original, value)
    else:
        trained = any(part.requires_grad for part in lists.originals())
        original = Parameter(value) if trained else value
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
    _register(module, tensor_name, original)
    return module


def type_before_parametrizations(module: Any) -> type:
    """The module's class, without what parametrizations made of it."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)

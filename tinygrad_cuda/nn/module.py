"""Module: parameters, buffers and modules in a tree, by the names of attributes.

Names, keys of the state and the text of `repr` are PyTorch's.
"""

from __future__ import annotations

import difflib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

from tinygrad_cuda.core import layouts
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import DType, as_dtype, bfloat16, float16, float32, float64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, NameTakenError, TgcError, user_site
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.engine.capture import capturing, structure
from tinygrad_cuda.engine.realize import begin_call
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.hooks import ForwardHooks, add_hook, of_all, registered
from tinygrad_cuda.nn.hooks import (
    register_module_buffer_registration_hook as register_module_buffer_registration_hook,
)
from tinygrad_cuda.nn.hooks import (
    register_module_forward_hook as register_module_forward_hook,
)
from tinygrad_cuda.nn.hooks import (
    register_module_forward_pre_hook as register_module_forward_pre_hook,
)
from tinygrad_cuda.nn.hooks import (
    register_module_full_backward_hook as register_module_full_backward_hook,
)
from tinygrad_cuda.nn.hooks import (
    register_module_full_backward_pre_hook as register_module_full_backward_pre_hook,
)
from tinygrad_cuda.nn.hooks import (
    register_module_module_registration_hook as register_module_module_registration_hook,
)
from tinygrad_cuda.nn.hooks import (
    register_module_parameter_registration_hook as register_module_parameter_registration_hook,
)
from tinygrad_cuda.nn.parameter import Buffer, Parameter, share_cell
from tinygrad_cuda.nn.state_hooks import KINDS, StateHooks
from tinygrad_cuda.tensors.backward import clear
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import empty_like
from tinygrad_cuda.tensors.tensor import RemovableHandle, Tensor


class _CallDepth(threading.local):
    """How deep this thread is inside calls of modules; `plain` is called without compilation."""

    depth: int = 0
    plain: Any = None


_calls = _CallDepth()


class _Compiler:
    """`tc.compile`, which sets it: it is made of what modules are, too."""

    function: Callable[..., Any] | None = None


compiler = _Compiler()


def _tensor_inputs(forward: Any) -> tuple[str, ...]:
    """The leading arguments that a forward of this package declares as Tensors."""
    code, names = forward.__code__, []
    for name in code.co_varnames[1 : code.co_argcount]:
        if not forward.__annotations__.get(name, "").startswith("Tensor"):
            break
        if "None" in forward.__annotations__[name]:
            break
        names.append(name)
    return tuple(names)


class Module(StateHooks):
    """The base of every layer and model: subclasses write ``__init__`` and ``forward``.

    Attributes that are Parameters, Modules or registered buffers belong to `parameters`,
    `modules`, `state_dict` and the like, under the names of the attributes joined by dots.

    Attributes:
        training: True until `eval`; dropout and the like look at it.

    Example:
        >>> import tinygrad_cuda as tc
        >>> class Scale(Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = Parameter(tc.tensor([2.0], device="cpu"))
        ...     def forward(self, x):
        ...         return x * self.factor
        >>> model = Scale()
        >>> model(tc.tensor([3.0], device="cpu")).tolist(), list(model.state_dict())
        ([6.0], ['factor'])
    """

    training: bool
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _temporary: set[str]
    # The arguments that must be Tensors, for layers of this package; a forward of the user's own
    # takes what it likes.
    _tensor_inputs: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        forward = cls.__dict__.get("forward")
        if forward is not None:
            own = cls.__module__.startswith("tinygrad_cuda.nn.")
            cls._tensor_inputs = _tensor_inputs(forward) if own else ()

    def __init__(self) -> None:
        fields = self.__dict__
        fields["training"] = True
        fields["_parameters"] = {}
        fields["_buffers"] = {}
        fields["_modules"] = {}
        fields["_temporary"] = set()  # names of buffers that are not part of the state
        fields["_forward_hooks"] = {}
        fields["_forward_pre_hooks"] = {}
        fields["_hooks_with_kwargs"] = set()  # keys of forward hooks that take keyword arguments
        fields["_hooks_always"] = set()  # keys of those called after an error, too
        fields["_backward_hooks"] = {}
        fields["_backward_pre_hooks"] = {}
        fields["_state_hooks"] = {kind: {} for kind in KINDS}

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The computation; subclasses write it, callers call the module itself."""
        raise NotImplementedError(f"{type(self).__name__} has no forward method")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        compiled = self.__dict__.get("_compiled")
        if compiled is not None and _calls.plain is not self:
            return compiled(*inputs, **options)
        if (observer := watched.observer) is not None and (seen := observer.call(self)) is not None:
            with seen:
                return self(*inputs, **options)
        if _calls.depth == 0:
            if (capture := capturing()) is not None:
                capture.saw_module(self)
            # A loop without optimizer.step() comes round here: its last turn is realized.
            begin_call(user_site())
        _calls.depth += 1
        try:
            for name, value in zip(self._tensor_inputs, inputs):
                if not isinstance(value, TensorBase):
                    self._refuse_input(name, value)
            fields = self.__dict__
            if not (
                fields["_forward_pre_hooks"] or fields["_forward_hooks"]
                or fields["_backward_hooks"] or fields["_backward_pre_hooks"] or of_all.present
            ):  # fmt: skip
                return self.forward(*inputs, **options)
            return self._call_with_hooks(inputs, options)
        except TgcError as error:
            self._name_itself(error)
            raise
        finally:
            _calls.depth -= 1

    def compile(self, **options: Any) -> None:
        """Has calls of this module replayed as by `tc.compile`, in place.

        Args:
            options: as `tc.compile` takes them.

        Example:
            >>> import tinygrad_cuda as tc
            >>> model = tc.nn.Linear(2, 1).to("cpu")
            >>> model.compile(mode="reduce-overhead")
            >>> with tc.no_grad():
            ...     outputs = [model(tc.ones(3, 2, device="cpu")) for _ in range(3)]
            >>> tc.equal(outputs[0], outputs[2])
            True
        """
        assert compiler.function is not None
        self.__dict__["_compiled"] = compiler.function(self._call_plain, **options)

    def _call_plain(self, *inputs: Any, **options: Any) -> Any:
        """A call that is not replayed."""
        before, _calls.plain = _calls.plain, self
        try:
            return self(*inputs, **options)
        finally:
            _calls.plain = before

    def _refuse_input(self, name: str, value: Any) -> None:
        """Raises for an argument that is no Tensor, where the layer takes nothing else."""
        # A forward that replaces the class's own, or a hook, may take other arguments.
        declared = getattr(self.forward, "__annotations__", {}).get(name, "")
        kind = type(value).__name__
        if not declared.startswith("Tensor") or kind in declared or self._forward_pre_hooks:
            return
        hint = None
        if value is None:
            hint = "did a forward without a return statement make it?"
        elif hasattr(value, "__array__") or isinstance(value, list | tuple | int | float):
            hint = "tc.as_tensor(...) makes a Tensor of arrays, lists and numbers"
        raise DTypeError(
            type(self).__name__, f"{name} is no Tensor", expect=declared,
            actual="None" if value is None else kind, hint=hint,
        )  # fmt: skip

    def _name_itself(self, error: TgcError) -> None:
        """An error that propagates gains the path of the module in which it was raised."""
        path = error.module_path
        kind = type(self).__name__
        if path:
            name, inner = path[-1]
            own_name = next((key for key, child in self._modules.items() if child is inner), name)
            path[-1] = (own_name, inner)
        path.append((kind, self))
        if _calls.depth == 1:
            names = ".".join(name for name, _ in reversed(path))
            leaf = type(path[0][1]).__name__
            error.name_module(names if len(path) == 1 else f"{names} ({leaf})")
            path.clear()

    def _call_with_hooks(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        call = ForwardHooks(self, inputs, options)
        try:
            return call.run()
        except Exception:
            call.after_error()
            raise

    # Attributes ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            if table in fields and name in fields[table]:
                return fields[table][name]
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not name.startswith("__"):
            near = difflib.get_close_matches(name, dir(self), 1)
            text += f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(text, name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._register("_parameters", name, value)
        elif isinstance(value, Module):
            self._register("_modules", name, value, assigned=True)
        elif isinstance(value, Buffer):
            self._register("_buffers", name, value)
            (self._temporary.discard if value.persistent else self._temporary.add)(name)
        else:
            self._set_plain(name, value)

    def _set_plain(self, name: str, value: Any) -> None:
        """Assigns what is neither a Parameter nor a Module."""
        structure.version += 1
        fields = self.__dict__
        if name in fields.get("_parameters", ()):
            if value is not None:
                raise _refused("Parameter", name, value)
            fields["_parameters"][name] = None
        elif name in fields.get("_modules", ()):
            if value is not None:
                raise _refused("Module", name, value)
            fields["_modules"][name] = registered(self, "_modules", name, None)
        elif name in fields.get("_buffers", ()):
            if value is not None and not isinstance(value, TensorBase):
                raise _refused("buffer", name, value)
            fields["_buffers"][name] = registered(self, "_buffers", name, value)
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        structure.version += 1
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._temporary.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        fields = self.__dict__
        tables = ("_parameters", "_buffers", "_modules")
        names = [name for table in tables for name in fields.get(table, ())]
        return sorted({*super().__dir__(), *names})

    def _register(self, table: str, name: str, value: Any, assigned: bool = False) -> None:
        structure.version += 1
        fields = self.__dict__
        if table not in fields:
            raise AttributeError(
                f"{type(self).__name__} got the attribute {name!r} before super().__init__()"
            )
        if not isinstance(name, str) or "." in name or name == "":
            raise NameTakenError(
                "Module", "not a name for an attribute", expect="a name without dots",
                actual=repr(name),
            )  # fmt: skip
        # PyTorch lets an assigned module have the name of a method, which still answers to it.
        if hasattr(type(self), name) and not (assigned and table == "_modules"):
            raise _taken(name, f"{type(self).__name__}.{name} belongs to the class")
        for other in ("_parameters", "_buffers", "_modules"):
            fields[other].pop(name, None) if other != table else None
        fields.pop(name, None)
        fields[table][name] = registered(self, table, name, value)

    def _check_free(self, table: str, name: str) -> None:
        """Raises where an attribute of another kind has the name, before anything is changed."""
        for other in ("_parameters", "_buffers", "_modules"):
            if other != table and name in self.__dict__.get(other, ()):
                raise _taken(name, f"one of {other.strip('_')}")
        if self.__dict__.get(name) is not None:
            raise _taken(name, f"an attribute, {type(self.__dict__[name]).__name__}")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a Parameter under `name`; None keeps the name without one.

        Raises:
            NameTakenError: an attribute that is no Parameter has the name; also a KeyError.
        """
        self._check_free("_parameters", name)
        if param is not None and not isinstance(param, Parameter):
            raise _refused("Parameter", name, param)
        self._register("_parameters", name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a Tensor that is state but is not trained, such as a running mean.

        Args:
            name: the attribute's name.
            tensor: its value, or None.
            persistent: whether `state_dict` contains it.

        Raises:
            NameTakenError: an attribute that is no buffer has the name; also a KeyError.
        """
        self._check_free("_buffers", name)
        if tensor is not None and not isinstance(tensor, TensorBase):
            raise _refused("buffer", name, tensor)
        self._register("_buffers", name, tensor)
        (self._temporary.discard if persistent else self._temporary.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a Module under `name`; None keeps the name without one.

        Raises:
            NameTakenError: an attribute that is no Module has the name; also a KeyError.
        """
        self._check_free("_modules", name)
        if module is not None and not isinstance(module, Module):
            raise _refused("Module", name, module)
        self._register("_modules", name, module)

    register_module = add_module

    # Walking the tree ------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, with their names, each once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly below, each once."""
        return (module for _, module in self.named_children())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with their names."""
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                inner = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(seen, inner, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def _named(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = (
            self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]
        )
        for path, module in modules:
            for name, value in module.__dict__[table].items():
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The Parameters of this module and of those below, with their names."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The Parameters of this module and of those below, each once."""
        return (value for _, value in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers of this module and of those below, with their names."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and of those below, each once."""
        return (value for _, value in self.named_buffers(recurse=recurse))

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Calls `fn` with each module of the tree, children first."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # State -----------------------------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Parameters and persistent buffers by name; they share their cells with the module.

        Args:
            destination: a dict to fill, instead of a new one.
            prefix: put before each name.
            keep_vars: give the Parameters themselves instead of detached handles.
        """
        state: Any = OrderedDict() if destination is None else destination
        if destination is None:
            state._metadata = OrderedDict()
        self._before_saving(state, prefix, keep_vars)
        self._save_to_state_dict(state, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=state, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        self._after_saving(state, prefix)
        return state  # type: ignore[no-any-return]

    # Changing the whole tree -------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Training mode for this module and all below; it affects dropout and the like.

        Raises:
            ArgumentError: `mode` is no bool.
        """
        if not isinstance(mode, bool):
            raise ArgumentError(
                "Module.train", "the mode is no bool", expect="True or False", actual=repr(mode)
            )
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Evaluation mode: ``train(False)``."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Whether gradients are collected for the parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters, or sets them to zero."""
        for parameter in self.parameters():
            clear(parameter, set_to_none)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replaces the value of every parameter, gradient and buffer; Parameters stay objects.

        `to` and the like come here; subclasses override it, as in PyTorch.
        """
        structure.version += 1
        for module in self.children() if recurse else ():
            module._apply(fn)
        with gradient_mode(False):
            for parameter in self._parameters.values():
                if parameter is not None:
                    share_cell(parameter, fn(parameter.detach()))
                    leaf = parameter.accumulator
                    if leaf is not None and leaf.grad is not None:
                        leaf.grad = fn(leaf.grad)
            for name, buffer in self._buffers.items():
                if isinstance(buffer, Buffer):
                    share_cell(buffer, fn(buffer))
                elif buffer is not None:
                    self._buffers[name] = fn(buffer)
        return self

    def to(self, *targets: Any, device: Any = None, dtype: Any = None, **options: Any) -> Self:
        """Moves parameters and buffers in place; a dtype applies to floating ones only.

        Args:
            targets: a device, a floating dtype or a Tensor, as in ``Tensor.to``.
            device, dtype: the same by name.
            options: as in ``Tensor.to``; a `memory_format` applies to what has its dimensions.

        Raises:
            DeviceError: the device cannot be used here.
            DTypeError: the dtype is not a floating one.
        """
        for target in targets:
            if isinstance(target, TensorBase):
                device, dtype = target.device, target.dtype
            elif isinstance(target, DType | type):
                dtype = target
            else:
                device = as_device(target)
        order = options.pop("memory_format", None)
        wanted = None if dtype is None else as_dtype(dtype)
        if wanted is not None and not wanted.is_floating:
            raise DTypeError(
                "Module.to", "not a floating dtype", expect="a floating dtype", actual=wanted.name
            )

        def convert(tensor: Tensor) -> Tensor:
            cast = wanted if tensor.dtype.is_floating else None
            result: Tensor = tensor.to(device=device, dtype=cast, **options)
            fits = order is not None and layouts.RANKS.get(order, tensor.ndim) == tensor.ndim
            return result.contiguous(memory_format=order) if fits else result

        return self._apply(convert)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Moves parameters and buffers to a device without their values, such as from ``meta``."""
        return self._apply(lambda tensor: empty_like(tensor, device=device), recurse=recurse)

    def type(self, dst_type: Any) -> Self:
        """Parameters and buffers in another dtype, integers too."""
        return self._apply(lambda tensor: tensor.type(dst_type))

    def share_memory(self) -> Self:
        """Nothing to do: a process does not see another's parameters here."""
        return self

    def cpu(self) -> Self:
        """``to("cpu")``."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Self:
        """``to("cuda")``, or to another GPU."""
        return self.to("cuda" if device is None else device)

    def float(self) -> Self:
        """``to(tc.float32)``."""
        return self.to(float32)

    def double(self) -> Self:
        """``to(tc.float64)``."""
        return self.to(float64)

    def half(self) -> Self:
        """``to(tc.float16)``."""
        return self.to(float16)

    def bfloat16(self) -> Self:
        """``to(tc.bfloat16)``."""
        return self.to(bfloat16)

    # Hooks -----------------------------------------------------------------------------------

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:  # fmt: skip
        """Calls ``hook(module, inputs, output)`` after `forward`; its result replaces the output.

        Args:
            hook: what is called.
            prepend: before the hooks that are there, instead of after them.
            with_kwargs: ``hook(module, inputs, options, output)`` instead.
            always_call: after an error in the call, too, with None for an output that there is
                not; its result does not matter then.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        handle = add_hook(self._forward_hooks, hook, prepend)
        self._note(self._hooks_with_kwargs, self._forward_hooks, prepend, with_kwargs)
        self._note(self._hooks_always, self._forward_hooks, prepend, always_call)
        return handle

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Calls ``hook(module, inputs)`` before `forward`; its result replaces the inputs.

        Args:
            hook: what is called.
            prepend: before the hooks that are there, instead of after them.
            with_kwargs: ``hook(module, inputs, options)`` instead; its result is a pair.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        handle = add_hook(self._forward_pre_hooks, hook, prepend)
        self._note(self._hooks_with_kwargs, self._forward_pre_hooks, prepend, with_kwargs)
        return handle

    def _note(self, keys: set[int], hooks: dict[int, Any], prepend: bool, wanted: bool) -> None:
        """Enters the key of a hook that was just added, where that is wanted."""
        if wanted:
            keys.add(next(iter(hooks) if prepend else reversed(hooks)))

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls ``hook(module, grad_input, grad_output)`` when the inputs' gradients are computed.

        Its result, a tuple, replaces grad_input.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        return add_hook(self._backward_hooks, hook, prepend)

    register_backward_hook = register_full_backward_hook

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls ``hook(module, grad_output)`` before the backward pass through the module.

        Its result, a tuple, replaces grad_output.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        return add_hook(self._backward_pre_hooks, hook, prepend)

    # Text ------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses; layers write it."""
        return ""

    def _get_name(self) -> str:
        """The name of the class, which `repr` shows; subclasses override it, as in PyTorch."""
        return type(self).__name__

    def __repr__(self) -> str:
        lines = [line for line in self.extra_repr().split("\n") if line]
        children = [
            f"({name}): " + repr(module).replace("\n", "\n  ")
            for name, module in self._modules.items()
        ]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({''.join(lines)})"
        body = "".join(f"\n  {line}" for line in (*lines, *children))
        return f"{self._get_name()}({body}\n)"


def _taken(name: str, by: str) -> NameTakenError:
    return NameTakenError(
        "Module", f"the attribute {name!r} already exists", expect="a name that is free",
        actual=by, hint=f"del module.{name} frees it, where it is not the class's",
    )  # fmt: skip


def _refused(wanted: str, name: str, value: Any) -> ArgumentError:
    return ArgumentError(
        "Module",
        f"{name!r} cannot hold this",
        expect=f"a {wanted} or None",
        actual=type(value).__name__,
        hint="nn.Parameter(tensor) makes a Parameter" if wanted == "Parameter" else None,
    )

"""Tensor: what the user holds. Its methods bind the free functions of this package."""

from __future__ import annotations

import builtins
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from copy import deepcopy
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import layouts
from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.dtypes import DType, number_of
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, GradientError
from tinygrad_cuda.core.names import unknown_name
from tinygrad_cuda.core.shapes import Shape, is_dense
from tinygrad_cuda.engine.capture import capturing, structure, watching
from tinygrad_cuda.engine.cell import Leaf, detached
from tinygrad_cuda.engine.shared import SharedCell
from tinygrad_cuda.graph import gradient
from tinygrad_cuda.graph.node import Node, made_by
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.tensors import backward as backward_pass
from tinygrad_cuda.tensors import (
    creation,
    exchange,
    inspection,
    keywords,
    legacy,
    math,
    random,
    reductions,
    representation,
    shaping,
    special,
    transfer,
    ufuncs,
)
from tinygrad_cuda.tensors.arguments import require_real, takes_tensors
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import TensorBase, refuse_place, wrap
from tinygrad_cuda.tensors.grad_fn import GradientFunction, of_tensor
from tinygrad_cuda.tensors.indexing import keys, selecting, writing
from tinygrad_cuda.tensors.layout import lies_in
from tinygrad_cuda.tensors.linalg import products
from tinygrad_cuda.tensors.methods import (
    ElementwiseMethods,
    FactMethods,
    OrderMethods,
    ProductMethods,
    ShapeMethods,
    WritingMethods,
)
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.views import first_position, moves, shared_through

SEQUENCES = (list, tuple, str, bytes, bytearray)


def _reflected(function: Callable[..., Any]) -> Any:
    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, SEQUENCES):
            return NotImplemented  # to Python a 0-d integer is how often, as in [0] * n
        return function(other, self)

    return method


# A hook that is registered twice is called twice: its key is not its identity.
_hook_numbers = itertools.count()


class RemovableHandle:
    """Returned by the registration of a hook; `remove`, or leaving a ``with``, takes it away."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Takes the hook away; a second call does nothing."""
        self._remove()
        self._remove = lambda: None

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def entered(
    hooks: dict[int, Callable[..., Any]], key: int, hook: Callable[..., Any]
) -> RemovableHandle:
    """Puts a hook into a table; the handle takes it away. Replays look at tables after either."""
    hooks[key] = hook
    structure.version += 1

    def remove() -> None:
        hooks.pop(key, None)
        structure.version += 1

    return RemovableHandle(remove)


class Tensor(
    ElementwiseMethods,
    FactMethods,
    OrderMethods,
    ShapeMethods,
    WritingMethods,
    ProductMethods,
    TensorBase,
):
    """An n-dimensional array that records the graph of the operations on it.

    Made by `tensor`, `zeros`, `rand` and the other creation functions; values are computed when
    somebody looks at them.
    """

    # Programs note things about a Tensor on it.
    __slots__ = ("__dict__",)

    if not TYPE_CHECKING:  # for a type checker an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            if watching.on and (capture := capturing()) is not None:
                capture.lacking.append((weakref.ref(self), name))
            if name.startswith("_") or hasattr(type(self), name):
                # An AttributeError inside a property: this raises it again.
                return object.__getattribute__(self, name)
            raise unknown_name("Tensor", name, lambda: dir(type(self)))

    def __new__(cls, *data: Any, device: Any = None) -> Tensor:
        """PyTorch's old constructor: `empty` of sizes, or a copy of data, in the default dtype."""
        target = None if device is None else as_device(device)
        made = legacy.constructed(data, creation.get_default_dtype(), target)
        return made if cls is Tensor else _as_subclass(cls, made)

    def __init__(self, *data: Any, **options: Any) -> None:
        """Everything is done by `__new__`."""

    # Values --------------------------------------------------------------------------------

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """The memory as a DLPack capsule, shared as by `numpy`; of `emu` a copy on the host.

        Args:
            stream: of the consumer on a GPU; -1 for one that waits by itself.
            max_version: the newest that the consumer reads: from (1, 0) on the capsule says its
                version and whether it is read-only or a copy.
            dl_device: where the memory shall be: this device or the host.
            copy: True for memory of its own, False to refuse what can only be copied.

        Raises:
            GradientError: the Tensor requires grad.
            BufferError: the memory cannot be shared so.
        """
        return exchange.capsule_of(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the memory is, in DLPack's numbers: (1, 0) is the host, (2, n) the GPU n."""
        return exchange.device_of(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory on a GPU, for CuPy and Numba; elsewhere an AttributeError."""
        return exchange.cuda_array_interface(self)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions of the Python array API standard for Tensors: `array_api`.

        Raises:
            ArgumentError: the version is not the one that there is.
        """
        namespace: Any = sys.modules[__package__.partition(".")[0]].array_api
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ArgumentError(
                "__array_namespace__", "a version that is not here", expect="2024.12 or older",
                actual=repr(api_version),
            )  # fmt: skip
        return namespace

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The value on another device, by the name of the array API standard; see `to`."""
        result: Tensor = self.to(device)
        return result

    def data_ptr(self) -> int:
        """A number that is the same for Tensors that begin at the same address of one memory.

        It is the address of memory that is shared with another library, such as `numpy` and
        `from_dlpack` share it. Other values have an address only while a computation runs.

        Raises:
            CompileError: a compiled function asks, in whose later calls it is another number.
        """
        if watching.on and capturing() is not None:
            refuse_place("data_ptr", f"the address of a tensor of shape {tuple(self.shape)}")
        if isinstance(self.cell, SharedCell):
            view = shared_through(self.chain, self.cell.memory)
            address: int = view.__array_interface__["data"][0]
            return address
        return id(self.cell) + self.storage_offset() * self.element_size()

    def storage_offset(self) -> int:
        """Where this view begins in the memory of its cell, in elements."""
        return self.first_position("storage_offset")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is None or array.dtype == np.dtype(dtype):
            return array.copy() if copy else array
        if copy is False:
            raise ValueError(f"{array.dtype} becomes {np.dtype(dtype)} only by a copy")
        return array.astype(dtype)

    def __array_wrap__(
        self, array: np.ndarray[Any, Any], context: Any = None, return_scalar: bool = False
    ) -> Tensor:
        """What a function of NumPy has computed from this Tensor's array: ``np.transpose(x)``."""
        return creation.as_tensor(array, device="cpu")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return ufuncs.applied(self, ufunc, method, inputs, options)

    def __repr__(self) -> str:
        return representation.text(self)

    def __format__(self, specification: str) -> str:
        return format(self.item(), specification) if self.ndim == 0 else repr(self)

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ArgumentError(
                "bool",
                "the truth of several elements is ambiguous" if self.numel() else "no element",
                expect="1 element",
                actual=f"{self.numel()} elements, shape {tuple(self.shape)}",
                hint="use .any() or .all()",
            )
        return builtins.bool(self.item())

    def __float__(self) -> float:
        require_real("float", self)
        return builtins.float(self.item())

    def __int__(self) -> int:
        require_real("int", self)
        return builtins.int(self.item())

    def __complex__(self) -> complex:
        return builtins.complex(self.item())

    def __index__(self) -> int:
        if self.dtype.category > 1:
            raise DTypeError(
                "index",
                "only an integer tensor of one element can be an index",
                expect="an integer dtype",
                actual=self.dtype.name,
                hint="use .long()",
            )
        return builtins.int(self.item())

    def __len__(self) -> int:
        shape: tuple[builtins.int, ...] = self.shape
        if not shape:
            raise TypeError("len() of a 0-d tensor")
        return shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def __contains__(self, element: Any) -> bool:
        return builtins.bool((self == element).any().item())

    __hash__ = TensorBase.__hash__

    def __reduce_ex__(self, protocol: Any) -> Any:
        strides = self._strides
        if strides is not None and not is_dense(self.shape, strides):
            strides = None
        facts = (np.array(self.array()), self.dtype, str(self.device), self.requires_grad, strides)
        return _rebuild, facts, self.__dict__ or None

    def __copy__(self) -> Tensor:
        """Another Tensor of the same memory; it is a leaf."""
        copy = self.detach()
        result = self._as_leaf(copy) if self.requires_grad else copy
        result.__dict__.update(self.__dict__)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise GradientError(
                "deepcopy",
                "only a leaf can be copied",
                expect="a leaf, or a tensor that does not require grad",
                actual=made_by(self.node),
                hint="use .detach().clone(), or .clone() to stay in the graph",
            )
        copy = self.copy_with_cell(memo)
        result = copy if self.leaf is None else self._as_leaf(copy)
        memo[id(self)] = result
        if self.grad is not None:
            result.grad = self.grad.__deepcopy__(memo)
        if self.__dict__:
            result.__dict__.update(deepcopy(self.__dict__, memo))
        return result

    def _as_leaf(self, tensor: Tensor) -> Tensor:
        """Another Tensor's cell as a leaf of this Tensor's kind."""
        return creation.as_leaf(tensor, True)

    # Facts ---------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    nelement = numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def stride(self, dim: int | None = None) -> Any:
        """The strides in elements as PyTorch would give them, or one of them."""
        return self.strides if dim is None else self.strides[dim]

    def dim_order(self, ambiguity_check: bool | list[Any] = False) -> tuple[int, ...]:
        """The dimensions from the largest stride to the smallest.

        Args:
            ambiguity_check: accepted as in PyTorch; equal strides keep their order.

        Example:
            >>> import tinygrad_cuda as tc
            >>> tc.zeros(2, 3, 4, device="cpu").transpose(0, 2).dim_order()
            (2, 1, 0)
        """
        return tuple(sorted(range(self.ndim), key=lambda dim: -self.strides[dim]))

    def is_contiguous(
        self, memory_format: layouts.memory_format = layouts.contiguous_format
    ) -> bool:
        """Whether the strides are row-major without gaps, or those of another memory format."""
        return lies_in(self, memory_format)

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating one."""
        return self.dtype.is_floating

    @property
    def is_cuda(self) -> bool:
        """Whether the value lives on a GPU."""
        return self.device.kind == "cuda"

    @property
    def T(self) -> Tensor:
        """The dimensions in reverse order."""
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Tensor:
        """The last two dimensions swapped."""
        return self.transpose(-2, -1)

    explain = inspection.explain

    # Autograd ------------------------------------------------------------------------------

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Adds d self / d leaf to the ``.grad`` of every leaf that self depends on.

        Args:
            gradient: the seed, of self's shape; may be left out for one element.
            retain_graph: keep the history for another pass; defaults to `create_graph`.
            create_graph: make the gradients differentiable themselves.
            inputs: accumulate into these only; results of operations get a ``.grad`` too.

        Raises:
            GradientError: self has several elements and no seed, no history, or a spent one.

        Example:
            >>> import tinygrad_cuda as tc
            >>> x = tc.tensor([3.0], device="cpu", requires_grad=True)
            >>> (x * x).sum().backward()
            >>> x.grad
            tensor([6.])
        """
        backward_pass.backward(self, gradient, retain_graph, create_graph, inputs)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Makes this Tensor a leaf that collects gradients, or no longer one."""
        if requires_grad == self.requires_grad:
            return self
        structure.version += 1
        if not requires_grad:
            if self.leaf is None:
                raise GradientError(
                    "requires_grad_",
                    "only a leaf can stop requiring grad",
                    expect="a leaf",
                    actual=made_by(self.node),
                    hint="use detach() for a tensor without history",
                )
            # The gradient and the hooks come back when the Tensor requires grad again.
            self._retained = self.leaf
            self.chain = self.chain[:-1]
        else:
            self.chain = creation.as_leaf(self, True, self._retained).chain
            leaf: Leaf = self.chain[-1][1]
            leaf.owner = weakref.ref(self)
        self._node = None
        return self

    def _set_requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    requires_grad = property(
        TensorBase.requires_grad.fget,  # type: ignore[attr-defined]
        _set_requires_grad,
        doc="Whether gradients flow through this Tensor.",
    )

    def detach(self) -> Tensor:
        """The same value (and the same cell) without history."""
        return self.with_chain(self.chain_without_history())

    def detach_(self) -> Tensor:
        """Drops this Tensor's history."""
        if not self.requires_grad or self.leaf is not None:
            return self.requires_grad_(False)
        if self._is_alias():
            raise GradientError(
                "detach_",
                "a view cannot be detached in place",
                expect="a tensor that is not a view",
                actual=made_by(self.node),
                hint="use .detach()",
            )
        if any(step is common.detach for step, _ in self.chain):
            # Its history is its own: the others on the cell have none of it.
            self.chain, self._node = self.chain_without_history(), None
            return self
        node = detached(self.cell.node)
        with versions.paused():
            self.cell.put(node)
        return self

    @property
    def data(self) -> Tensor:
        """The same cell without history; a write to it is not recorded."""
        result = self.detach()
        result.chain[-1][1].silent = True
        return result

    @data.setter
    def data(self, value: Tensor) -> None:
        self.show(value)

    def retain_grad(self) -> None:
        """Keeps the gradient of a Tensor that is not a leaf in its ``.grad``."""
        if not self.requires_grad:
            raise _no_grad("retain_grad", self)
        if self.leaf is not None or self._retained is not None:
            return
        self._retained = Leaf()
        # Weak: the gradient of a Tensor that is gone is of no use to anybody.
        reference = weakref.ref(self._retained)

        def keep(g: Node) -> None:
            retained = reference()
            if retained is not None:
                backward_pass.accumulate(retained, g)

        gradient.watch(self.node, gradient.Last(keep))

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Calls `hook(grad)` when the gradient of this Tensor is computed; it may return another.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        if not self.requires_grad:
            raise _no_grad("register_hook", self)
        leaf = self.leaf
        if leaf is not None:
            return entered(leaf.hooks, next(_hook_numbers), hook)

        def watch(g: Node) -> Node | None:
            shown = wrap(g)
            return backward_pass.of_hook(hook(shown), shown).node

        watching = gradient.watch(self.node, watch)
        return RemovableHandle(lambda: watching.remove(watch) if watch in watching else None)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Calls `hook(self)` when `backward` has put this leaf's gradient into ``.grad``.

        Returns:
            A handle whose `remove()` takes the hook away.

        Raises:
            GradientError: this Tensor is not a leaf that requires grad.
        """
        leaf = self.leaf
        if leaf is None:
            raise GradientError(
                "register_post_accumulate_grad_hook",
                "only a leaf accumulates a gradient",
                expect="a leaf that requires grad",
                actual=made_by(self.node),
                hint="register_hook sees the gradient of a result",
            )
        after = backward_pass.AfterHook(hook, self)
        return entered(leaf.hooks, next(_hook_numbers), after)

    @property
    def grad_fn(self) -> GradientFunction | None:
        """The recorded op that made this Tensor, from which the graph is walked; None for a leaf.

        Example:
            >>> import tinygrad_cuda as tc
            >>> x = tc.ones(2, device="cpu", requires_grad=True)
            >>> [function.name() for function, _ in (x.exp() * x).grad_fn.next_functions]
            ['ExpBackward0', 'torch::autograd::AccumulateGrad']
        """
        return None if self.is_leaf else of_tensor(self.node)

    # Arithmetic ----------------------------------------------------------------------------

    add = math.add
    sub = subtract = math.sub
    mul = multiply = math.mul
    div = divide = true_divide = math.div
    floor_divide = math.floor_divide
    remainder = math.remainder
    fmod = math.fmod
    pow = math.pow
    neg = negative = math.neg
    abs = absolute = math.abs
    maximum = math.maximum
    minimum = math.minimum
    atan2 = arctan2 = math.atan2
    lerp = math.lerp
    addcmul = math.addcmul
    addcdiv = math.addcdiv
    __add__ = math.plus
    __radd__ = _reflected(math.plus)
    __sub__ = math.minus
    __rsub__ = _reflected(math.minus)
    __mul__ = math.mul
    __rmul__ = _reflected(math.mul)
    __truediv__ = math.over
    # As PyTorch does: the reciprocal is what needs the range.
    __rtruediv__ = _reflected(in_float32(math.over))
    __floordiv__ = math.floor_divide
    __rfloordiv__ = _reflected(math.floor_divide)
    __mod__ = math.remainder
    __rmod__ = _reflected(math.remainder)
    __pow__ = math.pow
    __rpow__ = _reflected(math.pow)
    __neg__ = math.neg
    __abs__ = math.abs

    def __matmul__(self, other: Any) -> Tensor:
        if isinstance(other, np.ndarray):  # a Tensor of cpu, as beside each other operator
            other = creation.tensor(other, device="cpu")
        return products.matmul(self, other)

    __rmatmul__ = _reflected(products.matmul)

    def __pos__(self) -> Tensor:
        return self

    # Comparison and logic --------------------------------------------------------------------

    eq = math.eq
    ne = not_equal = math.ne
    lt = less = math.lt
    le = less_equal = math.le
    gt = greater = math.gt
    ge = greater_equal = math.ge
    __eq__ = math.or_unlike(math.eq)
    __ne__ = math.or_unlike(math.ne)
    __lt__ = math.lt
    __le__ = math.le
    __gt__ = math.gt
    __ge__ = math.ge
    logical_and = math.logical_and
    logical_or = math.logical_or
    logical_xor = math.logical_xor
    logical_not = math.logical_not
    bitwise_and = __and__ = math.bitwise_and
    bitwise_or = __or__ = math.bitwise_or
    bitwise_xor = __xor__ = math.bitwise_xor
    bitwise_not = __invert__ = math.bitwise_not
    __rand__ = _reflected(math.bitwise_and)
    __ror__ = _reflected(math.bitwise_or)
    __rxor__ = _reflected(math.bitwise_xor)
    __rlshift__ = _reflected(special.bitwise_left_shift)
    __rrshift__ = _reflected(special.bitwise_right_shift)
    isnan = math.isnan
    isfinite = math.isfinite
    isinf = math.isinf
    isclose = math.isclose
    allclose = math.allclose
    equal = math.equal

    # Unary functions -------------------------------------------------------------------------

    exp = math.exp
    exp2 = math.exp2
    expm1 = math.expm1
    log = math.log
    log2 = math.log2
    log10 = math.log10
    log1p = math.log1p
    sqrt = math.sqrt
    rsqrt = math.rsqrt
    square = math.square
    reciprocal = math.reciprocal
    sin = math.sin
    cos = math.cos
    tan = math.tan
    asin = arcsin = math.asin
    acos = arccos = math.acos
    atan = arctan = math.atan
    sinh = math.sinh
    cosh = math.cosh
    tanh = math.tanh
    sigmoid = math.sigmoid
    erf = math.erf
    relu = math.relu
    floor = math.floor
    ceil = math.ceil
    trunc = fix = math.trunc
    round = math.round
    sign = math.sign
    clamp = clip = math.clamp
    softmax = reductions.softmax
    log_softmax = reductions.log_softmax

    # In place --------------------------------------------------------------------------------

    add_ = __iadd__ = math.in_place(math.add)
    sub_ = __isub__ = math.in_place(math.sub)
    mul_ = __imul__ = math.in_place(math.mul)
    div_ = __itruediv__ = math.in_place(math.div)
    floor_divide_ = __ifloordiv__ = math.in_place(math.floor_divide)
    remainder_ = __imod__ = math.in_place(math.remainder)
    pow_ = __ipow__ = math.in_place(math.pow)
    bitwise_and_ = __iand__ = math.in_place(math.bitwise_and)
    bitwise_or_ = __ior__ = math.in_place(math.bitwise_or)
    bitwise_xor_ = __ixor__ = math.in_place(math.bitwise_xor)
    neg_ = math.in_place(math.neg)
    abs_ = math.in_place(math.abs)
    exp_ = math.in_place(math.exp)
    log_ = math.in_place(math.log)
    sqrt_ = math.in_place(math.sqrt)
    rsqrt_ = math.in_place(math.rsqrt)
    tanh_ = math.in_place(math.tanh)
    sigmoid_ = math.in_place(math.sigmoid)
    relu_ = math.in_place(math.relu)
    floor_ = math.in_place(math.floor)
    ceil_ = math.in_place(math.ceil)
    round_ = math.in_place(math.round)
    trunc_ = math.in_place(math.trunc)
    clamp_ = clip_ = math.in_place(math.clamp)
    lerp_ = math.in_place(math.lerp)
    addcmul_ = math.in_place(math.addcmul)
    addcdiv_ = math.in_place(math.addcdiv)
    masked_fill_ = math.in_place(selecting.masked_fill)
    uniform_ = random.uniform_
    normal_ = random.normal_
    bernoulli_ = random.bernoulli_
    scatter_ = math.in_place(writing.scatter)
    scatter_add_ = math.in_place(selecting.scatter_add)
    index_add_ = math.in_place(selecting.index_add)
    index_copy_ = math.in_place(selecting.index_copy)
    index_fill_ = math.in_place(selecting.index_fill)

    def copy_(self, src: Any, non_blocking: bool = False) -> Tensor:
        """Writes the values of `src`, broadcast and cast, to this Tensor."""
        if isinstance(src, TensorBase):
            own = self._shows_like(src) and not src.requires_grad
            node = self.node if own else transfer.to_device(src.node, self.device)
        else:
            node = creation.tensor(src, dtype=self.dtype, device=self.device).node
        if node.dtype is not self.dtype:
            node = to_dtype(node, self.dtype)
        return math.store("copy_", self, node)

    def _shows_like(self, other: TensorBase) -> bool:
        """Whether both are the same view of one memory: then copying changes nothing."""
        if other.cell is not self.cell or other.shape != self.shape:
            return False
        strides = zip(self.shape, self.strides, other.strides)
        if any(mine != theirs for size, mine, theirs in strides if size > 1):
            return False
        chains = [[step for step in x.chain if moves(step)] for x in (self, other)]
        if any(step[0].kind != "movement" for chain in chains for step in chain):
            return chains[0] == chains[1]  # an index that is on the device is not looked at
        base = self.cell.node.shape
        return first_position(base, self.chain) == first_position(base, other.chain)

    def fill_(self, value: Any) -> Tensor:
        """Writes one number to every element."""
        if isinstance(value, TensorBase):
            return self.copy_(value)
        node = self.node
        return math.store(
            "fill_", self, common.full_like(node, number_of("fill_", value, node.dtype))
        )

    def zero_(self) -> Tensor:
        """Writes zero to every element."""
        return self.fill_(0)

    # Reductions ------------------------------------------------------------------------------

    sum = reductions.sum
    mean = reductions.mean
    prod = reductions.prod
    max = reductions.max
    min = reductions.min
    amax = reductions.amax
    amin = reductions.amin
    argmax = reductions.argmax
    argmin = reductions.argmin
    any = reductions.any
    all = reductions.all
    var = reductions.var
    std = reductions.std
    norm = reductions.norm
    logsumexp = reductions.logsumexp
    count_nonzero = reductions.count_nonzero
    cumsum = reductions.cumsum
    cumprod = reductions.cumprod

    # Shape -----------------------------------------------------------------------------------

    reshape = shaping.reshape
    view = shaping.view
    flatten = shaping.flatten
    unflatten = shaping.unflatten
    squeeze = shaping.squeeze
    unsqueeze = shaping.unsqueeze
    transpose = swapaxes = swapdims = shaping.transpose
    permute = shaping.permute
    movedim = moveaxis = shaping.movedim
    t = shaping.t
    expand = shaping.expand
    expand_as = shaping.expand_as
    broadcast_to = shaping.broadcast_to
    repeat = shaping.repeat
    tile = shaping.tile
    chunk = shaping.chunk
    unbind = shaping.unbind
    narrow = shaping.narrow
    select = keys.select
    flip = shaping.flip
    roll = shaping.roll
    diagonal = shaping.diagonal
    unfold = shaping.unfold
    tril = shaping.tril
    triu = shaping.triu
    diag = shaping.diag
    contiguous = shaping.contiguous
    clone = shaping.clone
    repeat_interleave = shaping.repeat_interleave

    def split(self, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
        """See `tinygrad_cuda.split`."""
        return shaping.split(self, split_size, dim)

    def reshape_as(self, other: Tensor) -> Tensor:
        """`reshape` to the shape of another Tensor."""
        return self.reshape(other.node.shape)

    def view_as(self, other: Tensor) -> Tensor:
        """`view` with the shape of another Tensor."""
        return self.view(other.node.shape)

    # Indexing --------------------------------------------------------------------------------

    __getitem__ = keys.getitem
    __setitem__ = keys.setitem
    gather = selecting.gather
    take_along_dim = selecting.take_along_dim
    take = selecting.take
    index_select = selecting.index_select
    scatter = writing.scatter
    scatter_add = selecting.scatter_add
    index_add = selecting.index_add
    index_copy = selecting.index_copy
    index_fill = selecting.index_fill
    masked_fill = selecting.masked_fill
    masked_select = keys.masked_select
    nonzero = keys.nonzero

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """The element of self where `condition` holds, else of `other`."""
        result: Tensor = selecting.where(condition, self, other)
        return result

    # Products --------------------------------------------------------------------------------

    matmul = products.matmul
    mm = products.mm
    bmm = products.bmm
    mv = products.mv
    dot = products.dot
    outer = products.outer
    addmm = products.addmm

    # Device and dtype ------------------------------------------------------------------------

    to = transfer.to
    pin_memory = transfer.pin_memory
    is_pinned = transfer.is_pinned
    cpu = transfer.cpu
    cuda = transfer.cuda
    float = transfer.float
    double = transfer.double
    half = transfer.half
    bfloat16 = transfer.bfloat16
    int = transfer.int
    long = transfer.long
    short = transfer.short
    char = transfer.char
    byte = transfer.byte
    bool = transfer.bool

    def type_as(self, other: Tensor) -> Tensor:
        """The Tensor with the dtype of another."""
        result: Tensor = self.to(dtype=other.dtype)
        return result

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        """`tensor` with this Tensor's dtype and device."""
        return creation.tensor(data, **creation._like(self, options))

    def new(self, *data: Any, **options: Any) -> Tensor:
        """`Tensor(...)` with this Tensor's dtype and device."""
        return legacy.constructed(data, self.dtype, options.get("device") or self.device, "new")

    @keywords.creates
    def new_zeros(self, *size: Any, **options: Any) -> Tensor:
        """`zeros` with this Tensor's dtype and device."""
        return creation.zeros(*size, **creation._like(self, options))

    @keywords.creates
    def new_ones(self, *size: Any, **options: Any) -> Tensor:
        """`ones` with this Tensor's dtype and device."""
        return creation.ones(*size, **creation._like(self, options))

    @keywords.creates
    def new_full(self, size: Any, fill_value: Any, **options: Any) -> Tensor:
        """`full` with this Tensor's dtype and device."""
        return creation.full(size, fill_value, **creation._like(self, options))


# Methods of several Tensors that read one before it becomes an operand, which would be checked.
for _name in (
    "addbmm", "addbmm_", "addcdiv", "addcdiv_", "allclose", "as_strided_scatter", "baddbmm",
    "baddbmm_", "bmm", "diagonal_scatter", "equal", "expand_as", "index_add", "index_copy",
    "index_reduce", "index_reduce_", "inner", "is_same_size", "isclose", "kron", "masked_fill",
    "masked_fill_", "masked_scatter", "masked_scatter_", "masked_select", "orgqr", "ormqr", "put",
    "put_", "reshape_as", "resize_as_", "select_scatter", "slice_scatter", "take_along_dim",
    "type_as", "view_as", "where",
):  # fmt: skip
    setattr(Tensor, _name, takes_tensors(getattr(Tensor, _name), __name__, f"Tensor.{_name}"))


def _no_grad(op: str, tensor: Tensor) -> GradientError:
    return GradientError(
        op,
        "the tensor does not require grad",
        expect="a tensor through which gradients flow",
        actual=made_by(tensor.node),
        hint="call requires_grad_() on an input before computing, outside no_grad()",
    )


def _as_subclass(cls: type[Tensor], source: Tensor) -> Tensor:
    """A handle of a user's class on the cell of another Tensor."""
    made = object.__new__(cls)
    made.cell, made.chain, made._strides = source.cell, source.chain, source._strides
    made._node = made._retained = None
    return made


def _rebuild(
    array: Any, dtype: DType, device: str | Device, requires_grad: bool,
    strides: Shape | None = None,
) -> Tensor:  # fmt: skip
    result = creation.tensor(array, dtype=dtype, device=device, requires_grad=requires_grad)
    result._strides = strides
    return result

"""nn.utils.prune: parameters multiplied by masks of zeros and ones, with PyTorch's names.

A pruned parameter ``weight`` is stored as the parameter ``weight_orig`` and the buffer
``weight_mask``; their product is the attribute ``weight``, made again before each call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import normalize_axis
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import share_cell
from tinygrad_cuda.tensors.creation import ones_like
from tinygrad_cuda.tensors.random import rand, rand_like
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured",
    "PruningContainer", "RandomStructured", "RandomUnstructured", "custom_from_mask",
    "global_unstructured", "identity", "is_pruned", "l1_unstructured", "ln_structured",
    "random_structured", "random_unstructured", "remove",
]  # fmt: skip

Amount = int | float


class BasePruningMethod(ABC):
    """The base of ways to prune: subclasses write `compute_mask` and ``PRUNING_TYPE``.

    Attributes:
        PRUNING_TYPE: ``unstructured``: a mask of what earlier masks left; ``structured``: of the
            channels that they left, along `dim`; ``global``: of the whole tensor.
    """

    PRUNING_TYPE = "unstructured"
    _tensor_name: str

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of a tensor.

        Args:
            t: whose values say what is important.
            default_mask: what is zero already, of the shape of `t`.
        """

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    def apply_mask(self, module: Module) -> Tensor:
        """The product of the original parameter and its mask."""
        original = getattr(module, self._tensor_name + "_orig")
        product: Tensor = getattr(module, self._tensor_name + "_mask").to(original.dtype) * original
        return product

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None,
        **kwargs: Any,
    ) -> BasePruningMethod:  # fmt: skip
        """Prunes a parameter of a module, after what has been pruned of it before.

        Args:
            module: whose parameter it is.
            name: the parameter's.
            args, kwargs: of the method's constructor.
            importance_scores: looked at instead of the parameter's values, of its shape.

        Raises:
            ShapeError: the scores have another shape.
        """
        method = cls(*args, **kwargs)
        method._tensor_name = name
        earlier = next((m for _, m in _methods(module) if m._tensor_name == name), None)
        value = getattr(module, name)
        scores = value if importance_scores is None else importance_scores
        if scores.shape != value.shape:
            raise ShapeError(
                "prune", "the scores have another shape", expect=str(tuple(value.shape)),
                actual=str(tuple(scores.shape)),
            )  # fmt: skip
        with gradient_mode(False):
            if earlier is None:
                mask = method.compute_mask(scores.detach(), ones_like(value))
            else:
                whole = PruningContainer(earlier)
                whole.add_pruning_method(method)
                mask = whole.compute_mask(scores.detach(), getattr(module, name + "_mask").clone())
                method = whole
        if earlier is None:
            delattr(module, name)
            module.register_parameter(name + "_orig", value)
        else:
            _forget(module, name)
        module.register_buffer(name + "_mask", mask.to(value.dtype))
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """A tensor by itself, multiplied by the mask that this method gives it."""
        before = ones_like(t) if default_mask is None else default_mask
        mask = self.compute_mask(t if importance_scores is None else importance_scores, before)
        product: Tensor = t * mask.to(t.dtype)
        return product

    def remove(self, module: Module) -> None:
        """Makes the pruned values the parameter's own; original and mask are no more."""
        name = self._tensor_name
        original = module._parameters[name + "_orig"]
        with gradient_mode(False):
            share_cell(original, self.apply_mask(module))
        for gone in (name, name + "_orig", name + "_mask"):
            delattr(module, gone)
        setattr(module, name, original)


class PruningContainer(BasePruningMethod):
    """Several methods one after another, for one parameter."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        for method in args:
            for one in method if isinstance(method, PruningContainer) else (method,):
                self.add_pruning_method(one)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Adds a method for the same parameter.

        Raises:
            ArgumentError: it is for another one.
        """
        name = method._tensor_name
        if self._pruning_methods and name != self._tensor_name:
            raise ArgumentError(
                "prune", "the methods are for different parameters", expect=self._tensor_name,
                actual=name,
            )  # fmt: skip
        self._tensor_name = name
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: int) -> BasePruningMethod:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask with what the last method prunes of what is left.

        Raises:
            ArgumentError: the method's ``PRUNING_TYPE`` is none of the three.
        """
        method = self._pruning_methods[-1]
        if method.PRUNING_TYPE == "global":
            return method.compute_mask(t, default_mask)
        part: Any
        if method.PRUNING_TYPE == "unstructured":
            part = default_mask == 1
        elif method.PRUNING_TYPE == "structured":
            dim = normalize_axis("prune", getattr(method, "dim", -1), t.ndim)
            others = [axis for axis in range(t.ndim) if axis != dim]
            unpruned = default_mask.sum(dim=others) != 0 if others else default_mask != 0
            part = (slice(None),) * dim + (unpruned,)
        else:
            raise ArgumentError(
                "prune", "unknown PRUNING_TYPE", expect="unstructured, structured or global",
                actual=str(method.PRUNING_TYPE),
            )  # fmt: skip
        mask = default_mask.clone()
        mask[part] = method.compute_mask(t[part], default_mask[part]).to(mask.dtype)
        return mask


# Methods ------------------------------------------------------------------------------------------


class Identity(BasePruningMethod):
    """Prunes nothing: a mask to be replaced by one's own."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class CustomFromMask(BasePruningMethod):
    """Prunes by a mask that is given."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask: Tensor = default_mask * self.mask.to(default_mask.dtype)
        return mask


class RandomUnstructured(BasePruningMethod):
    """Prunes elements at random; `amount` is a number of them or a fraction."""

    def __init__(self, amount: Amount) -> None:
        self.amount = _checked(amount)

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return _without(default_mask, rand_like(t), _count(self.amount, t.numel()))


class L1Unstructured(BasePruningMethod):
    """Prunes the elements nearest to zero; `amount` is a number of them or a fraction."""

    def __init__(self, amount: Amount) -> None:
        self.amount = _checked(amount)

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return _without(default_mask, t.abs(), _count(self.amount, t.numel()))


class RandomStructured(BasePruningMethod):
    """Prunes channels along `dim` at random; `amount` is a number of them or a fraction."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Amount, dim: int = -1) -> None:
        self.amount, self.dim = _checked(amount), dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        dim = normalize_axis("prune", self.dim, t.ndim)
        order = rand(t.shape[dim], device=t.device)
        return _channels(default_mask, order, _count(self.amount, t.shape[dim]), dim)


class LnStructured(BasePruningMethod):
    """Prunes the channels along `dim` with the smallest norms of order `n`."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Amount, n: Any, dim: int = -1) -> None:
        self.amount, self.n, self.dim = _checked(amount), n, dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        dim = normalize_axis("prune", self.dim, t.ndim)
        others = tuple(axis for axis in range(t.ndim) if axis != dim)
        norms = t.norm(p=self.n, dim=others) if others else t.abs()
        return _channels(default_mask, norms, _count(self.amount, t.shape[dim]), dim)


def _checked(amount: Amount) -> Amount:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise DTypeError(
            "prune", "amount is no number", expect="an integer or a fraction",
            actual=type(amount).__name__,
        )  # fmt: skip
    if amount < 0 or (isinstance(amount, float) and amount > 1):
        raise ArgumentError(
            "prune", "amount is out of range", expect="an integer >= 0 or a fraction up to 1.0",
            actual=str(amount),
        )  # fmt: skip
    return amount


def _count(amount: Amount, size: int) -> int:
    """How many of `size` units are pruned."""
    count = amount if isinstance(amount, int) else round(amount * size)
    if count > size:
        raise ArgumentError(
            "prune", "amount is more than there is", expect=f"up to {size}", actual=str(amount)
        )
    return count


def _without(mask: Tensor, order: Tensor, count: int) -> Tensor:
    """The mask with zeros where the smallest numbers of `order` are."""
    if not count:
        return mask.clone()
    smallest = order.flatten().topk(count, largest=False).indices
    return mask.flatten().index_fill(0, smallest, 0).reshape(mask.shape)


def _channels(mask: Tensor, order: Tensor, count: int, dim: int) -> Tensor:
    """The mask with zeros in the channels where the smallest numbers of `order` are."""
    if not count:
        return mask.clone()
    return mask.index_fill(dim, order.topk(count, largest=False).indices, 0)


# Functions ----------------------------------------------------------------------------------------


def identity(module: Module, name: str) -> Module:
    """Stores a parameter as one that is pruned is stored, with a mask of ones."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: Amount) -> Module:
    """Prunes elements of a parameter at random.

    Args:
        module: whose parameter it is.
        name: the parameter's.
        amount: how many elements, or which fraction of them.
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Module, name: str, amount: Amount, importance_scores: Tensor | None = None
) -> Module:
    """Prunes the elements of a parameter that are nearest to zero.

    Args:
        module: whose parameter it is.
        name: the parameter's.
        amount: how many elements, or which fraction of them.
        importance_scores: looked at instead of the parameter's values.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = tc.nn.Linear(2, 1, device="cpu")
        >>> _ = layer.load_state_dict({"weight": tc.tensor([[3.0, 1.0]]), "bias": tc.zeros(1)})
        >>> l1_unstructured(layer, "weight", 0.5).weight.tolist()
        [[3.0, 0.0]]
    """
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: Amount, dim: int) -> Module:
    """Prunes channels of a parameter along `dim` at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: Amount, n: Any, dim: int,
    importance_scores: Tensor | None = None,
) -> Module:  # fmt: skip
    """Prunes the channels of a parameter along `dim` that have the smallest norms of order `n`."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prunes a parameter by a mask of its shape."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]], pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None, **kwargs: Any,
) -> None:  # fmt: skip
    """Prunes several parameters as if they were one vector.

    Args:
        parameters: modules and names.
        pruning_method: such as `L1Unstructured`.
        importance_scores: by module and name, looked at instead of the values.
        kwargs: of the method's constructor.

    Raises:
        ArgumentError: the method prunes channels.
    """
    pairs = list(parameters)
    scores = importance_scores or {}
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise ArgumentError(
            "global_unstructured", "the method prunes channels", expect="an unstructured method",
            actual=method.PRUNING_TYPE,
        )  # fmt: skip
    with gradient_mode(False):
        values = [getattr(*pair).detach() for pair in pairs]
        masks = [
            getattr(module, name + "_mask", ones_like(value))
            for (module, name), value in zip(pairs, values)
        ]
        looked_at = [scores.get(pair, value).detach() for pair, value in zip(pairs, values)]
        method._tensor_name = "of all"
        container = PruningContainer(method)
        whole = container.compute_mask(_vector(looked_at), _vector(masks))
        parts = whole.split([mask.numel() for mask in masks])
    for (module, name), mask, part in zip(pairs, masks, parts):
        custom_from_mask(module, name, part.reshape(mask.shape))


def _vector(values: list[Tensor]) -> Tensor:
    return cat([value.flatten() for value in values])


def is_pruned(module: Module) -> bool:
    """Whether a parameter of this module or of one below it is pruned."""
    return any(True for below in module.modules() for _ in _methods(below))


def remove(module: Module, name: str) -> Module:
    """Makes a parameter's pruned values its own; original and mask are no more.

    Raises:
        ArgumentError: the parameter is not pruned.
    """
    for key, method in _methods(module):
        if method._tensor_name == name:
            method.remove(module)
            del module._forward_pre_hooks[key]
            return module
    raise ArgumentError(
        "prune.remove", f"{name} is not pruned", expect="a pruned parameter of this module",
        actual=name,
    )  # fmt: skip


def _methods(module: Module) -> list[tuple[int, BasePruningMethod]]:
    hooks: dict[int, Any] = module.__dict__["_forward_pre_hooks"]
    return [(key, hook) for key, hook in hooks.items() if isinstance(hook, BasePruningMethod)]


def _forget(module: Module, name: str) -> None:
    """Takes away the hook of a parameter's earlier methods."""
    for key, method in _methods(module):
        if method._tensor_name == name:
            del module._forward_pre_hooks[key]

"""The adapter for libraries with PyTorch's names: ours and PyTorch's are the same text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.program import host_data, parts
from benchmarks.workload import (
    ALL,
    Array,
    Arrays,
    Function,
    ModelTraining,
    Operation,
    Repetition,
    Rule,
    Training,
    Update,
    Workload,
    drawn,
)


class Net:
    """The vocabulary of workloads, and arrays by name."""

    def __init__(self, library: Any, values: dict[str, Any]) -> None:
        self.library, self.functions, self.values = library, library.nn.functional, values
        for name in (
            "relu",
            "silu",
            "gelu",
            "cross_entropy",
            "mse_loss",
            "max_pool2d",
            "scaled_dot_product_attention",
        ):
            setattr(self, name, getattr(self.functions, name))
        for name in ("reshape", "cat", "sin", "cos", "tanh", "sqrt", "clamp", "sum", "mean"):
            setattr(self, name, getattr(library, name))
        self.conv2d_of = self.functions.conv2d

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def linear(self, x: Any, name: str) -> Any:
        return self.functions.linear(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def conv2d(self, x: Any, name: str, stride: int = 1, padding: int = 0) -> Any:
        weight, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return self.functions.conv2d(x, weight, bias, stride, padding)

    def batch_norm(self, x: Any, name: str) -> Any:
        parts = [self[f"{name}.{part}"] for part in ("mean", "var", "weight", "bias")]
        return self.functions.batch_norm(x, *parts, training=True)

    def batch_norm_of(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.functions.batch_norm(x, None, None, weight, bias, training=True)

    def group_norm(self, x: Any, name: str, groups: int) -> Any:
        weight, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return self.functions.group_norm(x, groups, weight, bias)

    def layer_norm_of(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.functions.layer_norm(x, x.shape[-1:], weight, bias)

    def rms_norm_of(self, x: Any, weight: Any) -> Any:
        return self.functions.rms_norm(x, x.shape[-1:], weight, eps=1e-6)

    def softmax(self, x: Any) -> Any:
        return self.functions.softmax(x, dim=-1)

    def take(self, table: str, t: Any) -> Any:
        return self.library.index_select(self[table], 0, t)

    def to_float(self, t: Any) -> Any:
        return t.to(self.library.float32)

    def double(self, x: Any) -> Any:
        return self.functions.interpolate(x, scale_factor=2, mode="nearest")


def optimizer(library: Any, rule: Rule, parameters: list[Any], **options: Any) -> Any:
    """The library's optimizer of this rule; `options` are of Adam and AdamW."""
    if rule.decay is not None:
        options["weight_decay"] = rule.decay
    if rule.kind == "adam":
        return library.optim.Adam(parameters, lr=rule.rate, **options)
    if rule.kind == "adamw":
        return library.optim.AdamW(parameters, lr=rule.rate, **options)
    options.pop("capturable", None)
    return library.optim.SGD(parameters, lr=rule.rate, momentum=rule.momentum, **options)


def set_precision(library: Any, workload: Workload) -> None:
    """Permits tf32 to the workloads that ask for it, and to no other."""
    permitted = getattr(workload, "precision", "ieee") == "tf32"
    library.backends.cuda.matmul.allow_tf32 = permitted
    library.backends.cudnn.allow_tf32 = permitted


class Work:
    """A workload's state on a device, and the plain program of one call.

    Attributes:
        resume: sets the library's switches as at the start.
        initial: parameters and buffers by name, as they are before the first call.
        call: takes what `data` gives and returns a tuple of results.
        data: the arguments of each call, in turn, on the device.
        feeds_back: the results are the next call's arguments.

    Args:
        library: `torch` or `tinygrad_cuda`.
        compile: applied to the function that is differentiated.
        channels_last: batches and weights of images lie in this order.
        options: for the optimizer.
    """

    def __init__(
        self,
        library: Any,
        workload: Workload,
        device: str,
        compile: Callable[[Any], Any] = lambda function: function,
        channels_last: bool = False,
        **options: Any,
    ) -> None:
        self.library, self.device, self.channels_last = library, device, channels_last
        self.resume = functools.partial(set_precision, library, workload)
        self.resume()
        self.trains = isinstance(workload, Training | ModelTraining | Update)
        self.feeds_back = isinstance(workload, Repetition)
        self.optimizer: Any = None
        dtype = getattr(workload, "dtype", "float32")
        if isinstance(workload, ModelTraining):
            self._build(workload)
        else:
            self._put_parts(workload)
        self.data = [tuple(self.put(x, dtype) for x in given) for given in host_data(workload)]
        if isinstance(workload, Training | ModelTraining | Update):
            weights = list(self.parameters.values())
            self.optimizer = optimizer(library, workload.rule, weights, **options)
        if isinstance(workload, ModelTraining):
            self.call = self.training(self.cast(compile(self.module), workload.precision))
        elif isinstance(workload, Training):
            loss = self.cast(compile(workload.loss), workload.precision)
            self.call = self.training(loss, self.net)
        elif isinstance(workload, Update):
            for name, parameter in self.parameters.items():
                parameter.grad = self.put(workload.gradients[name])
            self.call = self.update
        elif isinstance(workload, Repetition):
            self.call = self.repetition(compile(workload.advance))
        elif isinstance(workload, Operation):
            self.call = self.operation(workload)
        else:
            self.call = self.function(workload, compile(workload.function), dtype)

    def _put_parts(self, workload: Workload) -> None:
        """The arrays of a workload that is defined by functions of a `Net`."""
        parameters, buffers = parts(workload)
        self.initial: Arrays = {**parameters, **buffers}
        self.parameters = {
            k: self.put(v).requires_grad_(self.trains) for k, v in parameters.items()
        }
        self.buffers = {k: self.put(v) for k, v in buffers.items()}
        self.net = Net(self.library, {**self.parameters, **self.buffers})

    def _build(self, workload: ModelTraining) -> None:
        """The module on the device, with initial values that are equal in every library."""
        with self.library.device(self.device):
            module = workload.model(self.library)
        if self.channels_last:
            module = module.to(memory_format=self.library.channels_last)
        self.module = module
        self.parameters = dict(module.named_parameters())
        self.buffers = dict(module.named_buffers())
        shapes = tuple((name, tuple(p.shape)) for name, p in self.parameters.items())
        values = drawn(shapes, workload.deviation)
        with self.library.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.library.tensor(values[name], device=self.device))
        others = {name: np.array(buffer.cpu().numpy()) for name, buffer in self.buffers.items()}
        self.initial = {**values, **others}

    def cast(self, loss: Callable[..., Any], precision: str) -> Callable[..., Any]:
        """The loss, under autocast where products are of bfloat16."""
        if precision != "bf16":
            return loss
        library, kind = self.library, self.device.split(":")[0]

        def in_bfloat16(*given: Any) -> Any:
            with library.autocast(kind, dtype=library.bfloat16):
                return loss(*given)

        return in_bfloat16

    def put(self, array: Array, dtype: str = "float32") -> Any:
        """A copy on the device; floating arrays in `dtype`, index arrays as they are."""
        tensor = self.laid_out(self.library.tensor(array, device=self.device))
        return tensor.to(getattr(self.library, dtype)) if array.dtype.kind == "f" else tensor

    def laid_out(self, tensor: Any) -> Any:
        """The tensor, its channels last where this variant wants images so."""
        if not self.channels_last or tensor.ndim != 4:
            return tensor
        return tensor.contiguous(memory_format=self.library.channels_last)

    def training(self, loss: Callable[..., Any], *first: Any) -> Callable[..., tuple[Any, ...]]:
        # A compiled step looks at what it refers to before each call: not at the initial arrays.
        optimizer = self.optimizer

        def step(*batch: Any) -> tuple[Any, ...]:
            optimizer.zero_grad()
            value = loss(*first, *batch)
            value.backward()
            optimizer.step()
            return (value.detach(),)

        return step

    def update(self) -> tuple[Any, ...]:
        self.optimizer.step()
        return (self.parameters["places"].detach()[:1],)

    def repetition(self, advance: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        def step(*state: Any) -> tuple[Any, ...]:
            with self.library.no_grad():
                return tuple(advance(self.net, *state))

        return step

    def function(
        self, workload: Function, function: Callable[..., Any], dtype: str
    ) -> Callable[..., tuple[Any, ...]]:
        if workload.cotangent is None:

            def forward(*inputs: Any) -> tuple[Any, ...]:
                with self.library.no_grad():
                    return (function(self.net, *inputs),)

            return forward
        cotangent = self.put(workload.cotangent, dtype)
        floating = [x.dtype.kind == "f" for x in workload.inputs]
        for given in self.data:
            for x, is_floating in zip(given, floating):
                x.requires_grad_(is_floating)

        def both(*inputs: Any) -> tuple[Any, ...]:
            out = function(self.net, *inputs)
            wanted = [x for x, is_floating in zip(inputs, floating) if is_floating]
            gradients = self.library.autograd.grad(out, wanted, cotangent)
            return (out.detach(), *gradients)

        return both

    def operation(self, workload: Operation) -> Callable[..., tuple[Any, ...]]:
        """The function, it and all gradients, or one gradient of results that are there."""
        function = functools.partial(workload.function, self.net)
        if workload.gradient is None:

            def forward(*inputs: Any) -> tuple[Any, ...]:
                with self.library.no_grad():
                    return (function(*inputs),)

            return forward
        cotangent = self.put(workload.cotangent(), workload.dtype)
        grad = self.library.autograd.grad
        if workload.gradient == ALL:

            def both(*inputs: Any) -> tuple[Any, ...]:
                out = function(*inputs)
                return (out.detach(), *grad(out, inputs, cotangent))

            for given in self.data:
                for x in given:
                    x.requires_grad_()
            return both
        for given in self.data:
            given[workload.gradient].requires_grad_()
        self.data = [(given[workload.gradient], function(*given)) for given in self.data]

        def backward(wanted: Any, out: Any) -> tuple[Any, ...]:
            return grad(out, (wanted,), cotangent, retain_graph=True)

        return backward

    def on_host(self, results: tuple[Any, ...]) -> list[Array]:
        """Results as float32 NumPy arrays; of big ones the first 65536 values."""
        found = []
        for value in results:
            part = value.detach().reshape(-1)[:65536].to(self.library.float32)
            found.append(np.array(part.cpu().numpy()))
        return found

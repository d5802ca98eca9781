"""tinygrad: a step through TinyJit."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version as version_of
from typing import Any

import numpy as np
from tinygrad import Context, Device, Tensor, TinyJit, dtypes, nn

from benchmarks.peers.program import Program, Variant, host_data, in_full_precision, parts
from benchmarks.workload import Array, Function, Repetition, Training, Update, Workload


def version() -> str:
    return version_of("tinygrad")


class Net:
    """The vocabulary of workloads, and Tensors by name."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.values = values
        for name in ("relu", "silu", "tanh", "sqrt", "sin", "cos", "reshape", "clamp", "mean"):
            setattr(self, name, getattr(Tensor, name))

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def gelu(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + (x * 0.5**0.5).erf())

    def sum(self, x: Tensor, axis: int | None) -> Tensor:
        return x.sum(axis)

    def softmax(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def cat(self, tensors: tuple[Tensor, ...], axis: int) -> Tensor:
        return tensors[0].cat(*tensors[1:], dim=axis)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x.linear(self[f"{name}.weight"].T, self[f"{name}.bias"])

    def conv2d(self, x: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        weight, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return x.conv2d(weight, bias, stride=stride, padding=padding)

    def conv2d_of(self, x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
        return x.conv2d(weight, stride=stride, padding=padding)

    def max_pool2d(self, x: Tensor, size: int) -> Tensor:
        return x.max_pool2d((size, size))

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        mean = x.mean((0, 2, 3))
        var = (x - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3))
        count = x.numel() // x.shape[1]
        for part, new in (("mean", mean), ("var", var * (count / (count - 1)))):
            old = self[f"{name}.{part}"]
            old.assign(0.9 * old + 0.1 * new.detach())
        weight, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return x.batchnorm(weight, bias, mean, (var + 1e-5).rsqrt())

    def batch_norm_of(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean = x.mean((0, 2, 3))
        var = (x - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3))
        return x.batchnorm(weight, bias, mean, (var + 1e-5).rsqrt())

    def group_norm(self, x: Tensor, name: str, groups: int) -> Tensor:
        y = x.reshape(x.shape[0], groups, -1).layernorm(eps=1e-5).reshape(x.shape)
        weight, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return y * weight.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)

    def layer_norm_of(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x.layernorm(eps=1e-5) * weight + bias

    def rms_norm_of(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(x.dtype) * weight

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        return x.sparse_categorical_crossentropy(labels)

    def mse_loss(self, x: Tensor, target: Tensor) -> Tensor:
        return (x - target).square().mean()

    def take(self, table: str, t: Tensor) -> Tensor:
        return self[table][t]

    def to_float(self, t: Tensor) -> Tensor:
        return t.float()

    def double(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


class Jitted(Program):
    """The whole step through TinyJit; inputs are realized Tensors."""

    def __init__(self, workload: Workload, device: str) -> None:
        self.workload = workload
        self.dtype = getattr(workload, "dtype", "float32")
        self.parameters, buffers = ({k: put(v) for k, v in a.items()} for a in parts(workload))
        self.net = Net({**self.parameters, **buffers})
        self.buffers = list(buffers.values())
        # tinygrad wants memory that may be written to.
        self.host = [tuple(map(writable, given)) for given in host_data(workload)]
        self.fresh = isinstance(workload, Training)
        self.given = tuple(put(x, self.dtype) for x in self.host[0])
        self.places = [x._buffer() for x in self.given]
        self.step = TinyJit(self._step(workload))

    def _step(self, workload: Workload) -> Callable[..., Any]:
        net = self.net
        if isinstance(workload, Training | Update):
            rule, weights = workload.rule, list(self.parameters.values())
            optimizer = (
                nn.optim.Adam(weights, lr=rule.rate)
                if rule.kind == "adam"
                else nn.optim.SGD(weights, lr=rule.rate, momentum=rule.momentum)
            )
        if isinstance(workload, Training):

            def train(*batch: Tensor) -> tuple[Tensor, ...]:
                optimizer.zero_grad()
                loss = workload.loss(net, *batch).backward()
                return (loss.realize(*optimizer.schedule_step(), *self.buffers),)

            return train
        if isinstance(workload, Update):
            gradients = {name: put(array) for name, array in workload.gradients.items()}

            def update() -> tuple[Tensor, ...]:
                for name, parameter in self.parameters.items():
                    parameter.grad = gradients[name]
                optimizer.step()
                return (self.parameters["places"],)

            return update
        if isinstance(workload, Repetition):
            state, self.given = self.given, ()

            def advance() -> tuple[Tensor, ...]:
                new = [x.contiguous() for x in workload.advance(net, *state)]
                Tensor.realize(*(old.assign(x) for old, x in zip(state, new)))
                return state

            return advance
        return self._function(workload)

    def _function(self, workload: Function) -> Callable[..., Any]:
        if workload.cotangent is None:
            return lambda *inputs: (workload.function(self.net, *inputs).realize(),)
        cotangent = put(workload.cotangent, self.dtype)
        floating = [x.dtype.kind == "f" for x in workload.inputs]

        def both(*inputs: Tensor) -> tuple[Tensor, ...]:
            out = workload.function(self.net, *inputs)
            wanted = [x for x, is_floating in zip(inputs, floating) if is_floating]
            results = (out, *out.gradient(*wanted, gradient=cotangent.cast(out.dtype)))
            Tensor.realize(*results)
            return results

        return both

    def call(self, number: int) -> None:
        if self.fresh:
            for buffer, array in zip(self.places, self.host[number % len(self.host)]):
                buffer.allocator._copyin(buffer._buf, memoryview(array).cast("B"))
        self.call_on_device(number)

    def call_on_device(self, number: int) -> None:
        with Context(TRAINING=1):
            self.outputs = self.step(*self.given)

    def results(self) -> list[Array]:
        if isinstance(self.workload, Update):
            self.outputs = (self.outputs[0][:1],)
        return [x.reshape(-1)[:65536].float().numpy() for x in self.outputs]

    def synchronize(self) -> None:
        Device[Device.DEFAULT].synchronize()


def writable(array: Array) -> Array:
    """A copy, since tinygrad takes no read-only memory; index arrays as int32."""
    return np.array(array, None if array.dtype.kind == "f" else np.int32)


def put(array: Array, dtype: str = "float32") -> Tensor:
    """A realized Tensor; floating arrays in `dtype`, index arrays as int32."""
    tensor = Tensor(writable(array))
    return (tensor.cast(getattr(dtypes, dtype)) if array.dtype.kind == "f" else tensor).realize()


VARIANTS = {"tinygrad": Variant("tinygrad TinyJit", Jitted, in_full_precision)}

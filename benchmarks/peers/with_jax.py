"""JAX: a call of a jitted function, and many steps in one call by lax.scan."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import log
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from benchmarks.peers.program import Program, Variant, host_data, in_full_precision, parts
from benchmarks.workload import (
    Array,
    Function,
    Repetition,
    Rule,
    Training,
    Update,
    Workload,
)

jax.config.update("jax_default_matmul_precision", "highest")
FORMATS = ("NCHW", "OIHW", "NCHW")


def version() -> str:
    return str(jax.__version__)


class Net:
    """The vocabulary of workloads; buffers change by being replaced here."""

    relu, silu, softmax = map(staticmethod, (jax.nn.relu, jax.nn.silu, jax.nn.softmax))
    gelu = staticmethod(partial(jax.nn.gelu, approximate=False))
    tanh, sqrt, sin, cos = map(staticmethod, (jnp.tanh, jnp.sqrt, jnp.sin, jnp.cos))
    reshape, clamp, cat = map(staticmethod, (jnp.reshape, jnp.clip, jnp.concatenate))
    sum, mean = map(staticmethod, (jnp.sum, jnp.mean))

    def __init__(self, parameters: Any, buffers: Any) -> None:
        self.parameters, self.buffers = parameters, dict(buffers)

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name] if name in self.parameters else self.buffers[name]

    def __contains__(self, name: str) -> bool:
        return name in self.parameters or name in self.buffers

    def linear(self, x: Any, name: str) -> Any:
        return x @ self[f"{name}.weight"].T + self[f"{name}.bias"]

    def conv2d(self, x: Any, name: str, stride: int = 1, padding: int = 0) -> Any:
        out = self.conv2d_of(x, self[f"{name}.weight"], stride, padding)
        return out + self[f"{name}.bias"][:, None, None]

    def conv2d_of(self, x: Any, weight: Any, stride: int = 1, padding: int = 0) -> Any:
        around = [(padding, padding)] * 2
        return lax.conv_general_dilated(x, weight, (stride,) * 2, around, dimension_numbers=FORMATS)

    def max_pool2d(self, x: Any, size: int) -> Any:
        window = (1, 1, size, size)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")

    def batch_norm(self, x: Any, name: str) -> Any:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        count = x.size // x.shape[1]
        for part, new in (("mean", mean), ("var", var * count / (count - 1))):
            old = self.buffers[f"{name}.{part}"]
            self.buffers[f"{name}.{part}"] = 0.9 * old + 0.1 * lax.stop_gradient(new)
        return self._normalized(x, mean, var, self[f"{name}.weight"], self[f"{name}.bias"])

    def batch_norm_of(self, x: Any, weight: Any, bias: Any) -> Any:
        return self._normalized(x, x.mean((0, 2, 3)), x.var((0, 2, 3)), weight, bias)

    def _normalized(self, x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
        mean, var, weight, bias = (part[:, None, None] for part in (mean, var, weight, bias))
        return (x - mean) * lax.rsqrt(var + 1e-5) * weight + bias

    def group_norm(self, x: Any, name: str, groups: int) -> Any:
        parts = x.reshape(x.shape[0], groups, -1)
        mean, var = parts.mean(-1, keepdims=True), parts.var(-1, keepdims=True)
        x = ((parts - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)
        return x * self[f"{name}.weight"][:, None, None] + self[f"{name}.bias"][:, None, None]

    def layer_norm_of(self, x: Any, weight: Any, bias: Any) -> Any:
        wide = x.astype(jnp.float32)
        mean, var = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
        return ((wide - mean) * lax.rsqrt(var + 1e-5) * weight + bias).astype(x.dtype)

    def rms_norm_of(self, x: Any, weight: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
        return (wide * scale * weight).astype(x.dtype)

    def cross_entropy(self, x: Any, labels: Any) -> Any:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1)
        return -chosen.mean()

    def mse_loss(self, x: Any, target: Any) -> Any:
        return ((x - target) ** 2).mean()

    def take(self, table: str, t: Any) -> Any:
        return self[table][t]

    def to_float(self, t: Any) -> Any:
        return t.astype(jnp.float32)

    def double(self, x: Any) -> Any:
        return x.repeat(2, 2).repeat(2, 3)


def updated(rule: Rule, parameters: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    """One step of the optimizer: PyTorch's formulas."""
    each = jax.tree_util.tree_map
    if rule.kind == "sgd":
        if not rule.momentum:
            return each(lambda p, g: p - rule.rate * g, parameters, gradients), state
        state = each(lambda m, g: rule.momentum * m + g, state, gradients)
        return each(lambda p, m: p - rule.rate * m, parameters, state), state
    mean, square, count = state
    count = count + 1
    mean = each(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
    square = each(lambda v, g: 0.999 * v + 0.001 * g * g, square, gradients)
    # 1 - 0.999**count, without what float32 loses of it.
    first, second = -jnp.expm1(count * log(0.9)), jnp.sqrt(-jnp.expm1(count * log(0.999)))

    def moved(p: Any, m: Any, v: Any) -> Any:
        return p - rule.rate / first * m / (jnp.sqrt(v) / second + 1e-8)

    return each(moved, parameters, mean, square), (mean, square, count)


def beginning(rule: Rule, parameters: Any) -> Any:
    """The optimizer's state before the first step."""
    zeros = jax.tree_util.tree_map(jnp.zeros_like, parameters)
    if rule.kind == "sgd":
        return zeros if rule.momentum else ()
    return zeros, jax.tree_util.tree_map(jnp.zeros_like, parameters), jnp.zeros((), jnp.float32)


Step = Callable[..., tuple[Any, tuple[Any, ...]]]


def step_of(workload: Workload) -> Step:
    """The pure function of one step: (state, data) to (state, results)."""
    if isinstance(workload, Training):

        def train(state: Any, batch: Any) -> tuple[Any, tuple[Any, ...]]:
            parameters, buffers, moments = state

            def loss(parameters: Any) -> tuple[Any, Any]:
                net = Net(parameters, buffers)
                return workload.loss(net, *batch), net.buffers

            (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
            parameters, moments = updated(workload.rule, parameters, gradients, moments)
            return (parameters, new, moments), (value,)

        return train
    if isinstance(workload, Update):

        def update(state: Any, gradients: Any) -> tuple[Any, tuple[Any, ...]]:
            state = updated(workload.rule, state[0], gradients, state[1])
            return state, (state[0]["places"][:1],)

        return update
    if isinstance(workload, Repetition):

        def advance(state: Any, tables: Any) -> tuple[Any, tuple[Any, ...]]:
            state = tuple(workload.advance(Net(*tables), *state))
            return state, ()

        return advance
    return partial(_function, workload)


def _function(workload: Function, state: Any, inputs: Any) -> tuple[Any, tuple[Any, ...]]:
    *inputs, cotangent = inputs
    net = Net({}, {})
    if workload.cotangent is None:
        return state, (workload.function(net, *inputs),)
    wanted = [number for number, x in enumerate(workload.inputs) if x.dtype.kind == "f"]

    def of_wanted(*values: Any) -> Any:
        given = list(inputs)
        for number, value in zip(wanted, values):
            given[number] = value
        return workload.function(net, *given)

    out, back = jax.vjp(of_wanted, *(inputs[number] for number in wanted))
    return state, (out, *back(cotangent.astype(out.dtype)))


class Jitted(Program):
    """One call of a jitted function a step; state stays on the device."""

    def __init__(self, workload: Workload, device: str) -> None:
        parameters, buffers = (jax.device_put(dict(values)) for values in parts(workload))
        self.workload, self.fresh = workload, isinstance(workload, Training)
        self.host = host_data(workload)
        self.given: Any
        if isinstance(workload, Training):
            self.state = (parameters, buffers, beginning(workload.rule, parameters))
            self.given = jax.device_put(self.host[0])
        elif isinstance(workload, Update):
            self.state = (parameters, beginning(workload.rule, parameters))
            self.given = jax.device_put(dict(workload.gradients))
        elif isinstance(workload, Repetition):
            self.state, self.given = jax.device_put(workload.state), (parameters, buffers)
        else:
            cotangent = 0.0 if workload.cotangent is None else workload.cotangent
            arrays = [*workload.inputs, np.asarray(cotangent, np.float32)]
            self.state = ()
            kinds = [workload.dtype if x.dtype.kind == "f" else "int32" for x in arrays]
            self.given = [jnp.asarray(x).astype(kind) for x, kind in zip(arrays, kinds)]
        self.step = jax.jit(step_of(workload), donate_argnums=0)

    def call(self, number: int) -> None:
        given = self.host[number % len(self.host)] if self.fresh else self.given
        self.state, self.outputs = self.step(self.state, given)

    def call_on_device(self, number: int) -> None:
        self.state, self.outputs = self.step(self.state, self.given)

    def results(self) -> list[Array]:
        outputs = self.state if isinstance(self.workload, Repetition) else self.outputs
        return [np.array(x.reshape(-1)[:65536], np.float32) for x in outputs]

    def synchronize(self) -> None:
        jax.block_until_ready((self.state, getattr(self, "outputs", ())))


class Scanned(Jitted):
    """Many steps in one call over batches on the device."""

    def __init__(self, workload: Training | Repetition, device: str) -> None:
        super().__init__(workload, device)
        self.steps, one = workload.together, step_of(workload)
        if self.fresh:
            self.given = tuple(jnp.stack(arrays) for arrays in zip(*self.host))

        def many(state: Any, given: Any) -> Any:
            def turn(state: Any, number: Any) -> Any:
                count = len(self.host)
                data = [x[number % count] for x in given] if self.fresh else given
                return one(state, data)

            return lax.scan(turn, state, jnp.arange(self.steps))

        self.step = jax.jit(many, donate_argnums=0)
        self.call = self.call_on_device  # type: ignore[method-assign]


def _scans(workload: Workload) -> bool:
    return isinstance(workload, Training | Repetition) and in_full_precision(workload)


VARIANTS = {
    "jax": Variant("JAX jit", Jitted, in_full_precision),
    "jax_scan": Variant("JAX lax.scan", Scanned, _scans),
}

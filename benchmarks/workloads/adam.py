"""Adam's step alone on the 124 M parameters of GPT-2, in its 148 arrays."""

from __future__ import annotations

from benchmarks.workload import Rule, Update, normal


def shapes(layers: int, width: int, words: int, context: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"words": (words, width), "places": (context, width)}
    for layer in range(layers):
        for name, inputs, outputs in (
            ("qkv", width, 3 * width), ("projection", width, width),
            ("wide", width, 4 * width), ("narrow", 4 * width, width),
        ):  # fmt: skip
            found[f"{layer}.{name}.weight"] = (inputs, outputs)
            found[f"{layer}.{name}.bias"] = (outputs,)
        for name in ("norm1", "norm2"):
            found |= {f"{layer}.{name}.{part}": (width,) for part in ("weight", "bias")}
    return found | {"norm.weight": (width,), "norm.bias": (width,)}


def update(smoke: bool) -> Update:
    sizes = shapes(1, 8, 32, 16) if smoke else shapes(12, 768, 50257, 1024)
    parameters = {name: normal(shape, 0) for name, shape in sizes.items()}
    gradients = {name: normal(shape, 1) for name, shape in sizes.items()}
    return Update(parameters, gradients, Rule("adam", 1e-4))


WORKLOADS = {"adam_124m": update}

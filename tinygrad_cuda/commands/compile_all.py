"""`python -m tinygrad_cuda compile-all`: sample programs through NVRTC, for GPUs not at hand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.backend.cuda.compiler import (
    REPORT,
    Resources,
    architecture_of,
    compile_many,
    resources,
)
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.realize import explain
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.target import ARCHITECTURES, Target

F = nn.functional


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument(
        "--arch", default="sm_75,sm_90", metavar="NAMES",
        help=f"by commas, of {', '.join(ARCHITECTURES)} (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help=f"some of the sample programs, by commas: {', '.join(PROGRAMS)}",
    )
    parser.add_argument("--all", action="store_true", help="a line for each kernel")


def run(options: argparse.Namespace) -> int:
    """0; a kernel that does not compile is an error."""
    archs = _chosen("--arch", options.arch, list(ARCHITECTURES))
    names = _chosen("--only", options.only, list(PROGRAMS)) if options.only else list(PROGRAMS)
    for arch in archs:
        for name in names:
            table = compiled(PROGRAMS[name], arch)
            print(summary_line(arch, name, table))
            for kernel, used in table.items():
                spilled = used.spill_stores + used.spill_loads
                if options.all or spilled:
                    taken = f"{used.registers:>3} registers {used.shared:>6} bytes shared"
                    print(f"    {taken} {spilled:>6} bytes spilled  {kernel}")
    return 0


def _chosen(option: str, given: str, names: list[str]) -> list[str]:
    chosen = given.split(",")
    for name in chosen:
        if name not in names:
            raise ArgumentError(
                "compile-all", f"{option} names nothing that is here",
                expect=f"of {', '.join(names)}", actual=name,
            )  # fmt: skip
    return chosen


def compiled(program: Callable[[], Iterator[tc.Tensor]], arch: str) -> dict[str, Resources]:
    """What each kernel of a sample program takes on an architecture."""
    with tc.device("cpu"):
        _, plan = explain([tensor.node for tensor in program()])
    assert plan is not None
    units = lower(plan, Target.of_architecture((int(arch[3:-1]), int(arch[-1])))).units()
    table: dict[str, Resources] = {}
    by_arch: dict[str, list[str]] = {}
    for unit in units:
        by_arch.setdefault(architecture_of(unit, arch), []).append(unit)
    for own, texts in by_arch.items():
        for binary in compile_many(texts, own, REPORT):
            table |= resources(binary.log)
    return table


def summary_line(arch: str, name: str, table: dict[str, Resources]) -> str:
    """One program on one architecture."""
    spilling = sum(bool(used.spill_stores) for used in table.values())
    most = max(used.registers for used in table.values())
    return (
        f"{arch:<7} {name:<12} {len(table):>4} kernels, {most:>3} registers at most, "
        f"{spilling} with spills"
    )


# Sample programs: the values to compute, with gradients ---------------------------------------


def _gradients(model: nn.Module, loss: tc.Tensor) -> Iterator[tc.Tensor]:
    loss.backward()
    yield loss
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad


def _mlp() -> Iterator[tc.Tensor]:
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    labels = tc.zeros(64, dtype=tc.int64)
    return _gradients(model, F.cross_entropy(model(tc.ones(64, 784)), labels))


def _lenet() -> Iterator[tc.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 10),
    )  # fmt: skip
    labels = tc.zeros(64, dtype=tc.int64)
    return _gradients(model, F.cross_entropy(model(tc.ones(64, 1, 28, 28)), labels))


def _transformer(dtype: tc.dtype) -> Iterator[tc.Tensor]:
    model = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.1).to(dtype)
    return _gradients(model, model(tc.ones(4, 64, 128, dtype=dtype)).sum())


def _lstm() -> Iterator[tc.Tensor]:
    model = nn.LSTM(32, 64)
    return _gradients(model, model(tc.ones(8, 16, 32))[0].sum())


def _embedding() -> Iterator[tc.Tensor]:
    model = nn.Sequential(nn.Embedding(1000, 64), nn.LayerNorm(64))
    values = model(tc.zeros(8, 32, dtype=tc.int64)).cumsum(1)
    return _gradients(model, values.sort(-1)[0].sum())


PROGRAMS: dict[str, Callable[[], Iterator[tc.Tensor]]] = {
    "mlp": _mlp,
    "lenet": _lenet,
    "transformer": lambda: _transformer(tc.float32),
    "bfloat16": lambda: _transformer(tc.bfloat16),
    "lstm": _lstm,
    "embedding": _embedding,
}

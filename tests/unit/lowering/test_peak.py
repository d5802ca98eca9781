"""What a plan says of its memory before it runs."""

from __future__ import annotations

import pytest
from programs import TARGET, Inputs, family, gradients, times, variable

import tinygrad_cuda as tc
from lab.step_memory import pretended_h200, step_of
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType, bfloat16, float32
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.schedule.peak_memory import MemoryUse, memory_use


def memory_of(program: Program) -> MemoryUse:
    lowered = lower(program, TARGET)
    return memory_use(program.inputs, lowered.schedule, lowered.arena)


def test_the_peak_of_a_chain_of_products() -> None:
    """Each is read by the next one alone: at most two are there, and the larger comes first."""
    new = Inputs()
    x = new(64, 32)
    first = contraction.matmul(x, new(32, 256))  # 64 KiB
    second = contraction.matmul(first, new(256, 128))  # 32 KiB
    third = contraction.matmul(second, new(128, 16))  # 4 KiB
    last = contraction.matmul(third, new(16, 8))
    memory = memory_of(new.program(last))
    assert memory.inputs == 4 * (64 * 32 + 32 * 256 + 256 * 128 + 128 * 16 + 16 * 8)
    assert memory.outputs == 4 * 64 * 8
    assert memory.peak is not None
    assert (memory.peak.kernel, memory.peak.nbytes) == (1, 96 << 10)
    assert [(o.node, o.writer, o.reader) for o in memory.peak.owners] == [
        (first, 0, 1), (second, 1, 2),
    ]  # fmt: skip
    text = str(memory).splitlines()
    assert text[0].endswith("between kernels 96 KiB, most at kernel 1: 96 KiB")
    assert text[1].split(",")[:3] == [
        "      64 KiB  matmul (64",
        " 256) float32",
        " kernels 0 to 1",
    ]


def wide_step(layers: int, rows: int, width: int) -> Program:
    """Forward, backward and updates with decayed weights, of layers with ReLU."""
    new = Inputs()
    x = new(rows, width)
    weights = [new(width, width) for _ in range(layers)]
    leaves = [variable(weight) for weight in weights]
    h = x
    for leaf in leaves:
        h = contraction.matmul(h, contraction.transpose(leaf))
        h = ew.maximum(h, common.full_like(h, 0))
    loss = rd.sum(ew.mul(h, h), axes=(0, 1))
    found = gradients(loss, leaves)
    with gradient_mode(False):
        steps = [
            common.assign(weight, ew.sub(times(weight, 0.99), times(gradient, 0.1)))
            for weight, gradient in zip(weights, found)
        ]
    places = {1 + k: 1 + k for k in range(layers)}
    return new.program(loss, *steps, overwrites=places)


def test_gradients_of_weights_by_tf32_do_not_wait_for_the_end_of_the_backward_pass() -> None:
    """Of each layer an activation and two masks are there, but gradients of two layers alone."""
    layers, size = 8, 1024 * 1024 * 4
    with settings.override(matmul_precision="high"):
        memory = memory_of(wide_step(layers, 1024, 1024))
    assert memory.peak is not None
    assert memory.peak.nbytes <= layers * (size + size // 2) + 2 * size


def test_results_in_place_are_no_new_memory() -> None:
    new = Inputs()
    x = new(64, 32, dtype=bfloat16)
    step = common.assign(x, ew.tanh(times(x, 2.0)))
    memory = memory_of(new.program(step, overwrites={0: 0}))
    assert memory == (2 * 64 * 32, 0, 0, None)


@pytest.mark.parametrize("name", list(family()))
def test_no_layout_takes_less_than_the_peak(name: str) -> None:
    memory = memory_of(family()[name])
    if memory.peak is not None:
        kernel, nbytes, owners = memory.peak
        assert memory.arena >= nbytes == sum(owner.nbytes for owner in owners)
        assert all(owner.writer <= kernel <= owner.reader for owner in owners)


def test_the_parts_of_a_split_sum_are_an_owner() -> None:
    """A long product of few columns is split; its parts are at the peak with its operand."""
    new = Inputs()
    x = ew.exp(new(1 << 14, 128))
    memory = memory_of(new.program(contraction.matmul(contraction.transpose(x), x)))
    assert memory.peak is not None
    scratch, others = (
        [owner for owner in memory.peak.owners if owner.scratch is own] for own in (True, False)
    )
    assert [(owner.node, owner.nbytes) for owner in others] == [(x, 4 * 128 << 14)]
    assert [owner.node.op for owner in scratch] == [contraction.matmul]
    assert memory.peak.nbytes == sum(owner.nbytes for owner in memory.peak.owners)
    assert f"  scratch of matmul (128, 128) float32, kernels {memory.peak.kernel} to" in str(memory)


@pytest.mark.parametrize(("dtype", "held"), [(float32, 1), (bfloat16, 0)])
def test_the_first_part_of_a_split_sum_lies_in_its_result(dtype: DType, held: int) -> None:
    """So memory between the stages is that of the others; 16 bits of a result hold no sum."""
    new = Inputs()
    product = contraction.matmul(new(32, 4096, dtype=dtype), new(4096, 32, dtype=dtype))
    lowered = lower(new.program(product), TARGET)
    (kernel,) = lowered.schedule.kernels
    assert kernel.choice is not None
    assert kernel.choice.cut.slices == 64
    assert lowered.arena.nbytes == (64 - held) * 32 * 32 * 4


@pytest.mark.parametrize(
    ("name", "most"),
    [("resnet18_tf32", 1268), ("resnet18_bf16", 690), ("resnet", 566), ("mlp_4096_bf16", 902)],
)
def test_layouts_of_training_steps_leave_few_gaps(name: str, most: int) -> None:
    """The arena is hardly larger than what is in it at once; MiB of all that a step takes."""
    memory = step_of(name).memory
    assert memory.peak is not None
    assert memory.arena <= 1.02 * memory.peak.nbytes
    assert memory.inputs + memory.outputs + memory.arena <= most << 20


def test_a_plan_for_an_h200_leaves_no_permission() -> None:
    """A workload permits or forbids tf32; what follows has what was there before."""
    before = tc.get_float32_matmul_precision(), tc.backends.cudnn.allow_tf32
    step_of("mlp_4096_bf16")
    assert (tc.get_float32_matmul_precision(), tc.backends.cudnn.allow_tf32) == before
    assert before[1]


@pytest.mark.parametrize("fused", [True, False])
def test_logits_of_a_large_vocabulary_are_stored_once_in_half(fused: bool) -> None:
    """Under autocast; their gradient lies over them."""
    rows, classes, width = 2048, 16384, 64
    F = tc.nn.functional
    with pretended_h200() as found:
        x, weight = (
            tc.zeros(size, width, device="emu", requires_grad=True) for size in (rows, classes)
        )
        labels = tc.zeros(rows, dtype=tc.int64, device="emu")
        with tc.autocast("emu", dtype=tc.bfloat16):
            if fused:
                loss = F.linear_cross_entropy(x, weight, labels)
            else:
                loss = F.cross_entropy(F.linear(x, weight), labels)
        loss.backward()
        realize_all()
    memory = max((plan.memory for plan in found), key=lambda memory: memory.arena)
    logits = rows * classes * 2
    assert logits <= memory.arena <= 1.2 * logits

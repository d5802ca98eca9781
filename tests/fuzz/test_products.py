"""A few random products of each tier on the emulator, and that a wrong one is noticed."""

from __future__ import annotations

import random
from typing import Any

import products
import pytest
from pretended_cublas import pretended_cublas

import tinygrad_cuda as tc

SEEDS = range(400, 412)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_products(seed: int) -> None:
    difference = products.check(products.generate(seed), "emu")
    assert difference is None


@pytest.mark.parametrize("name", products.TIERS)
def test_the_tier_that_a_program_names_makes_its_product(name: str) -> None:
    """The first product that it can make, of a few."""
    dtype = products.TIERS[name].dtypes[0]
    before = products.events[name]
    for seed in range(8):
        program = [("tier", name, seed), ("product", "matmul", dtype, seed)]
        assert products.check(program, "emu") is None
        if products.events[name] > before:
            return
    pytest.fail(f"{name} made none of 8 products")


@pytest.mark.parametrize("seed", range(500, 506))
def test_random_convolutions_of_thin_groups(seed: int) -> None:
    """By depthwise kernels with drawn cuts, and by whatever kernel a tuner says is quickest."""
    program, before = products.of_thin_groups(seed), products.events.get("depthwise", 0)
    assert products.check(program, "emu") is None
    assert products.events["depthwise"] > before
    assert products.check([("tuned", seed), *program[1:]], "emu") is None


# The last two were wrong before: an operand of 4 rows of 8 was taken for one that lies along k.
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 1004, 1162])
def test_random_networks_of_convolutions(seed: int) -> None:
    """Whose values lie with the channels last between them, from a few channels on."""
    assert products.check(products.of_several_convolutions(seed), "emu") is None


@pytest.mark.parametrize("seed", range(700, 712))
def test_random_products_by_a_library(seed: int) -> None:
    """On the pretended GPU, by a cuBLASLt in Python: what it reads is in its descriptors alone."""
    with pretended_cublas() as library:
        assert products.check(products.by_library(seed, "cublas"), "cuda") is None
        program = products.by_library(seed, "cublas")
        assert library.products or program[1][1] in (
            "convolution",
            "convolutions",
            "thin groups",
            "attention",
        )


def test_random_products_by_drawn_choices_of_the_tuner() -> None:
    """Whatever a measurement says is quickest gives the right values and gradients."""
    before = products.events.get("tuned", 0)
    for seed in (900, 903, 907):
        assert products.check(products.by_tuning(seed), "emu") is None
    assert products.events["tuned"] > before and tc.kernels.choices() == []


@pytest.mark.parametrize("fault", ["an element", "not a number"])
def test_a_wrong_product_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(leaves: Any, draw: random.Random) -> Any:
        y = products.operand(leaves, draw, 40, 24) @ products.operand(leaves, draw, 24, 16)
        if leaves.dtype is not tc.float64:
            y[39, 15] = y[39, 15] + 4 if fault == "an element" else float("nan")
        return y

    monkeypatch.setitem(products.PRODUCTS, "matmul", wrong)
    program = [("tier", "wgmma tma", 1), ("product", "matmul", "bfloat16", 5)]
    difference = products.check(program, "emu")
    assert difference is not None and "(39, 15)" in difference and " 1 of 640 differ" in difference

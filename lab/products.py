"""Host side of matmul.cu: float32 products on the ordinary units, large and small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.harness import Shape, source
from lab.mlp import columns_shared, rows_shared

SIDE = 4096


@dataclass(frozen=True)
class Product:
    """One matmul kernel: its macro line, launch shape, and the partials it leaves (1: none)."""

    name: str
    line: str
    shape: Shape
    label: str
    split: int = 1


# Rows, columns and depth of a block's tile, rows and columns of a thread's, blocks resident.
LARGE = (
    (128, 128, 16, 16, 8, 2),
    (128, 64, 16, 16, 8, 4),
    (128, 128, 16, 8, 16, 2),
    (64, 256, 16, 8, 16, 1),
    (64, 128, 16, 8, 8, 3),
    (128, 128, 16, 8, 8, 2),
    (128, 256, 16, 8, 16, 1),
)
MIDDLE = (
    (128, 128, 16, 16, 8, 2),
    (128, 64, 16, 16, 8, 4),
    (128, 128, 16, 8, 8, 2),
    (64, 128, 16, 8, 8, 3),
    (64, 64, 16, 8, 8, 4),
    (64, 64, 16, 4, 8, 4),
    (32, 64, 16, 4, 8, 6),
    (32, 64, 16, 4, 4, 6),
    (32, 32, 32, 4, 4, 6),
)


def large(side: int = SIDE) -> list[Product]:
    """Tiles for side^3."""
    found = []
    for tm, tn, tk, rm, rn, least in LARGE if side >= SIDE else MIDDLE:
        name = f"mm_{side}_{tm}_{tn}_{tk}_{rm}_{rn}_{least}"
        threads = tm * tn // (rm * rn)
        shape = Shape(side * side // (tm * tn), threads, 8 * (tk * (tm + 4) + tk * tn))
        sizes = f"{side}, {side}, {side}, {tm}, {tn}, {tk}, {rm}, {rn}, {min(8, side // tm)}"
        line = f"MATMUL({name}, {sizes}, {least})"
        label = f"{tm} x {tn} x {tk}, {rm} x {rn} a thread, registers ahead, {least} resident"
        found.append(Product(name, line, shape, label))
    for tm, tn, tk, rm, rn, stages, least in (
        ((256, 128, 16, 16, 8, 3, 1), (128, 256, 16, 8, 16, 3, 1)) if side >= SIDE else ()
    ):
        name = f"mma_{tm}_{tn}_{tk}_{rm}_{rn}_{stages}_{least}"
        threads = tm * tn // (rm * rn)
        shared = 4 * stages * (tm * (tk + 4) + tk * tn)
        shape = Shape(side * side // (tm * tn), threads, shared)
        sizes = f"{side}, {side}, {side}, {tm}, {tn}, {tk}, {rm}, {rn}, 8, {stages}, {least}"
        label = (
            f"{tm} x {tn} x {tk}, {rm} x {rn} a thread, cp.async {stages} deep, {least} resident"
        )
        found.append(Product(name, f"MATMUL_ASYNC({name}, {sizes})", shape, label))
    return found


def forward(m: int = 64, n: int = 128, k: int = 784) -> list[Product]:
    """x @ w.T, both K-innermost: tiles and split-K."""
    found = []
    for tm, tn, split, threads in (
        (32, 32, 14, 256),
        (32, 32, 7, 256),
        (16, 32, 7, 256),
        (16, 32, 7, 128),
        (16, 16, 4, 128),
        (32, 16, 14, 128),
        (64, 32, 28, 256),
        (64, 64, 49, 256),
        (16, 16, 4, 256),
        (8, 16, 2, 256),
        (8, 8, 1, 256),
    ):
        name = f"nt_{tm}_{tn}_{split}_{threads}"
        shape = Shape(
            m // tm * (n // tn) * split, threads, rows_shared(tm, tn, k // split, threads)
        )
        line = f"SMALL_NT({name}, {m}, {n}, {k}, {tm}, {tn}, {split}, {threads})"
        label = f"tile {tm} x {tn}, split {split}, {shape.grid} blocks of {threads}"
        found.append(Product(name, line, shape, label, split))
    return found


def forward_ends(products: Sequence[Product], count: int = 64 * 128) -> dict[int, Product]:
    """The kernels that sum partials, by number of partials."""
    found = {}
    for split in sorted({p.split for p in products} - {1}):
        line = f"SUM_SPLIT(end_{split}, {count}, {split})"
        found[split] = Product(f"end_{split}", line, Shape(count // 128, 128), "sum", split)
    return found


def weight_gradient(k: int = 64) -> list[Product]:
    """d.T @ x, both K-outermost, as 128 x 784 and as 784 x 128."""
    found = []
    for m, n, tm, tn, threads in (
        (128, 784, 16, 56, 256),
        (128, 784, 32, 28, 256),
        (128, 784, 16, 28, 256),
        (128, 784, 32, 56, 256),
        (128, 784, 32, 56, 128),
        (784, 128, 56, 16, 256),
        (784, 128, 28, 32, 256),
    ):
        name = f"tn_{m}_{tm}_{tn}_{threads}"
        shape = Shape(m // tm * (n // tn), threads, columns_shared(tm, tn, k, threads))
        line = f"SMALL_TN({name}, {m}, {n}, {k}, {tm}, {tn}, {threads})"
        label = f"{m} x {n}: tile {tm} x {tn}, {shape.grid} blocks of {threads}"
        found.append(Product(name, line, shape, label))
    return found


def product_source(products: Sequence[Product], edge: int) -> str:
    """The translation unit of the given kernels."""
    tail = "\n".join(product.line for product in products) + "\n"
    return source("contract.cuh", "matmul.cu", tail=tail, edge=edge)

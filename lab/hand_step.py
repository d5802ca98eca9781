"""Runs the experiments on the GPU and prints their tables: python -m lab.hand_step
followed by any of edges, step, bandwidth, batchnorm, matmul; all of them if none is named."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import ml_dtypes
import numpy as np

from lab import bandwidth, edges, mlp, products
from lab.harness import (
    EDGES,
    PLAIN,
    WAIT_SIGNAL,
    Gpu,
    node,
    source,
    table,
    words,
)
from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.errors import CudaError

RECORD: dict[str, Any] = {}


def edge_part(gpu: Gpu) -> None:
    """What an edge costs, whether results hold, and the races."""
    texts = {str(e): edges.edges_source(e) for e in EDGES}
    functions = gpu.functions(texts, dict.fromkeys(texts, edges.KERNELS))
    rows: list[list[Any]] = []
    races: list[list[Any]] = []
    for edge, name in EDGES.items():
        made = edges.Edges(gpu, {k: functions[str(edge), k] for k in edges.KERNELS}, edge)
        times = [gpu.time(made.chain(grid)[0]) / edges.LENGTH for grid in (1, 132, 528)]
        diamonds = [gpu.time(made.diamonds(grid)[0]) / 25 for grid in (1, 132)]
        right = made.chain_is_right(132) and made.diamonds_are_right(132)
        rows.append([name, *times, *diamonds, "right" if right else "WRONG"])
        stale = [made.stale_reads(r) for r in ("read_early", "read_waited")]
        stale.append(made.stale_reads_past_relay())
        stale.append(made.stale_cache_reads())
        races.append([name, *(f"{100 * s:.1f} %" for s in stale)])
    header = ["edge", "1 block", "132", "528 blocks", "diamond 1", "diamond 132", "results"]
    print(table("Edges: us a kernel in a chain of 100, us a diamond of 4", header, rows))
    header = ["edge", "early read", "read after wait", "early past relay", "early, warm L1"]
    print(table("Stale reads behind a slow writer", header, races))
    RECORD["edges"], RECORD["races"] = rows, races


def step_part(gpu: Gpu) -> None:
    """The perceptron's step: edges, tiles, number of kernels, one or many steps a graph."""
    steps = 32
    data = mlp.problem(steps)
    wanted = mlp.reference(data, steps)
    sizes = [(16, 16, 4), (32, 32, 14), (16, 32, 7), (16, 16, 2), (8, 16, 2), (8, 16, 4), (8, 8, 1)]
    tiles = [mlp.Tile(*size) for size in sizes]
    cases = [(e, tiles[0], k) for k in (mlp.FUSED, mlp.CUT) for e in EDGES]
    cases += [(WAIT_SIGNAL, tile, mlp.FUSED) for tile in tiles[1:]]
    texts = {f"{e} {t}": mlp.mlp_source(e, t) for e, t, _ in cases}
    functions = gpu.functions(texts, dict.fromkeys(texts, mlp.KERNELS))
    rows: list[list[Any]] = []
    for edge, tile, kernels in cases:
        chosen = {k: functions[f"{edge} {tile}", k] for k in mlp.KERNELS}
        step = mlp.Step(gpu, chosen, data, tile)
        many, one = step.graph(edge, kernels, steps), step.graph(edge, kernels, 1)
        results = []
        for _ in range(2):
            step.reset()
            many.launch()
            results.append(step.result())
        same = all((results[0][n] == results[1][n]).all() for n in wanted)
        error = mlp.worst(results[0], wanted)
        us_many = gpu.time(many, inner=4) / steps
        us_one = gpu.time(one, inner=100)
        label = f"{len(kernels)} kernels, tile {tile.m} x {tile.n} split {tile.split}"
        rows.append([label, EDGES[edge], us_many, us_one, f"{error:.1e}", "yes" if same else "NO"])
    header = ["step", "edges", "us, 32 a graph", "us, 1 a graph", "error", "same bits"]
    print(table("MLP 784-128-10, batch 64: one training step", header, rows))
    rows.append(["PyTorch, whole-step graph", "", torch_step(data, steps)])
    print(table("Peer", ["", "", "us"], rows[-1:]))
    RECORD["step"] = rows


def torch_step(data: dict[str, Any], steps: int) -> float:
    """PyTorch's step captured whole, float32, us a replay."""
    import torch

    model = torch.nn.Sequential(
        torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.tensor(data["x"][0], device="cuda")
    labels = torch.tensor(data["labels"][0], device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return torch_graph(step, 1, 100)


def torch_graph(work: Any, count: int, inner: int = 1, repeats: int = 9) -> float:
    """Median us of `work` inside a captured graph that holds it `count` times."""
    import torch

    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            work()
    event: Any = torch.cuda.Event
    samples = []
    for repeat in range(repeats + 2):
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            graph.replay()
        end.record()
        end.synchronize()
        if repeat >= 2:
            samples.append(start.elapsed_time(end) * 1e3 / inner / count)
    return float(np.median(samples))


def copy_bandwidth(x: Any, y: Any) -> float:
    """Bytes a microsecond, read and written, of PyTorch's device copy."""
    us = torch_graph(lambda: y.copy_(x), 10)
    return float(2 * bandwidth.BYTES / us)


def bandwidth_kernels(gpu: Gpu, variants: list[Any], softmaxes: list[Any]) -> dict[str, Any]:
    """All variants compiled, in pieces that compile side by side."""
    pieces = [("maps.cu", variants[i::8]) for i in range(8)]
    pieces += [("rows.cu", softmaxes[i::4]) for i in range(4)]
    texts, names = {}, {}
    for i, (file, piece) in enumerate(pieces):
        texts[str(i)] = source(file, tail=bandwidth.row_text(piece), edge=WAIT_SIGNAL)
        names[str(i)] = sorted({k.name for v in piece for k in v.kernels})
    return {k[1]: f for k, f in gpu.functions(texts, names).items()}


def bandwidth_peers(x: Any, y: Any, families: list[str]) -> dict[str, Any]:
    """PyTorch's call for each family."""
    import torch
    from torch.nn import functional as F

    x16, y16 = x.bfloat16(), y.bfloat16()
    p, m, v = (torch.rand_like(x) for _ in range(3))

    step = torch.ones((), device="cuda")

    def adam() -> None:
        torch._fused_adam_(
            [p], [x], [m], [v], [], [step], lr=0.001, beta1=0.9, beta2=0.999, weight_decay=0.0,
            eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip

    peers: dict[str, Any] = {
        "map copy": lambda: torch.add(x, 1.0, out=y),
        "map unaligned": lambda: torch.add(x, 1.0, out=y),
        "map gelu": lambda: F.gelu(x) * x + 1,
        "sum": lambda: x.sum(),
        "adam": adam,
        "bfloat16 to float": lambda: y.copy_(x16),
        "bfloat16 to bfloat16": lambda: torch.add(x16, 1.0, out=y16),
        "transpose": lambda: y.copy_(x.T),
    }
    for family in dict.fromkeys(families):
        view = x.view(-1, bandwidth.width_of(family))
        if family.startswith("column"):
            peers[family] = lambda view=view: view.sum(0)
        elif family.startswith("softmax"):
            peers[family] = lambda view=view: torch.softmax(view, 1)
    return peers


def bandwidth_part(gpu: Gpu) -> None:
    """MAP, ROW, COL and full sums against the copy."""
    import torch

    sms = gpu.device.properties.multiprocessors
    lists = (bandwidth.maps(sms), bandwidth.other_maps(), bandwidth.sums(sms), bandwidth.columns())
    variants = [v for some in lists for v in some]
    softmaxes = bandwidth.softmaxes(sms)
    functions = bandwidth_kernels(gpu, variants, softmaxes)
    host = np.random.default_rng(0).standard_normal((8192, 8192), np.float32)
    memory = {name: gpu.empty(bandwidth.BYTES) for name in ("out", "mean", "square")}
    memory["in"] = gpu.put(host)
    memory["in16"] = gpu.put(host.astype(ml_dtypes.bfloat16).view(np.uint16))
    memory["partials"] = gpu.empty(4 * 8192 * 64)
    x = torch.tensor(host, device="cuda")
    y = torch.empty_like(x)
    copy = copy_bandwidth(x, y)
    print(f"\ndevice copy: {copy / 1e6:.3f} TB/s read and written")
    peers = bandwidth_peers(x, y, [v.family for v in [*variants, *softmaxes]])
    check = {f: bandwidth.wanted(f, host) for f in peers}
    scale = float(np.abs(host.astype(np.float64)).sum())
    rows: list[list[Any]] = []
    for variant in [*variants, *softmaxes]:
        family = variant.family
        for name in ("out", "mean", "square"):
            gpu.device.fill(memory[name].address, bandwidth.BYTES, 0 if family == "adam" else 0xFF)
        bandwidth.variant_graph(gpu, functions, variant, memory, 1).launch()
        got = np.empty(bandwidth.result_shape(family), bandwidth.result_type(family))
        whole = bandwidth.COUNT * got.itemsize
        offset = 0 if "sum" in family else whole - got.nbytes
        gpu.device.copy_out(memory["out"].address + offset, got)
        norm = scale if family == "sum" else float(np.linalg.norm(check[family]))
        error = float(np.linalg.norm(got.astype(np.float64) - check[family])) / norm
        graph = bandwidth.variant_graph(gpu, functions, variant, memory)
        us = gpu.time(graph, repeats=5) / 10
        rate = bandwidth.traffic(family) / us
        registers = functions[variant.kernels[0].name].attribute("NUM_REGS")
        rows.append(
            [family, variant.label, us, rate / 1e3, 100 * rate / copy, registers, f"{error:.0e}"]
        )
    header = ["family", "variant", "us", "GB/s", "% of copy", "regs", "error"]
    for family, peer in peers.items():
        mine = sorted((r for r in rows if r[0] == family), key=lambda r: r[2])
        us = torch_graph(peer, 5)
        rate = bandwidth.traffic(family) / us
        mine = [*mine[:6], *mine[max(6, len(mine) - 2) :]]
        mine.append([family, "PyTorch", us, rate / 1e3, 100 * rate / copy, "", ""])
        print(table(f"{family}: the six best and two worst", header, mine))
        rows.append(mine[-1])
    RECORD["bandwidth"], RECORD["copy TB/s"] = rows, copy / 1e6


def batchnorm_part(gpu: Gpu) -> None:
    """Batch norm in training mode, 256 x 64 x 56 x 56."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    found = gpu.functions({"b": bandwidth.batch_source()}, {"b": bandwidth.BATCH_KERNELS})
    functions = {k[1]: f for k, f in found.items()}
    x = 3 * torch.randn(256, 64, 56, 56, device="cuda") + 5
    weight, bias = torch.rand(64, device="cuda") + 0.5, torch.randn(64, device="cuda")
    wanted = F.batch_norm(x.double(), None, None, weight.double(), bias.double(), True)
    norm, y = float(wanted.norm()), torch.empty_like(x)
    copy = 2 * x.numel() * 4 / torch_graph(lambda: y.copy_(x), 10)
    norms = bandwidth.BatchNorm(gpu, functions, x.data_ptr(), weight.data_ptr(), bias.data_ptr())
    rows: list[list[Any]] = []
    for label, build in norms.variants().items():
        gpu.device.fill(norms.out.address, bandwidth.BATCH_BYTES, 0xFF)
        try:
            graph = build()
        except CudaError as refused:  # a cluster of 16 needs GPU clusters as large as that
            rows.append([label, str(refused).splitlines()[0], "", ""])
            continue
        us = gpu.time(graph, inner=5, repeats=7)
        gpu.device.copy(y.data_ptr(), norms.out.address, bandwidth.BATCH_BYTES)
        gpu.device.synchronize()
        error = float((y.double() - wanted).norm()) / norm
        rows.append([label, us, 100 * 2 * bandwidth.BATCH_BYTES / us / copy, f"{error:.0e}"])
    us = torch_graph(lambda: F.batch_norm(x, None, None, weight, bias, True), 5)
    rows.append(["PyTorch", us, 100 * 2 * bandwidth.BATCH_BYTES / us / copy, ""])
    header = ["variant", "us", "% of copy (read once, written once)", "error"]
    print(table("batch norm forward, 256 x 64 x 56 x 56", header, rows))
    RECORD["batchnorm"] = rows


def square_products(
    gpu: Gpu, functions: dict[str, Any], side: int, tried: list[products.Product]
) -> None:
    """Every tile for side^3, beside cuBLAS."""
    import torch

    a, b, c = (torch.randn(side, side, device="cuda") for _ in range(3))
    wanted = a.double() @ b.double()
    rows: list[list[Any]] = []
    repeats = 2 if side >= products.SIDE else 10
    for product in tried:
        c.fill_(float("nan"))
        torch.cuda.synchronize()
        parameters = words(a.data_ptr(), b.data_ptr(), c.data_ptr())
        made = node(functions[product.name], product.shape, parameters)
        us = gpu.time(gpu.chain([made] * repeats, PLAIN), repeats=5) / repeats
        gpu.device.synchronize()
        error = float((c.double() - wanted).norm() / wanted.norm())
        registers = functions[product.name].attribute("NUM_REGS")
        rows.append([product.label, us, 2 * side**3 / us / 1e6, registers, f"{error:.0e}"])
    us = torch_graph(lambda: torch.mm(a, b, out=c), repeats, repeats=5)
    rows = [*sorted(rows, key=lambda r: r[1]), ["cuBLAS", us, 2 * side**3 / us / 1e6, "", ""]]
    print(table(f"matmul {side}^3, float32", ["tile", "us", "TFLOP/s", "regs", "error"], rows))
    RECORD[f"matmul {side}"] = rows


def matmul_part(gpu: Gpu) -> None:
    """float32 products against cuBLAS."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    sides = (512, 1024, 2048, products.SIDE)
    large = {side: products.large(side) for side in sides}
    texts = {p.name: products.product_source([p], PLAIN) for s in sides for p in large[s]}
    small = [*products.forward(), *products.weight_gradient()]
    ends = products.forward_ends(products.forward())
    names = {name: [name] for name in texts}
    texts["small"] = products.product_source([*small, *ends.values()], WAIT_SIGNAL)
    names["small"] = [p.name for p in [*small, *ends.values()]]
    functions = {k[1]: f for k, f in gpu.functions(texts, names).items()}
    for side in sides:
        square_products(gpu, functions, side, large[side])

    x, w, d = (torch.randn(*s, device="cuda") for s in ((64, 784), (128, 784), (64, 128)))
    out, parts = torch.empty(128 * 784, device="cuda"), torch.empty(49 * 64 * 128, device="cuda")
    rows: list[list[Any]] = []
    for product in small:
        gradient = product.name.startswith("tn")
        wide = product.name.startswith("tn_784")
        left, right = (x, w) if not gradient else (x, d) if wide else (d, x)
        wanted = (
            left.double() @ right.double().T if not gradient else (left.double().T @ right.double())
        )
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        target = out if product.split == 1 else parts
        pointers = (left.data_ptr(), right.data_ptr(), target.data_ptr())
        nodes = [node(functions[product.name], product.shape, words(*pointers))]
        if product.split > 1:
            end = ends[product.split]
            pointers = (parts.data_ptr(), parts.data_ptr(), out.data_ptr())
            nodes.append(node(functions[end.name], end.shape, words(*pointers)))
        us = gpu.time(gpu.chain(nodes * 20, WAIT_SIGNAL), inner=3) / 20
        alone = gpu.time(gpu.chain(nodes[:1] * 20, WAIT_SIGNAL), inner=3) / 20
        gpu.device.synchronize()
        got = out[: wanted.numel()].view(wanted.shape).double()
        error = float((got - wanted).norm() / wanted.norm())
        rows.append([product.label, us, alone, f"{error:.0e}"])
    us = torch_graph(lambda: torch.mm(x, w.T), 20, 3)
    rows.append(["cuBLAS x @ w.T", us, us, ""])
    us = torch_graph(lambda: torch.mm(d.T, x), 20, 3)
    rows.append(["cuBLAS d.T @ x", us, us, ""])
    header = ["64 x 128 x 784 and 128 x 784 x 64", "us", "first kernel alone", "error"]
    print(table("small products, us each in a chain of 20", header, rows))
    RECORD["small products"] = rows


PARTS = {
    "edges": edge_part,
    "step": step_part,
    "bandwidth": bandwidth_part,
    "batchnorm": batchnorm_part,
    "matmul": matmul_part,
}


def main(arguments: list[str]) -> None:
    """Runs the named parts, or all."""
    gpu = Gpu(runtime.device())
    print(gpu.device.properties, compiler.toolchain())
    for name in arguments or PARTS:
        began = time.perf_counter()
        PARTS[name](gpu)
        print(f"[{name}: {time.perf_counter() - began:.1f} s]", flush=True)
    if folder := os.environ.get("OUT"):
        with open(os.path.join(folder, "_".join(["lab", *arguments]) + ".json"), "w") as file:
            json.dump(RECORD, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])

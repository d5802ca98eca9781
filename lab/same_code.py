"""Whether two states of the code generator give the same machine code, without a GPU.

    git worktree add ../before main
    (cd ../before && python lab/same_code.py collect /tmp/before)
    python lab/same_code.py collect /tmp/after
    python lab/same_code.py compare /tmp/before /tmp/after

`collect` lowers many programs for a large GPU and writes their kernels' texts; nothing is executed.
`compare` compiles both for sm_90 and pairs kernels by program and order, whatever they are called.
It compares instructions, registers, shared memory and spills, and prints each difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
for folder in ("", "tests/unit", "tests/ops", "examples"):
    sys.path.insert(0, str(ROOT / folder))

import tinygrad_cuda as tc  # noqa: E402
from benchmarks.peers.torchlike import Work  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from tinygrad_cuda import optim  # noqa: E402
from tinygrad_cuda.backend import registry  # noqa: E402
from tinygrad_cuda.backend.cuda.compiler import REPORT, compile_source, resources  # noqa: E402
from tinygrad_cuda.core.device import as_device  # noqa: E402
from tinygrad_cuda.engine.realize import realize_all  # noqa: E402
from tinygrad_cuda.lowering.target import Target  # noqa: E402
from tinygrad_cuda.nn import functional as F  # noqa: E402

KERNELS = 24  # of one translation unit
SAMPLES = 60  # of the table of samples, in one program
ARCH = "sm_90"
# Workloads that take more memory on the emulator than 8 GB, though nothing is computed.
LARGE = ("gpt2", "attention_4096", "matmul_16384x50304")
_STAGE = re.compile(
    r"^(?://.*\n)+(?:struct (\w+)_params \{|TGC_STAGE\((\w+),)\n(?:.*\n)*?^\}\n", re.MULTILINE
)
_LAUNCH = re.compile(r"^TGC_KERNEL_\w+\((\w+),.*\)$", re.MULTILINE)


# Texts --------------------------------------------------------------------------------------------


@contextmanager
def sources() -> Iterator[list[str]]:
    """The translation units that device ``emu`` is given, lowered as for a large GPU."""
    machine: Any = registry.get(as_device("emu"))
    found: list[str] = []
    machine.target = Target.h200()
    machine.load = lambda lowered: found.append(lowered.source)
    machine.launch = lambda *_: None
    empty = type(machine.allocate(0))
    machine.allocate = machine.arena = lambda nbytes: empty(np.empty(nbytes, np.uint8))
    machine.take = lambda nbytes, address: machine.allocate(nbytes)
    yield found


def gpt() -> None:
    from gpt import GPT

    net = GPT(65, 256, 384, 6, 2, 0.1)
    rule = optim.AdamW(net.parameters(), lr=1e-3)
    text = tc.zeros(16, 256, dtype=tc.int64)
    for _ in range(2):
        rule.zero_grad()
        F.cross_entropy(net(text).reshape(-1, 65), text.reshape(-1)).backward()
        rule.step()
        realize_all()


def statistics() -> None:
    """Reductions of each kind over rows and columns, scans, sorts and draws."""
    x, y = tc.tensor(np.zeros((512, 700), np.float32)), tc.tensor(np.zeros((80, 20000), np.float32))
    results: list[Any] = []
    names = ("sum", "mean", "var", "prod", "max", "min", "argmax", "argmin", "logsumexp", "cumsum")
    for name in names:
        for tensor in (x, y):
            for dim in (0, 1):
                results.append(getattr(tensor, name)(dim))
                realize_all()
    results += [tc.randn(1000), tc.rand(1000), tc.randint(0, 9, (100,)), tc.randperm(50)]
    results += [tc.sort(x), tc.topk(x, 3), tc.cdist(x[:32], x[32:64])]
    realize_all()


def workload(name: str) -> Callable[[], None]:
    """A workload of the benchmarks at its real size."""

    def run() -> None:
        work = Work(tc, WORKLOADS[name](False), "emu")
        for number in range(2):
            results = work.call(*work.data[number % len(work.data)])
            realize_all()
            del results

    return run


def family(name: str) -> Callable[[], None]:
    """A program of the generator's tests."""

    def run() -> None:
        import programs

        machine: Any = registry.get(as_device("emu"))
        machine.compile(programs.family()[name])

    return run


def samples(number: int) -> Callable[[], None]:
    """A part of the table of samples."""

    def run() -> None:
        import samples as table
        from execution import collected

        device = as_device("emu")
        chosen = table.SAMPLES[number * SAMPLES : (number + 1) * SAMPLES]
        machine: Any = registry.get(device)
        machine.compile(collected(chosen, device).program())

    return run


def cases() -> dict[str, Callable[[], None]]:
    """All programs by name."""
    import programs
    import samples as table

    found = {f"family/{name}": family(name) for name in programs.family()}
    found |= {f"workload/{n}": workload(n) for n in WORKLOADS if not n.startswith(LARGE)}
    found["gpt"] = gpt
    found["statistics"] = statistics
    for number in range(-(-len(table.SAMPLES) // SAMPLES)):
        found[f"samples/{number}"] = samples(number)
    return found


def collect(folder: Path, pattern: str) -> None:
    """Writes a file for each program: its stages and its launches in order."""
    folder.mkdir(parents=True, exist_ok=True)
    tc.set_default_device("emu")
    prelude = "".join(
        (skeletons() / f"{name}.cuh").read_text()
        for name in ("device", "random", "special", "grid_reduce_device", "mma")
    )
    (folder / "prelude.cuh").write_text(prelude)
    with sources() as found:
        for name, run in cases().items():
            if not re.search(pattern, name):
                continue
            found.clear()
            run()
            units = [
                {"stages": {m[1] or m[2]: m[0] for m in _STAGE.finditer(unit)},
                 "launches": [m[0] for m in _LAUNCH.finditer(unit)]}
                for unit in found
            ]  # fmt: skip
            (folder / f"{name.replace('/', '-')}.json").write_text(json.dumps(units, indent=1))
            print(f"{name:<40} {sum(len(unit['launches']) for unit in units):>5} kernels")


def skeletons() -> Path:
    """The folder of the skeletons."""
    return next((ROOT / "tinygrad_cuda").rglob("device.cuh")).parent


# Machine code -------------------------------------------------------------------------------------


class Code(NamedTuple):
    """What one kernel became."""

    instructions: int
    digest: str
    operations: str  # of how many instructions there are of each kind
    registers: int
    spills: int
    shared: int


def operations(code: bytes) -> str:
    """A digest of the number of instructions of each kind, whatever their order and registers."""
    kinds = Counter(code[k] | (code[k + 1] & 15) << 8 for k in range(0, len(code), 16))
    return hashlib.sha256(repr(sorted(kinds.items())).encode()).hexdigest()[:12]


def machine_code(cubin: bytes) -> dict[str, bytes]:
    """The instructions of each kernel of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + k * size) for k in range(count)]
    strings = headers[names][4]
    found = {}
    for header in headers:
        start = strings + header[0]
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith(".text."):
            found[name.removeprefix(".text.")] = cubin[header[4] : header[4] + header[5]]
    return found


def compiled(folder: Path, wanted: dict[str, list[tuple[str, str]]]) -> dict[str, Code]:
    """The machine code of launches, each given with the texts of its stages, by their name."""
    prelude = (folder / "prelude.cuh").read_text()
    path = folder / "codes.cache"
    digest = hashlib.sha256(prelude.encode()).hexdigest()
    found = json.loads(path.read_text()) if path.exists() else {}
    found = {key: value for key, value in found.items() if key.startswith(digest)}
    todo = [name for name in wanted if f"{digest}{name}" not in found]
    for first in range(0, len(todo), KERNELS):
        part = todo[first : first + KERNELS]
        texts = dict.fromkeys(text for name in part for _, text in wanted[name][:-1])
        wrappers = [wanted[name][-1][1] for name in part]
        binary = compile_source("\n".join((prelude, *texts, *wrappers)), ARCH, REPORT)
        used = resources(binary.log)
        for name, code in machine_code(binary.cubin).items():
            r = used[name]
            found[f"{digest}{name}"] = Code(
                len(code) // 16, hashlib.sha256(code).hexdigest()[:12], operations(code),
                r.registers, r.spill_stores + r.spill_loads, r.shared,
            )  # fmt: skip
        path.write_text(json.dumps(found))
        print(f"\r{folder.name}: {min(first + KERNELS, len(todo))} of {len(todo)}", end="")
    print()
    return {name: Code(*found[f"{digest}{name}"]) for name in wanted}


def launches(folder: Path, program: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The launches of a program in order: name, and what they are compiled from."""
    found = []
    for unit in json.loads((folder / program).read_text()):
        stages = unit["stages"]
        for wrapper in unit["launches"]:
            match = _LAUNCH.match(wrapper)
            assert match is not None
            own = stages[match[1]]
            parts = [(name, text) for name, text in stages.items() if f"{name}_stage(" in own]
            parts = [pair for pair in parts if pair[0] != match[1]] + [(match[1], own)]
            found.append((match[1], [*parts, ("", wrapper)]))
    return found


def compare(before: Path, after: Path, pattern: str) -> int:
    """Prints each difference; the number of them."""
    names = sorted({p.name for folder in (before, after) for p in folder.glob("*.json")})
    names = [name for name in names if re.search(pattern, name)]
    pairs: dict[tuple[str, str], str] = {}
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    differences = equal = reordered = 0
    for program in names:
        if not all((folder / program).exists() for folder in (before, after)):
            print(f"{program}: in one folder only")
            differences += 1
            continue
        old, new = launches(before, program), launches(after, program)
        if len(old) != len(new):
            print(f"{program}: {len(old)} kernels, then {len(new)}")
            differences += 1
            continue
        for one, two in zip(old, new):
            pairs.setdefault((one[0], two[0]), program)
            sides[0][one[0]], sides[1][two[0]] = one[1], two[1]
    codes = [compiled(folder, side) for folder, side in zip((before, after), sides)]
    for (one, two), program in pairs.items():
        a, b = codes[0][one], codes[1][two]
        if a == b:
            equal += 1
            continue
        differences += 1
        print(f"{program}: {one} -> {two}\n  {a}\n  {b}")
        if a._replace(digest="") == b._replace(digest=""):
            reordered += 1
    print(
        f"{equal} kernels of {len(names)} programs have equal machine code, {differences} differ;"
    )
    print(f"of these {reordered} have as many instructions of each kind, in another order")
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("collect", "compare"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="programs whose names have this pattern")
    given = parser.parse_args()
    if given.what == "collect":
        collect(given.folders[0], given.only)
        return 0
    return bool(compare(*given.folders, given.only))


if __name__ == "__main__":
    sys.exit(main())

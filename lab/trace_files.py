"""How many files a first call passes: `python lab/trace_files.py [emu|cpu] [--replay] [--show]`.

Counted are calls of functions of the package, from `x.exp()` to the launch of its kernel, which on
cpu is the first step of the lowered program. `x` has its value, and its device has run another
program before: what is traced is the way of a new plan, and no import.
With `--replay` it is a call of a compiled training step that has been replayed before, up to the
first launch: a perceptron with SGD. An optimizer whose numbers change with each step, such as Adam,
passes its own file besides.
A change of file is a call whose function lies in another file than the one called before it.
`--show` prints the functions in their order, a line for each change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tinygrad_cuda as tc  # noqa: E402

PACKAGE = f"{ROOT / 'tinygrad_cuda'}/"
# Where a device begins to compute.
LAUNCH = {"emu": "EmulatedModule.launch", "cpu": "CpuExecutable._run"}
Call = tuple[str, str]


def trace(function: Callable[[], object], launch: str) -> list[Call]:
    """File and name of each function of the package that is called, up to the launch."""
    calls: list[Call] = []
    launched = False

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal launched
        code = frame.f_code
        if event == "call" and not launched and code.co_filename.startswith(PACKAGE):
            calls.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))
            launched = code.co_qualname == launch

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    if not launched:
        raise SystemExit(f"{launch} was not called: has it another name by now?")
    return calls


def first_call(device: str) -> list[Call]:
    """The calls of `x.exp()` and of the look at its value."""
    x = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    (x + 1).tolist()
    return trace(lambda: x.exp().numpy(), LAUNCH[device])


def replayed_call(device: str) -> list[Call]:
    """The calls of a compiled training step that is replayed as the ones before it were."""
    tc.manual_seed(0)
    model = tc.nn.Sequential(tc.nn.Linear(4, 8), tc.nn.ReLU(), tc.nn.Linear(8, 3)).to(device)
    optimizer = tc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @tc.compile
    def step(x: tc.Tensor, y: tc.Tensor) -> tc.Tensor:
        optimizer.zero_grad()
        loss = tc.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = tc.randn(5, 4, device=device), tc.tensor([0, 1, 2, 0, 1], device=device)
    for _ in range(10):
        step(x, y)
    return trace(lambda: step(x, y), LAUNCH[device])


def counts(calls: list[Call]) -> tuple[int, int]:
    """Distinct files, and changes of file."""
    files = [file for file, _ in calls]
    return len(set(files)), sum(a != b for a, b in pairwise(files))


def main(arguments: list[str]) -> None:
    devices = [name for name in arguments if name in LAUNCH] or list(LAUNCH)
    for device in devices:
        calls = replayed_call(device) if "--replay" in arguments else first_call(device)
        files, changes = counts(calls)
        print(f"{device}: {files} files, {changes} changes of file, {len(calls)} calls")
        if "--show" in arguments:
            for file, group in groupby(calls, key=lambda call: call[0]):
                print(f"  {file}: {', '.join(name for _, name in group)}")


if __name__ == "__main__":
    main(sys.argv[1:])

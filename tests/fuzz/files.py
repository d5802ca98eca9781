"""Damaged files: bytes of every file format and cache entry flipped, cut, inserted and inflated.

A program damages one file: its steps name the file and what happens to it, in order. Loading it
must give what was written, or an error in this package's words, or, for a cache entry, a miss. Of
formats without a checksum (plain IDX, CIFAR, safetensors of other programs) other values may come,
but of the shape that the bytes say, and never more memory than a small multiple of the file.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import sys
import tarfile
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda import compiler as nvrtc
from tinygrad_cuda.backend.emu import compiler as emulator
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.data import CIFAR10
from tinygrad_cuda.data.cifar import unpack
from tinygrad_cuda.data.idx import read_idx, write_idx
from tinygrad_cuda.utils.training_state import Streams, read_state, write_state

LONG = {"cpu": 10_000}

Step = tuple[Any, ...]
# Bytes that loading may take: Python's own, and some copies of what the file holds.
MOST_MEMORY = 8 << 20
MISS = "a miss"
TORCH_FILES = Path(__file__).parents[1] / "unit/utils/fixtures"


class Format(NamedTuple):
    """One kind of file.

    Attributes:
        write: writes the file of a variant.
        load: reads it; what it gives is compared with what the undamaged file gave.
        checked: whether every damage must be noticed or be of no account.
    """

    write: Callable[[Path, int], None]
    load: Callable[[Path], Any]
    checked: bool


# Formats ------------------------------------------------------------------------------------------


def array(variant: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(variant)
    dtypes = (np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64)
    shapes = ((7,), (3, 5), (2, 3, 4), (0, 4), (), (1, 1, 1, 6))
    values = rng.integers(0, 100, shapes[variant % len(shapes)])
    return values.astype(dtypes[variant % len(dtypes)])


def value(variant: int) -> Any:
    tc.manual_seed(variant)
    layer = tc.nn.Linear(3, 2, device="cpu")
    values: tuple[Any, ...] = (
        layer.state_dict(),
        {"step": variant, "names": ["a", "b"], "loss": 0.5, (1, 2): None, "deep": [[{"x": (1,)}]]},
        [tc.arange(5, device="cpu"), tc.zeros(0, 3, device="cpu"), tc.ones((), device="cpu")],
        {
            "half": tc.ones(3, dtype=tc.float16, device="cpu"),
            "flags": tc.tensor([True], device="cpu"),
        },
    )
    return values[variant % len(values)]


def foreign(path: Path, variant: int) -> None:
    from safetensors.numpy import save_file

    save_file({"x": array(variant % 3), "y": array(4)}, path, {"made": "elsewhere"})


def training(path: Path, variant: int) -> None:
    write_state(
        path, Streams(), parts(variant), {"run": {"epoch": variant, "rows": [{"loss": 1.5}]}}
    )


def parts(variant: int) -> dict[str, Any]:
    tc.manual_seed(variant)
    model = tc.nn.Linear(2, 3, device="cpu")
    optimizer = tc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(tc.ones(1, 2, device="cpu")).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "scheduler": None}


def load_training(path: Path) -> Any:
    found = parts(99)
    run = read_state(path, Streams(), found)["run"]
    return run, {name: part.state_dict() for name, part in found.items() if part is not None}


def cifar_file(path: Path, variant: int) -> None:
    rng = np.random.default_rng(variant)
    records = rng.integers(0, 256, (variant % 3 + 1, 3073), np.uint8)
    records[:, 0] %= 10
    path.write_bytes(records.tobytes())


def load_cifar(path: Path) -> Any:
    data = CIFAR10(cifar_folder(path, {"test_batch.bin": path.read_bytes()}), train=False)
    return data.data, data.targets


def cifar_folder(path: Path, own: dict[str, bytes]) -> Path:
    """The folder of the data set, with one file of our own in it."""
    folder = path.parent / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        cifar_file(folder / name, 0)
    class_names(folder / "batches.meta.txt", 0)
    for name, content in own.items():
        (folder / name).write_bytes(content)
    return path.parent


def class_names(path: Path, variant: int) -> None:
    path.write_text("\n".join(f"class{k}" for k in range(10)))


def load_names(path: Path) -> Any:
    return CIFAR10(cifar_folder(path, {"batches.meta.txt": path.read_bytes()}), train=False).classes


def archive(path: Path, variant: int) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in ("a.bin", "b.txt"):
            content = bytes(range(200)) * (variant % 3 + 1)
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def load_archive(path: Path) -> Any:
    folder = path.parent / "unpacked"
    unpack(path, ["a.bin", "b.txt"], folder)
    return [(folder / name).read_bytes() for name in ("a.bin", "b.txt")]


def torch_file(path: Path, variant: int) -> None:
    """Little- and big-endian files of torch.save, and one with numbers of its own."""
    if variant % 3 < 2:
        name = ("state.pt", "state_big_endian.pt")[variant % 3]
        path.write_bytes((TORCH_FILES / name).read_bytes())
        return
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("data.pkl", pickle.dumps(value(1), 2)), ("version", b"3")):
            archive.writestr(zipfile.ZipInfo(f"run/{name}"), content)


def pickled(path: Path, variant: int) -> None:
    path.write_bytes(pickle.dumps({"weight": list(range(variant))}))


SOURCE = "// an entry of the emulator's cache\n"


@cache
def library() -> bytes:
    """A whole entry of the emulator's cache, made once."""
    with tempfile.TemporaryDirectory() as folder, settings.override(cache_dir=Path(folder)):
        source = f'{SOURCE}extern "C" int answer() {{ return 42; }}\n'
        return emulator.compile_source(source).read_bytes()


def emulated(path: Path, variant: int) -> None:
    path.write_bytes(library())
    path.chmod(0o700)


def load_emulated(path: Path) -> Any:
    """The library that would be loaded; a damaged one must be built anew."""
    key = emulator.cache_key(SOURCE)
    folder = path.parent / "cache" / "emu"
    folder.mkdir(parents=True, mode=0o700)
    entry = folder / f"{key}.so"
    entry.write_bytes(path.read_bytes())
    entry.chmod(0o700)
    built: list[str] = []
    build = emulator._build
    emulator._checked.clear()
    emulator._build = lambda source, folder, key, extra_options: built.append(key)
    try:
        with settings.override(cache_dir=path.parent / "cache", cache=True):
            found = emulator.compile_source(SOURCE)
    finally:
        emulator._build = build
    return MISS if built else found.read_bytes()


def cubin(path: Path, variant: int) -> None:
    path.write_bytes(nvrtc._pack(b"\x7fELF" + bytes(range(256)) * (variant % 4), "log " * variant))
    path.chmod(0o600)


def load_cubin(path: Path) -> Any:
    folder = path.parent / "cache" / "cuda"
    folder.mkdir(parents=True, mode=0o700)
    entry = folder / "key.cubin"
    entry.write_bytes(path.read_bytes())
    entry.chmod(0o600)
    with settings.override(cache_dir=path.parent / "cache", cache=True):
        found = nvrtc._CubinCache().get("key", "sm_90")
    return MISS if found is None else (found.cubin, found.log)


FORMATS: dict[str, Format] = {
    "idx": Format(lambda p, v: write_idx(p, array(v)), read_idx, False),
    "idx.gz": Format(lambda p, v: write_idx(p, array(v)), read_idx, True),
    "save": Format(lambda p, v: tc.save(value(v), p), tc.load, True),
    "safetensors": Format(foreign, tc.load, False),
    "checkpoint": Format(training, load_training, True),
    "cifar": Format(cifar_file, load_cifar, False),
    "names.txt": Format(class_names, load_names, False),
    "tar.gz": Format(archive, load_archive, True),
    "pt": Format(torch_file, tc.load, True),
    "pickle": Format(pickled, tc.load, True),
    "emu.so": Format(emulated, load_emulated, True),
    "cubin": Format(cubin, load_cubin, True),
}


# Programs -----------------------------------------------------------------------------------------

DAMAGES = ("flip", "flip", "flip", "bit", "cut", "cut", "drop", "repeat", "fill", "append", "deep")


def generate(seed: int) -> list[Step]:
    """Steps (format, variant, damage, where, number); contiguous seeds go through the formats."""
    rng = random.Random(seed)
    kind, variant = list(FORMATS)[seed % len(FORMATS)], rng.randrange(6)
    # Headers are short beside what follows: some places are near the start.
    places = [rng.random() * rng.choice([1.0, 1.0, 0.1]) for _ in range(rng.choice([1, 1, 1, 3]))]
    return [(kind, variant, rng.choice(DAMAGES), place, rng.randrange(256)) for place in places]


def damaged(data: bytes, step: Step) -> bytes:
    """The bytes after one step."""
    _, _, damage, where, number = step
    place = min(int(where * len(data)), max(len(data) - 1, 0))
    byte = data[place : place + 1]
    if damage == "flip":
        return data[:place] + bytes([number]) * len(byte) + data[place + 1 :]
    if damage == "bit":
        return data[:place] + bytes(b ^ 1 << number % 8 for b in byte) + data[place + 1 :]
    if damage == "cut":
        return data[:place]
    if damage == "drop":
        return data[:place] + data[place + 1 + number % 16 :]
    if damage == "repeat":
        return data[:place] + data[max(place - number, 0) : place] + data[place:]
    if damage == "fill":
        return data[:place] + b"\xff" * (number % 9) + data[place + number % 9 :]
    if damage == "append":
        return data + (gzip.compress(bytes(1 << 20)) if number % 2 else bytes(number))
    return nested(data, number)


def nested(data: bytes, number: int) -> bytes:
    """A safetensors header whose metadata nest deeply, or in which a shape is absurd."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
        if number % 2:
            header["__metadata__"] = {"tinygrad_cuda": "[" * 20_000}
        else:
            first = next(name for name in header if name != "__metadata__")
            header[first]["shape"] = [0, 1 << 62, 1 << 62]
    except (ValueError, StopIteration, TypeError, KeyError, RecursionError):
        return data + b"[" * 20_000
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def plain(found: Any) -> Any:
    """Values that can be compared, dtypes and shapes among them."""
    if isinstance(found, tc.Tensor):
        return plain(found.detach().cpu().numpy()), found.dtype.name
    if isinstance(found, np.ndarray):
        return found.dtype.str, found.shape, found.tobytes()
    if isinstance(found, dict):
        return {key: plain(item) for key, item in found.items()}
    if isinstance(found, list | tuple):
        return type(found).__name__, [plain(item) for item in found]
    return found


@cache
def original(kind: str, variant: int) -> tuple[bytes, Any]:
    """An undamaged file, and what it holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file.{kind}"
        FORMATS[kind].write(path, variant)
        if kind == "pickle":  # refused, whatever it holds
            return path.read_bytes(), None
        return path.read_bytes(), plain(FORMATS[kind].load(path))


def check(program: list[Step], device: str) -> str | None:
    """What is wrong with how the damaged file was met."""
    kind, variant = program[0][:2]
    data, expected = original(kind, variant)
    for step in program:
        data = damaged(data, step)
    state = random.getstate()
    tracemalloc.start()
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            path = Path(folder) / f"file.{kind}"
            path.write_bytes(data)
            found = plain(FORMATS[kind].load(path))
    except tc.TgcError as error:
        return None if "expect:" in str(error) else f"words {kind}: {error}"
    except Exception as error:
        return f"raw {kind}: {type(error).__name__}: {error}"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        random.setstate(state)
        if peak > MOST_MEMORY + 20 * len(data):
            return f"memory {kind}: {peak} bytes for a file of {len(data)}"  # noqa: B012
    if FORMATS[kind].checked and found not in (expected, MISS):
        return f"unnoticed {kind}: {str(found)[:200]} instead of {str(expected)[:200]}"
    return None

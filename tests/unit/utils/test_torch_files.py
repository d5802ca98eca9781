"""Files of torch.save: what comes back, what shares memory, and what a pickle may not ask for."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.utils import restricted_pickle

pytestmark = pytest.mark.usefixtures("on_cpu")
FIXTURES = Path(__file__).with_name("fixtures")


def from_torch(value: Any, **options: Any) -> Any:
    """What `load` gives for a file that the installed PyTorch writes."""
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return tc.load(file)


def archive(content: bytes, records: dict[str, bytes] | None = None, **options: Any) -> io.BytesIO:
    """A file as torch.save writes it, around a pickle of our own."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as zip_:
        for name, data in {"data.pkl": content, "version": b"3\n", **(records or {})}.items():
            zip_.writestr(f"archive/{name}", data)
    file.seek(0)
    return file


FLOATS = b"ctorch\nFloatStorage\n"


def tensor_pickle(
    shape: tuple[Any, ...] = (2,), strides: tuple[Any, ...] = (1,), offset: int = 0,
    count: int = 2, storage: bytes = FLOATS, location: bytes = b"cpu",
) -> bytes:  # fmt: skip
    """The pickle of one tensor, with numbers of our own."""

    def numbers(values: tuple[Any, ...]) -> bytes:
        return b"(" + b"".join(pickle.dumps(n, 2)[2:-1] for n in values) + b"t"

    identity = b"(" + b"".join((
        b"X\x07\0\0\0storage", storage, b"X\x01\0\0\x000",
        b"X" + struct.pack("<I", len(location)) + location, pickle.dumps(count, 2)[2:-1],
    )) + b"tQ"  # fmt: skip
    arguments = (
        b"(" + identity + pickle.dumps(offset, 2)[2:-1] + numbers(shape) + numbers(strides)
        + b"\x89ccollections\nOrderedDict\n)Rt"
    )  # fmt: skip
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"R."


TWO = {"data/0": np.array([1.5, -2.0], np.float32).tobytes()}


# What comes back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.pt", "state_big_endian.pt"])
def test_a_committed_file(name: str) -> None:
    """Written by torch 2.13: every dtype, views of one storage, a 0-d and an empty tensor."""
    found = tc.load(FIXTURES / name)
    assert type(found) is OrderedDict and list(found) == [
        "weight", "tied", "column", "scalar", "empty", "image", "expanded", "float64", "float16",
        "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", "run",
    ]  # fmt: skip
    assert found["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert found["tied"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert found["column"].tolist() == [1.0, 4.0] and found["scalar"].item() == 2.5
    assert found["empty"].shape == (0, 3) and found["expanded"].tolist() == [[7.0] * 3] * 2
    assert found["image"].stride() == (8, 1, 4, 2)
    assert found["image"].flatten().tolist() == list(range(8))
    for name in ("float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"):
        assert found[name].dtype is getattr(tc, name) and found[name].tolist() == [0, 1, 100]
    assert found["bool"].tolist() == [True, False]
    assert found["run"] == {"epoch": 3, "losses": [0.5, 0.25], "name": "first", "best": None}
    assert isinstance(found["weight"], nn.Parameter) and not isinstance(found["tied"], nn.Parameter)
    found["tied"][2, 1] = 50
    assert found["weight"][1, 2].item() == 50 and found["column"].tolist() == [1.0, 4.0]
    with tc.no_grad():
        found["weight"][0, 1] = 8
    assert found["column"].tolist() == [8.0, 4.0]


def test_a_model_goes_on_here() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    )  # fmt: skip
    ours = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    adam = torch.optim.Adam(theirs.parameters())
    theirs(torch.ones(2, 1, 4, 4)).sum().backward()
    adam.step()
    found = from_torch({"model": theirs.state_dict(), "optimizer": adam.state_dict()})
    ours.load_state_dict(found["model"])
    x = np.random.default_rng(0).random((2, 1, 4, 4), np.float32)
    wanted = theirs.eval()(torch.tensor(x)).tolist()
    np.testing.assert_allclose(ours.eval()(tc.tensor(x)).tolist(), wanted, rtol=1e-5)
    optimizer = tc.optim.Adam(ours.parameters())
    optimizer.load_state_dict(found["optimizer"])
    assert found["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert optimizer.state_dict()["state"][0]["step"] == 1
    assert found["model"]._metadata[""] == {"version": 1}


DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_agree_with_torch(dtype: str) -> None:
    """Values, shapes, strides; alone on a storage, and together with others on it."""
    torch = pytest.importorskip("torch")
    base = torch.arange(120).to(getattr(torch, dtype))
    cube = base.view(4, 5, 6)
    given = [
        base, cube, cube.permute(2, 0, 1), cube[1:, ::2, 3], cube[:, 2], base[7:7], base[119],
        base[5:29].view(4, 6)[:, 2:4], base[5:27].unfold(0, 4, 2), base[3:4].expand(2, 3),
        cube[2, 1, 4], cube[:, :, None, 1:2], base.as_strided((3, 4), (7, 2), 11),
    ]  # fmt: skip
    for values in ([x] for x in given), [given]:
        for some in values:
            for one, other in zip(from_torch(some), some):
                assert one.dtype.name == dtype and one.shape == tuple(other.shape)
                assert one.stride() == other.stride() or other.numel() < 2
                assert one.tolist() == other.tolist()


def test_views_share_their_storage() -> None:
    """A write through any of them shows in all, as in torch; what no views express is a copy."""
    torch = pytest.importorskip("torch")
    flat = torch.arange(30.0)
    parts = [flat, flat[3:27].view(4, 6)[:, 2:4], flat.view(5, 6).t(), flat[4], flat[10:20]]
    found = from_torch(parts)
    for t in (parts, found):
        t[1][1, 1] = -1
        t[2][0, 3] = -2
        t[3].fill_(-3)
        t[4][4:] = 0
    for one, other in zip(found, parts):
        assert one.tolist() == other.tolist()
    copy, _ = from_torch([flat.unfold(0, 4, 2), flat])
    assert copy.cell is not _.cell


def test_tied_weights_and_flags() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    found = from_torch([weight, weight.detach(), frozen, torch.ones(1, requires_grad=True)])
    assert [x.requires_grad for x in found] == [True, False, False, True]
    assert [isinstance(x, nn.Parameter) for x in found] == [True, False, True, False]
    found[1].fill_(4)
    assert found[0].tolist() == [4.0] * 3
    (found[0] * 2).sum().backward()
    assert found[0].grad.tolist() == [2.0] * 3


def test_other_values() -> None:
    torch = pytest.importorskip("torch")
    given = {
        "numbers": [1, 2**70, -(2**40), 2.5, True, None, 1j], "text": "\u00e9", "raw": b"\x00\xff",
        "set": {1, 2}, "size": torch.Size([2, 3]), (1, "x"): (), "ordered": OrderedDict(a=1),
    }  # fmt: skip
    for protocol in (2, 4):
        assert from_torch(given, pickle_protocol=protocol) == given
    found = from_torch([torch.device("cpu"), torch.float16, torch.Size([2])])
    assert found == [tc.device("cpu"), tc.float16, (2,)] and type(found[2]) is tc.Size


def test_places(tmp_path: Path) -> None:
    file = tmp_path / "two.pt"
    file.write_bytes(archive(tensor_pickle(), TWO).getvalue())
    assert tc.load(file).tolist() == [1.5, -2.0]
    assert tc.load(file, map_location="meta").is_meta
    assert tc.load(file, map_location=lambda tensor, name: tensor * 2).tolist() == [3.0, -4.0]
    file.write_bytes(archive(tensor_pickle(location=b"cuda:0"), TWO).getvalue())
    assert tc.load(file, map_location={"cuda:0": "cpu"}).tolist() == [1.5, -2.0]


# What is refused ----------------------------------------------------------------------------------


class Calls:
    """Pickled, it asks for a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Plain:
    """Pickled, it asks for an object of a class of the program."""


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Calls(os.system, "touch marker"), f"{os.system.__module__}.system"),
        (Calls(eval, "1"), "eval"), (Calls(getattr, [], "append"), "getattr"),
        (Calls(exec, "raise SystemExit"), "exec"), (Plain(), "Plain|copy(_)?reg._reconstructor"),
        ([{"deep": Calls(open, "marker", "w")}], r"io.open"), (np.float64(1), "numpy"),
        (bytearray(b"x"), "bytearray|BYTEARRAY8"), (os.system, "system"), (range(3), "range"),
    ],
)  # fmt: skip
def test_globals_are_refused_by_name(
    value: Any, named: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file names a function into being called, whatever the protocol."""
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(value, protocol)
    for options in ({}, {"weights_only": False}):
        with pytest.raises(tc.DataError, match=r"opcode ((STACK_)?GLOBAL|BYTEARRAY8)") as error:
            tc.load(archive(content), **options)
        assert re.search(rf"refused(.|\n)*({named})", str(error.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"ios\nsystem\n(S'true'\no.", "opcode INST"),
        (b"(ctorch\nSize\nI1\no.", "opcode OBJ"),
        (b"\x80\x02ctorch\nSize\n)\x81.", "opcode NEWOBJ"),
        (b"\x80\x02\x82\x01.", "opcode EXT1"),
        (b"Pname\n.", "opcode PERSID"),
        (b"\x80\x02K\x01)R.", "a call of a int(.|\n)*opcode REDUCE"),
        (b"\x80\x02ctorch\nfloat32\n)R.", "a call of global torch.float32(.|\n)*opcode REDUCE"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.", "_rebuild_tensor_v2 as a value"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.", "attributes of a Global"),
        (b"\x80\x02}}X\x01\0\0\0aK\x01sb.", "attributes of a dict(.|\n)*opcode BUILD"),
        (b"\x80\x02ccollections\nOrderedDict\n)R}X\x06\0\0\0updateK\x01sb.", "attributes"),
        (b"\x80\x02K\x01Q.", "persistent id"),
        (b"\x80\x02(X\x06\0\0\0moduleK\x01K\x01K\x01K\x01tQ.", "persistent id"),
        (b"\x80\x04X\x02\0\0\0osX\x06\0\0\0system\x93.", "global os.system(.|\n)*STACK_GLOBAL"),
        (b"\x80\x02]q\0h\0a.", "a container inside itself"),
        (b"\x80\x02]q\0(h\0K\x01te.", "damaged"),
    ],
)  # fmt: skip
def test_opcodes_are_refused_by_name(content: bytes, text: str) -> None:
    with pytest.raises(tc.DataError, match=text):
        tc.load(archive(content))


def test_memo_bombs() -> None:
    """Lists of ten times the same list, nine deep: 200 bytes that no walk comes to the end of."""
    bomb = b"\x80\x02(]q\x00"
    for level in range(1, 10):
        bomb += b"]q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 10 + b"e"
    assert len(bomb) < 300
    with pytest.raises(tc.DataError, match="unfold to over"):
        tc.load(archive(bomb + b"t."))
    deep = b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."
    with pytest.raises(tc.DataError, match="inside each other"):
        tc.load(archive(deep))
    nested = b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s."
    with pytest.raises(tc.DataError, match="tuples inside tuples"):
        tc.load(archive(nested))
    assert tc.load(archive(b"\x80\x02](]q\0K\x01ah\0h\0e.")) == [[1]] * 3


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": (3,)}, {"offset": 1}, {"shape": (1 << 61,), "strides": (0,)},
        {"shape": (1 << 40, 1 << 40), "strides": (0, 0)}, {"shape": (-1,)}, {"strides": (-1,)},
        {"strides": ()}, {"count": 1 << 61}, {"count": 3}, {"shape": (2.0,)}, {"shape": ("2",)},
        {"offset": 1 << 70}, {"shape": (1,) * 65, "strides": (1,) * 65},
        {"shape": (100_000_000,), "strides": (0,)}, {"storage": b"cbuiltins\nfloat\n"},
        {"shape": (0, 1 << 61, 1 << 61), "strides": (0, 0, 0)},
    ],
)  # fmt: skip
def test_absurd_sizes(changed: dict[str, Any]) -> None:
    """Sizes that the storage does not hold are refused before anything is allocated."""
    with pytest.raises(tc.DataError):
        tc.load(archive(tensor_pickle(**changed), TWO))


def test_archives_of_other_kinds() -> None:
    content = tensor_pickle()
    cases = [
        (archive(content), "damaged"), (archive(content, {"data/0": bytes(4)}), "damaged"),
        (archive(content, {**TWO, "byteorder": b"middle"}), "byte order"),
        (archive(content, {**TWO, "constants.pkl": b"."}), "a TorchScript program"),
        (archive(content, TWO, compression=zipfile.ZIP_DEFLATED), "is compressed"),
        (archive(content[:-1], TWO), "damaged"), (archive(b"", TWO), "damaged"),
        (archive(content[:-1] + b"N.", TWO), "left over"),
    ]  # fmt: skip
    for file, text in cases:
        with pytest.raises(tc.DataError, match=text):
            tc.load(file)
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as zip_:
        zip_.writestr("notes.txt", "a document")
    empty.seek(0)
    with pytest.raises(tc.DataError, match=r"no data\.pkl"):
        tc.load(empty)


def test_the_old_format_is_refused_with_a_remedy(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save([torch.ones(1)], tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(tc.DataError, match=r"before 1\.6(.|\n)*torch\.save\(torch\.load"):
        tc.load(tmp_path / "old.pt")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "module.pt")
    with pytest.raises(tc.DataError, match=r"torch\.nn\.modules\.linear\.Linear(.|\n)*state_dict"):
        tc.load(tmp_path / "module.pt")
    torch.save([torch.ones(1, dtype=torch.complex64).to_sparse()], tmp_path / "sparse.pt")
    with pytest.raises(tc.DataError, match="_rebuild_sparse_tensor"):
        tc.load(tmp_path / "sparse.pt")


def test_every_opcode_is_refused_or_leaves_no_object() -> None:
    """The table of opcodes has none that makes an object by a class or runs anything."""
    handled = {*restricted_pickle._LITERALS, *restricted_pickle._EMPTY}
    handled |= {*restricted_pickle._CONSTANTS, *restricted_pickle._METHODS}
    names = {opcode.name for opcode in pickletools.opcodes}
    assert handled <= names and names - handled == {
        "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BYTEARRAY8",
        "NEXT_BUFFER", "READONLY_BUFFER", "FROZENSET", "DUP", "POP", "POP_MARK",
    }  # fmt: skip

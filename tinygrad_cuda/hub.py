"""tc.hub: weights from an address; programs and pickles from an address are refused."""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlparse

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError, DataError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.utils.checkpoints import load as _load

__all__ = [
    "HASH_REGEX", "download_url_to_file", "get_dir", "list", "load", "load_state_dict_from_url",
    "set_dir", "urlparse",
]  # fmt: skip

# The beginning of a SHA-256 at the end of a file's name.
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
_folder: dict[str, Path] = {}


def get_dir() -> str:
    """The folder of what has been fetched: that of `set_dir`, else ``hub`` in the cache folder."""
    return str(_folder.get("hub", settings.cache_dir / "hub"))


def _get_torch_home() -> str:
    """The folder around `get_dir`; copies of torchvision's files ask for it."""
    return str(Path(get_dir()).parent)


def set_dir(d: str | os.PathLike[str]) -> None:
    """Where fetched files go from now on."""
    _folder["hub"] = Path(d).expanduser()


def download_url_to_file(
    url: str, dst: str | os.PathLike[str], hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Fetches a file.

    Args:
        url: ``https:``, ``http:`` or ``file:``.
        dst: where it goes; it appears whole or not at all.
        hash_prefix: the beginning of its SHA-256 in hexadecimal.

    Raises:
        DataError: it cannot be fetched, or its checksum is another.
    """
    target = Path(dst)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url) as source, part.open("wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
        if hash_prefix and not digest.hexdigest().startswith(hash_prefix):
            raise DataError(
                "hub", f"{url} has another checksum", expect=f"SHA-256 {hash_prefix}...",
                actual=digest.hexdigest(),
            )  # fmt: skip
        os.replace(part, target)
    except OSError as error:
        raise DataError(
            "hub", f"{url} cannot be fetched", expect="a file at this address", actual=str(error)
        ) from error
    finally:
        part.unlink(missing_ok=True)


def load_state_dict_from_url(
    url: str, model_dir: str | os.PathLike[str] | None = None, map_location: Any = None,
    progress: bool = True, check_hash: bool = False, file_name: str | None = None,
    weights_only: bool = False,
) -> Any:  # fmt: skip
    """The Tensors of a safetensors file at an address, fetched once.

    Args:
        url: of the file.
        model_dir: where it stays; ``checkpoints`` in `get_dir` if left out.
        map_location: the device for all Tensors.
        check_hash: the name ends in the beginning of its SHA-256, ``name-0123abcd.safetensors``.
        file_name: its name here; by default that of the address.

    Raises:
        DataError: it cannot be fetched, or is of another kind, such as a pickle.
    """
    folder = Path(model_dir) if model_dir is not None else Path(get_dir()) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (file_name or url.rpartition("/")[2].partition("?")[0])
    if not target.exists():
        prefix = target.stem.rpartition("-")[2] if check_hash else None
        download_url_to_file(url, target, prefix, progress)
    return _load(target, map_location)


def _refused(op: str) -> ArgumentError:
    return ArgumentError(
        op, "programs from an address are not run", expect="a program that you have looked at",
        actual="a repository", hint="import its model by hand; load_state_dict takes its weights",
    )  # fmt: skip


def load(repo_or_dir: str, model: str, *args: Any, **options: Any) -> NoReturn:
    """Refused: it would run a program from an address.

    Raises:
        ArgumentError: always.
    """
    raise _refused("hub.load")


def list(github: str, *args: Any, **options: Any) -> NoReturn:
    """Refused: it would run a program from an address.

    Raises:
        ArgumentError: always.
    """
    raise _refused("hub.list")


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)

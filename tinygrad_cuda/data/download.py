"""Fetches a file from one of several mirrors, resuming what an earlier attempt left behind.

The file appears under its name only when it is whole and its checksum is right.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tinygrad_cuda.core.errors import DataError

BLOCK = 1 << 20  # bytes that are read at once
TIMEOUT = 10.0  # seconds without an answer


def download(urls: Sequence[str], path: str | os.PathLike[str], md5: str) -> Path:
    """Fetches a file from the first of ``urls`` that serves it with the right checksum.

    An interrupted transfer stays beside the target as ``NAME.part`` and is continued by the next
    attempt, from whichever mirror. A wrong checksum throws the transfer away.

    Args:
        urls: addresses of the same file, in order of preference.
        path: where the file goes; its folder is made.
        md5: checksum of the whole file, in hexadecimal. It guards against damage, not malice.

    Raises:
        DataError: no mirror served the file; the text has each mirror's reason.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    reasons: list[str] = []
    cause: Exception | None = None
    for url in urls:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            resumed = _transfer(url, part)
            digest = _md5(part)
            if digest != md5 and resumed:
                # What was there before may have been the damaged half.
                part.unlink()
                _transfer(url, part)
                digest = _md5(part)
            if digest == md5:
                os.replace(part, path)
                return path
            part.unlink()
            raise ConnectionError(f"the checksum is {digest}")
        except (OSError, http.client.HTTPException) as error:
            cause = error
            reasons.append(f"{url}: {getattr(error, 'reason', None) or error}")
    raise DataError(
        "download",
        f"{path.name} could not be fetched",
        expect=f"a file with md5 {md5}",
        actual="\n".join(reasons),
        hint=f"put the file at {path} by hand",
    ) from cause


def _transfer(url: str, part: Path) -> bool:
    """Brings ``part`` to the length that the server states; True if it continued an older part."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "tinygrad_cuda"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            # A server that does not know ranges answers 200 with the whole file.
            resumed = have > 0 and response.status == http.HTTPStatus.PARTIAL_CONTENT
            stated = response.headers.get("Content-Length")
            got = 0
            with part.open("ab" if resumed else "wb") as file:
                while block := response.read(BLOCK):
                    file.write(block)
                    got += len(block)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        return True  # nothing is missing: the checksum decides
    if stated is not None and got != int(stated):
        raise ConnectionError(f"connection ended after {got} of {stated} bytes")
    return resumed


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()

"""The downloader against a server on this machine: resume, checksums, mirrors, no network."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.data.download import download

CONTENT = np.random.default_rng(0).bytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``files``; remembers each request's path and Range."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.ranges = True
        self.cut: int | None = None  # bytes after which the connection is dropped, once

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, asked = self.path.lstrip("/"), self.headers["Range"]
        self.server.requests.append((name, asked))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        first = 0
        if asked and self.server.ranges:
            first = int(asked.removeprefix("bytes=").rstrip("-"))
            if first >= len(content):
                self.send_error(416)
                return
        body = content[first:]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, self.server.cut = self.server.cut, None
        self.wfile.write(body[:cut])

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.files["data.gz"] = CONTENT
        yield server
        server.shutdown()
        thread.join()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_fetches_into_a_new_folder(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "data.gz"
    assert download([server.url("data.gz")], path, MD5) == path
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["data.gz"]


def test_resumes_after_a_dropped_connection(server: Server, tmp_path: Path) -> None:
    """The second attempt asks for the rest only, and the whole is right."""
    path = tmp_path / "data.gz"
    server.cut = 1_234_567
    with pytest.raises(DataError, match="connection ended after 1234567 of 3000000 bytes"):
        download([server.url("data.gz")], path, MD5)
    assert names(tmp_path) == ["data.gz.part"]
    download([server.url("data.gz")], path, MD5)
    assert server.requests == [("data.gz", None), ("data.gz", "bytes=1234567-")]
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["data.gz"]


def test_next_mirror_continues_what_the_first_began(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "data.gz"
    server.files["mirror/data.gz"] = CONTENT
    server.cut = 1_000_000
    download([server.url("data.gz"), server.url("mirror/data.gz")], path, MD5)
    assert server.requests[-1] == ("mirror/data.gz", "bytes=1000000-")
    assert path.read_bytes() == CONTENT


def test_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "data.gz"
    (tmp_path / "data.gz.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    download([server.url("data.gz")], path, MD5)
    assert path.read_bytes() == CONTENT


def test_damaged_part_is_fetched_once_more(server: Server, tmp_path: Path) -> None:
    """A part that never belonged to the file does not spoil the download for ever."""
    path = tmp_path / "data.gz"
    (tmp_path / "data.gz.part").write_bytes(b"x" * 1000)
    download([server.url("data.gz")], path, MD5)
    assert [asked for _, asked in server.requests] == ["bytes=1000-", None]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more", b"y" * len(CONTENT)])
def test_part_as_long_as_the_file(server: Server, tmp_path: Path, part: bytes) -> None:
    """A whole part is taken as it is; an overlong or wrong one is replaced."""
    path = tmp_path / "data.gz"
    (tmp_path / "data.gz.part").write_bytes(part)
    download([server.url("data.gz")], path, MD5)
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == (1 if part == CONTENT else 2)


def test_wrong_checksum_falls_to_the_next_mirror(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "data.gz"
    server.files["bad.gz"] = b"an error page"
    download([server.url("bad.gz"), server.url("data.gz")], path, MD5)
    assert path.read_bytes() == CONTENT


def test_every_mirror_fails(server: Server, tmp_path: Path) -> None:
    """Each mirror's reason is told, and nothing is left that looks like the file."""
    path = tmp_path / "data.gz"
    server.files["bad.gz"] = b"an error page"
    with pytest.raises(DataError) as error:
        download([server.url("none.gz"), server.url("bad.gz")], path, MD5)
    text = str(error.value)
    assert "none.gz: Not Found" in text
    assert f"bad.gz: the checksum is {hashlib.md5(b'an error page').hexdigest()}" in text
    assert MD5 in text
    assert str(path) in text
    assert names(tmp_path) == []


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port is a DataError, not a traceback of urllib."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_address[1]
    with pytest.raises(DataError, match="Connection refused"):
        download([f"http://127.0.0.1:{port}/data.gz"], tmp_path / "data.gz", MD5)

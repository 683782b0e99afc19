"""Downloading MNIST from a server on this machine: what is kept, and what a failure leaves."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files import mnist

CONTENT = {f"{name}.gz": f"{name} of digits".encode() * 4000 for name in ("first", "second")}
PACKED = {name: gzip.compress(content, mtime=0) for name, content in CONTENT.items()}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


class Server(ThreadingHTTPServer):
    """Answers GET with `files`; `asked` are the names that were, `cut` those that break off."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked, self.cut = dict(PACKED), [], set()
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path[1:]
        self.server.asked.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        data = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if name in self.server.cut else data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(mnist, "SHA256", SUMS)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def fetch(folder, server):
    said = []
    paths = mnist.fetch_mnist(folder, (server.address,), said.append)
    return paths, said


def test_files_come_once(tmp_path, server):
    paths, said = fetch(tmp_path / "a" / "b", server)
    assert [gzip.decompress(path.read_bytes()) for path in paths] == list(CONTENT.values())
    assert said == [f"{n}: {len(PACKED[n]):,} bytes from {server.address}" for n in PACKED]
    server.asked.clear()
    again, said = fetch(tmp_path / "a" / "b", server)
    assert again == paths and server.asked == []
    assert said == [f"{name}: already here" for name in PACKED]


@pytest.mark.parametrize("there", [b"not gzip", b"", gzip.compress(b"other digits", mtime=0), None])
def test_a_file_that_is_there_is_hashed_and_a_wrong_one_fetched_again(tmp_path, server, there):
    name = "first.gz"
    (tmp_path / name).write_bytes(PACKED[name][:-9] if there is None else there)
    paths, said = fetch(tmp_path, server)
    assert paths[0].read_bytes() == PACKED[name]
    assert said[0].startswith(f"{name}: already here, but ")
    assert said[0].endswith("; fetching it again")
    assert server.asked == list(PACKED)


def test_another_packing_of_the_same_file_is_kept(tmp_path, server):
    other = gzip.compress(CONTENT["first.gz"], compresslevel=1, mtime=1)
    assert other != PACKED["first.gz"]
    (tmp_path / "first.gz").write_bytes(other)
    fetch(tmp_path, server)
    assert server.asked == ["second.gz"]
    assert (tmp_path / "first.gz").read_bytes() == other


def break_off(server):
    server.cut.add("first.gz")


def give_other_bytes(server):
    server.files["first.gz"] = PACKED["second.gz"]


def give_no_gzip(server):
    server.files["first.gz"] = b"<html>please log in</html>"


def give_nothing(server):
    del server.files["first.gz"]


BREAKS = pytest.mark.parametrize(
    ("fault", "words"),
    [
        (break_off, "ended before"),
        (give_other_bytes, "is not the pinned"),
        (give_no_gzip, "Not a gzipped file"),
        (give_nothing, "404"),
    ],
)


@BREAKS
def test_a_download_that_fails_leaves_nothing(tmp_path, server, fault, words):
    fault(server)
    folder = tmp_path / "new" / "mnist"
    result = CliRunner().invoke(
        main, ["data", "fetch-mnist", str(folder), "--mirror", server.address]
    )
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("lenetgpu: error: first.gz: expected to download it, found ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr and server.address in result.stderr
    assert list(tmp_path.iterdir()) == []


@BREAKS
def test_a_download_that_fails_changes_no_file_that_was_there(tmp_path, server, fault, words):
    fault(server)
    (tmp_path / "first.gz").write_bytes(b"mine")
    (tmp_path / "notes").write_text("mine too")
    with pytest.raises(LenetError, match=f"{words}.*; the file that was there stays"):
        fetch(tmp_path, server)
    assert (tmp_path / "first.gz").read_bytes() == b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"first.gz", "notes"}


def test_what_came_whole_stays_when_the_next_fails(tmp_path, server):
    server.cut.add("second.gz")
    folder = tmp_path / "mnist"
    with pytest.raises(LenetError, match="second.gz"):
        fetch(folder, server)
    assert [path.name for path in folder.iterdir()] == ["first.gz"]
    server.cut.clear()
    server.asked.clear()
    fetch(folder, server)
    assert server.asked == ["second.gz"]


def test_the_next_mirror_is_tried(tmp_path, server):
    bad = f"{server.address}nothing/"
    paths = mnist.fetch_mnist(tmp_path, (bad, server.address))
    assert [path.read_bytes() for path in paths] == list(PACKED.values())


# interrupts itself with a file half written
INTERRUPTED = """
import os, signal, sys
from lenetgpu.cli import main
from lenetgpu.files import mnist
signal.signal(signal.SIGINT, signal.default_int_handler)
mnist.SHA256 = {"first.gz": sys.argv[1]}
plain, moves = os.fdopen, os.replace
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGINT)
main(["data", "fetch-mnist", sys.argv[2], "--mirror", sys.argv[3]], prog_name="lenetgpu")
"""


def test_a_download_that_is_interrupted_leaves_nothing(tmp_path, server):
    folder = tmp_path / "new" / "mnist"
    words = [sys.executable, "-c", INTERRUPTED, SUMS["first.gz"], str(folder), server.address]
    environment = os.environ | {"no_proxy": "127.0.0.1"}
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (130, "lenetgpu: interrupted\n")
    assert server.asked == ["first.gz"]
    assert list(tmp_path.iterdir()) == []


def test_the_pinned_sums_are_mnists(mnist):
    """Needs the four files; what is pinned is what they unpack to."""
    from lenetgpu.files.mnist import SHA256

    for name, pinned in SHA256.items():
        content = gzip.decompress((mnist / name).read_bytes())
        assert hashlib.sha256(content).hexdigest() == pinned

"""Downloads of MNIST from a local server: files written, and files left after failures."""

import gzip
import hashlib
import threading
import tracemalloc
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from terminal import refused, run

from lenetgpu.errors import LenetError
from lenetgpu.files import mnist

FETCH = ["data", "fetch-mnist"]
CONTENT = {f"{name}.gz": f"{name} of digits".encode() * 4000 for name in ("first", "second")}
PACKED = {name: gzip.compress(content, mtime=0) for name, content in CONTENT.items()}
SUMS = {name[:-3]: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


class Server(ThreadingHTTPServer):
    """A server of `files`; `asked` are the requested names, `cut` the files sent only in part."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked, self.cut = dict(PACKED), [], set()
        self.over = threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path[1:]
        self.server.asked.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        data = self.server.files[name]
        if callable(data):
            data(self)
            return
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
        made.over.set()
        made.shutdown()
        thread.join()


def fetch(folder, server):
    said = []
    paths = mnist.fetch_mnist(folder, (server.address,), said.append)
    return paths, said


def test_files_are_downloaded_once(tmp_path, server):
    paths, said = fetch(tmp_path / "a" / "b", server)
    assert [gzip.decompress(path.read_bytes()) for path in paths] == list(CONTENT.values())
    assert said == [f"{n}: {len(PACKED[n]):,} bytes from {server.address}" for n in PACKED]
    server.asked.clear()
    again, said = fetch(tmp_path / "a" / "b", server)
    assert again == paths and server.asked == []
    assert said == [f"{name}: already here" for name in PACKED]


@pytest.mark.parametrize("there", [b"not gzip", b"", gzip.compress(b"other digits", mtime=0), None])
def test_existing_file_is_verified_and_replaced_if_wrong(tmp_path, server, there):
    name = "first.gz"
    (tmp_path / name).write_bytes(PACKED[name][:-9] if there is None else there)
    paths, said = fetch(tmp_path, server)
    assert paths[0].read_bytes() == PACKED[name]
    assert said[0].startswith(f"{name}: already here, but ")
    assert said[0].endswith("; fetching it again")
    assert server.asked == list(PACKED)


def test_same_content_compressed_differently_is_kept(tmp_path, server):
    other = gzip.compress(CONTENT["first.gz"], compresslevel=1, mtime=1)
    assert other != PACKED["first.gz"]
    (tmp_path / "first.gz").write_bytes(other)
    fetch(tmp_path, server)
    assert server.asked == ["second.gz"]
    assert (tmp_path / "first.gz").read_bytes() == other


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda server: server.cut.add("first.gz"), "as announced, found "),
        (lambda server: server.files.update({"first.gz": PACKED["second.gz"]}), "not the pinned"),
        (lambda server: server.files.update({"first.gz": b"<html>"}), "Not a gzipped file"),
        (lambda server: server.files.pop("first.gz"), "404"),
    ],
)
def test_failed_download_leaves_existing_files(tmp_path, server, fault, words):
    fault(server)
    (tmp_path / "first.gz").write_bytes(b"mine")
    result = run(*FETCH, tmp_path, "--mirror", server.address, code=2)
    assert "lenetgpu: error: first.gz: expected to download it, found " in result.stderr
    assert words in result.stderr and server.address in result.stderr
    assert "; the file that was there stays" in result.stderr
    assert (tmp_path / "first.gz").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["first.gz"]


def drip(asked):
    """Send a byte every 0.05 s until the client disconnects, for 20 s at most."""
    asked.send_response(200)
    asked.end_headers()
    with suppress(OSError):
        for _ in range(400):
            asked.wfile.write(b"x")
            if asked.server.over.wait(0.05):
                return


def test_slow_download_times_out(tmp_path, server, monkeypatch):
    monkeypatch.setattr(mnist, "_ATTEMPT_S", 0.4)
    server.files["first.gz"] = drip
    with pytest.raises(LenetError, match=r"first.gz: .*not complete after 0 s"):
        fetch(tmp_path / "new", server)
    assert list(tmp_path.iterdir()) == []


def announce(length):
    def answer(asked):
        asked.send_response(200)
        asked.send_header("Content-Length", str(length))
        asked.end_headers()
        asked.wfile.write(b"x" * 10)

    return answer


def give_without_end(asked):
    asked.send_response(200)
    asked.end_headers()
    with suppress(OSError):
        for _ in range(10_000):
            asked.wfile.write(bytes(1 << 16))


def answer(code, reason="", **headers):
    def answered(asked):
        asked.send_response(code, reason)
        for name, value in headers.items():
            asked.send_header(name, value)
        asked.end_headers()

    return answered


BOMB = gzip.compress(bytes(1 << 22), mtime=0)
HOSTILE = {
    "announced": (announce(10**12), "at most 65,536 bytes, found 1000000000000"),
    "endless": (give_without_end, "at most 65,536 bytes, found more"),
    "bomb": (BOMB, "at most 1,048,576 bytes unpacked"),
    "bad checksum": (PACKED["first.gz"][:-8] + bytes(8), "CRC check failed"),
    "reason": (answer(500, "\x1b[31mred\x9b"), r"500: \x1b[31mred\x9b"),
    "to a file": (answer(302, Location="file:///etc/passwd"), "302"),
}


@pytest.mark.parametrize(("given", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_server_is_refused(given, words, tmp_path, server, monkeypatch):
    monkeypatch.setattr(mnist, "MAX_BYTES", 1 << 16)
    monkeypatch.setattr(mnist, "MAX_UNPACKED_BYTES", 1 << 20)
    server.files["first.gz"] = given
    folder = tmp_path / "new"
    tracemalloc.start()
    result = run(*FETCH, folder, "--mirror", server.address)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    refused(result, "error: first.gz: expected to download it, found ", words)
    assert most < 16 << 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mirror", ["file:///etc/", "http://["])
def test_non_http_mirror_is_refused(mirror, tmp_path, server):
    result = run(*FETCH, tmp_path, "--mirror", mirror)
    refused(result, "error: first.gz: expected to download it, found ")


def test_pinned_checksums_match_mnist(mnist):
    """Requires the four files; the pinned digests are of their unpacked bytes."""
    from lenetgpu.files.mnist import SHA256

    for name, pinned in SHA256.items():
        content = gzip.decompress((mnist / f"{name}.gz").read_bytes())
        assert hashlib.sha256(content).hexdigest() == pinned

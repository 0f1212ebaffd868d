"""Data files at an address: fetched once, known by their content, and told of in a sentence when they are not there."""

import gzip
import http.server
import json
import threading
from pathlib import Path

import fsspec
import pytest

from weakdriven.data.rows import remote
from weakdriven.data.rows.files import count_rows, data_key, read_rows
from weakdriven.data.rows.remote import cache_folder, fetch
from weakdriven.errors import UserError

ROWS = [{"id": str(i), "prompt": f"{i}+1?", "completion": str(i + 1)} for i in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remote.fetch.cache_clear()


def put(address: str, content: bytes = LINES) -> str:
    with fsspec.open(address, "wb") as file:
        file.write(content)
    return address


def another_process() -> None:
    remote.fetch.cache_clear()


@pytest.mark.parametrize("ending, pack", [(".jsonl", bytes), (".jsonl.gz", gzip.compress)])
def test_rows_at_an_address_are_those_of_the_file(ending, pack, tmp_path):
    address = put(f"memory://bucket/train{ending}", pack(LINES))
    assert list(read_rows(address)) == ROWS and count_rows(address) == 3


def test_a_key_depends_on_the_content_and_not_on_the_address(tmp_path):
    local = tmp_path / "train.jsonl"
    local.write_bytes(LINES)
    keys = {data_key(put(f"memory://{name}.jsonl"), "train") for name in ("one/a", "two/b")}
    assert keys == {data_key(str(local), "train")}
    assert data_key(put("memory://three.jsonl", LINES + LINES[:1]), "train") not in keys


def test_it_is_copied_once_and_again_only_when_it_changed(monkeypatch):
    address, copies = put("memory://once/train.jsonl"), []
    copy = remote._download
    monkeypatch.setattr(remote, "_download", lambda *facts: copies.append(1) or copy(*facts))
    with served({"/train.jsonl": LINES}) as (url, files):
        for wanted in (1, 1):
            another_process()
            assert fetch(url + "/train.jsonl").read_bytes() == LINES and len(copies) == wanted
        files["/train.jsonl"] = LINES * 2
        another_process()
        assert fetch(url + "/train.jsonl").read_bytes() == LINES * 2 and len(copies) == 2
    fetch(address), fetch(address)
    assert len(copies) == 3


def test_without_a_network_the_copy_is_used_and_without_a_copy_there_is_an_error(monkeypatch, caplog):
    with served({"/train.jsonl": LINES}) as (url, _):
        fetch(url + "/train.jsonl")
    another_process()
    assert fetch(url + "/train.jsonl").read_bytes() == LINES
    assert "cannot be reached" in caplog.text
    with pytest.raises(UserError, match=r"other\.jsonl cannot be read .* or copy the file"):
        fetch(url + "/other.jsonl")


def test_a_file_that_is_gone_raises_an_error_although_there_is_a_copy(monkeypatch):
    with served({"/train.jsonl": LINES}) as (url, files):
        fetch(url + "/train.jsonl")
        files.clear()
        another_process()
        with pytest.raises(UserError, match="there is no such file"):
            fetch(url + "/train.jsonl")
    with pytest.raises(UserError, match="there is no such file"):
        fetch("memory://nowhere/train.jsonl")


def test_a_file_that_is_cut_off_leaves_nothing_behind(monkeypatch):
    with served({"/train.jsonl": LINES}, cut=True) as (url, _), pytest.raises(UserError):
        fetch(url + "/train.jsonl")
    assert [path for path in cache_folder().rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("address, package", [("s3://bucket/x.jsonl", "s3fs"), ("gs://bucket/x.jsonl", "gcsfs")])
def test_a_missing_driver_is_named(address, package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)  # as if it were not installed
    with pytest.raises(UserError, match=f"pip install {package}"):
        fetch(address)


@pytest.mark.parametrize("address", ["nonsense://x/y.jsonl", "https://", "http://[::1", "memory://folder"])
def test_an_address_that_cannot_be_read_raises_an_error(address):
    put("memory://folder/x.jsonl")
    with pytest.raises(UserError):
        list(read_rows(address))


def test_a_file_without_an_ending_raises_an_error():
    with pytest.raises(UserError, match="unknown ending"):
        list(read_rows(put("memory://x/rows")))


def test_credentials_are_neither_printed_nor_stored(monkeypatch):
    with served({"/train.jsonl?token=s3cr3t-Tok": LINES, "/train.jsonl": LINES}) as (url, _):
        secret = url.replace("http://", "http://me:hunter22@") + "/train.jsonl?token=s3cr3t-Tok"
        try:
            fetch(secret)
        except UserError as error:
            assert "hunter22" not in str(error) and "s3cr3t-Tok" not in str(error)
    with pytest.raises(UserError) as caught:
        fetch("http://me:hunter22@127.0.0.1:9/x.jsonl?token=s3cr3t-Tok")
    assert "hunter22" not in str(caught.value) and "s3cr3t-Tok" not in str(caught.value)
    kept = b"".join(path.read_bytes() for path in Path(cache_folder()).rglob("*.json"))
    assert b"hunter22" not in kept and b"s3cr3t-Tok" not in kept


class served:
    """Files over HTTP on this machine, which may change; with their ETags, as buckets have them."""

    def __init__(self, files: dict[str, bytes], *, cut: bool = False) -> None:
        self.files = files

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.send_header("ETag", f'"{hash(content)}"')
                self.end_headers()
                if self.command == "GET" and content:
                    self.wfile.write(content[: len(content) // 2] if cut else content)

            do_HEAD = do_GET

            def log_message(self, format, *args):
                """Quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> tuple[str, dict[str, bytes]]:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}", self.files

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()

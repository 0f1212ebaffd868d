"""Data files at an address (s3://, gs://, https://, hf:// and others that fsspec supports), downloaded once.

The cache is addressed by content, like the Hub's: `blobs/<sha256><ending>` are files, and `refs/<hash of the
address>.json` records which file an address returned last, with its version mark (ETag, checksum or time). So a file
that moves to another address keeps its name here, and with it the keys of everything made from it.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import httpx2 as httpx

from weakdriven.errors import UserError
from weakdriven.runs.files import read_json, sync, write_json
from weakdriven.runs.redact import ELLIPSIS, redact, without_login

logger = logging.getLogger(__name__)
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
LOGIN = re.compile(r"[^/]+://[^/@:]*:([^/@]+)@")
COPY = "copy the file to this machine"
DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
DRIVERS |= {"sftp": "paramiko", "ssh": "paramiko", "oss": "ossfs"}
MARKS = ("ETag", "etag", "md5Hash", "md5", "checksum", "sha256", "mtime", "LastModified", "last_modified", "updated")
"""Names in file systems for a file's checksum or the time of its last change."""
BLOCK = 1 << 20


def is_remote(path: str) -> bool:
    return ADDRESS.match(path) is not None


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weakdriven" / "data"


@cache
def fetch(address: str) -> Path:
    """Return the local copy of an address; check it once per process, and download it only if it changed."""
    system, place = open_system(address)
    ref = cache_folder() / "refs" / f"{hashlib.sha256(address.encode()).hexdigest()}.json"
    old = read_json(ref) if ref.exists() else {}
    cached = cache_folder() / "blobs" / old.get("blob", "")
    have = cached.is_file()
    try:
        found = system.info(place)
    except FileNotFoundError:
        raise UserError(f"{without_login(address)}: there is no such file; check the address.") from None
    except Exception as error:  # every driver has its own exceptions
        if have:
            logger.warning("%s cannot be reached; using the earlier copy.", without_login(address))
            return cached
        raise unreachable(address, error) from None
    if found.get("type") == "directory":
        raise UserError(f"{without_login(address)} is a folder; give one data file.")
    size, mark = found.get("size"), next((f"{name} {found[name]}" for name in MARKS if found.get(name)), None)
    if have and mark is not None and (mark, size) == (old["mark"], old["reported_size"]):
        return cached
    return _download(system, place, address, ref, {"mark": mark, "reported_size": size})


def _download(system: Any, place: str, address: str, ref: Path, facts: dict[str, Any]) -> Path:
    """Download to a blob while hashing; rename blob and reference into place when complete."""
    blobs = cache_folder() / "blobs"
    for folder in (blobs, ref.parent):
        folder.mkdir(parents=True, exist_ok=True)
    digester, count, size = hashlib.sha256(), 0, facts["reported_size"]
    with TemporaryDirectory(dir=cache_folder()) as work:
        part = Path(work) / "part"
        try:
            with part.open("wb") as file, system.open(place, "rb") as source:
                while block := source.read(BLOCK):
                    digester.update(block)
                    count += file.write(block)
        except Exception as error:
            if getattr(error, "errno", None) == ENOSPC:
                raise
            raise unreachable(address, error) from None
        if size is not None and count != size:
            raise UserError(f"{without_login(address)} was cut off after {count:,} of {size:,} bytes; run again.")
        sync(part)
        blob = blobs / (digester.hexdigest() + ending(place))
        write_json(Path(work) / "ref", {"address": without_login(address), "blob": blob.name, **facts})
        os.replace(part, blob)
        os.replace(Path(work) / "ref", ref)
    return blob


def open_system(address: str, *, instead: str = COPY) -> tuple[Any, str]:
    """Open the file system of an address and return the place in it; errors end in what to do `instead`."""
    import fsspec.core

    scheme = address.partition("://")[0].lower()
    if scheme in ("http", "https"):
        return _Web(), address
    try:
        return fsspec.core.url_to_fs(address)
    except ImportError:
        package = DRIVERS.get(scheme, f"fsspec's driver for {scheme}")
        raise UserError(
            f"{without_login(address)} needs {package}, which is not installed here; "
            f"pip install {DRIVERS.get(scheme, 'it')}, or {instead}."
        ) from None
    except Exception as error:
        raise unreachable(address, error, instead) from None


class _Web:
    """Files over HTTP; fsspec's driver would need aiohttp."""

    def info(self, address: str) -> dict[str, Any]:
        answer = httpx.head(address, follow_redirects=True, timeout=30)
        if answer.status_code in (405, 501):  # a server that does not support HEAD
            return {}
        _refuse_status(answer)
        size = answer.headers.get("Content-Length", "")
        packed = answer.headers.get("Content-Encoding", "identity") != "identity"
        marks = {"ETag": answer.headers.get("ETag"), "mtime": answer.headers.get("Last-Modified")}
        return {**marks, "size": int(size) if size.isdecimal() and not packed else None}

    @contextmanager
    def open(self, address: str, mode: str) -> Iterator[Any]:
        with httpx.stream("GET", address, follow_redirects=True, timeout=60) as answer:
            _refuse_status(answer)
            blocks = answer.iter_bytes(BLOCK)
            yield SimpleNamespace(read=lambda _: next(blocks, b""))


def _refuse_status(answer: httpx.Response) -> None:
    if answer.status_code in (404, 410):
        raise FileNotFoundError(answer.status_code)
    if answer.status_code >= 400:
        raise ConnectionError(f"the server returned {answer.status_code} {answer.reason_phrase}")


def unreachable(address: str, error: Exception, instead: str = COPY) -> UserError:
    why = reason(address, error)
    return UserError(
        f"{without_login(address)} cannot be read ({why}); check the address, the network and the login, or {instead}."
    )


def reason(address: str, error: Exception) -> str:
    """Format a driver's error as one line without the secrets of the address.

    >>> reason("s3://me:pa55@bucket/x", ValueError("no bucket me:pa55@bucket"))
    'ValueError: no bucket me:…@bucket'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    why = redact(f"{type(error).__name__}: {lines[0]}".replace(address, without_login(address)))
    if login := LOGIN.match(address):
        for password in (login[1], unquote(login[1])):
            why = why.replace(password, ELLIPSIS)
    return why[:300]


def ending(place: str) -> str:
    """Return the file ending that decides how a file is read, without the rest of its name.

    >>> ending("bucket/train.jsonl.gz"), ending("x/rows.parquet?version=3"), ending("x/..."), ending("x/a.b/c")
    ('.jsonl.gz', '.parquet', '', '')
    """
    name = place.partition("?")[0].lower()
    found = re.search(r"(?:\.(?:jsonl|json|csv|tsv))?\.(?:jsonl|json|csv|tsv|gz|zst|parquet)$", name)
    return found[0] if found else ""

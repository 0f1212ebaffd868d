"""Hashes of files are remembered as long as a file is the same, and no longer."""

import hashlib
import os
import time

import pytest

from weakdriven.runs import files
from weakdriven.runs.files import LARGE, file_digest


@pytest.fixture
def reads(monkeypatch):
    """How often content was hashed."""
    counted = []

    def sha256(*args):
        counted.append(1)
        return hashlib.new("sha256", *args)

    monkeypatch.setattr(files, "hashlib", type("Hashes", (), {"sha256": staticmethod(sha256)}))
    return counted


def written(path, content, *, age=10.0):
    path.write_bytes(content)
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_a_large_file_is_hashed_once_also_under_another_name(tmp_path, reads):
    file = written(tmp_path / "a", b"x" * LARGE)
    first = file_digest(file)
    file.rename(tmp_path / "b")
    os.link(tmp_path / "b", tmp_path / "c")
    assert {file_digest(tmp_path / "b"), file_digest(tmp_path / "c")} == {first} and len(reads) == 1
    assert first == hashlib.sha256(b"x" * LARGE).hexdigest()[:32]


def test_a_changed_file_is_hashed_again(tmp_path, reads):
    first = file_digest(written(tmp_path / "a", b"x" * LARGE))
    assert file_digest(written(tmp_path / "a", b"y" * LARGE, age=5)) != first and len(reads) == 2

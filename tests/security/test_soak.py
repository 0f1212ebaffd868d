"""The demo twice in one process leaves nothing behind; the full soak is benchmarks/soak.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak

TWICE = """
import json
import sys
from dataclasses import asdict

sys.path.insert(0, sys.argv[1])
import soak

print(json.dumps([asdict(note) for note in soak.soak_demo(2, [*soak.SHORT, "baselines=[]"])[0]]))
"""


@pytest.mark.slow
def test_two_short_demos_leave_no_process_file_or_thread_behind():
    """In a process of their own: this one has what other tests left in it."""
    command = [sys.executable, "-c", TWICE, str(Path(soak.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    first, last = (soak.Note(**note) for note in json.loads(done.stdout.splitlines()[-1]))
    for name in soak.COUNTED:
        assert getattr(last, name) <= getattr(first, name), name
    assert last.leftovers == 0
    assert last.rss < 1.15 * first.rss


def note(rss: int, **changes: int) -> soak.Note:
    return soak.Note(**{"rss": rss, "files": 9, "threads": 1, "children": 0, "leftovers": 0} | changes)


def test_a_leak_is_reported_and_noise_is_not():
    assert soak.verdict([note(10**9 + 10**6 * (place % 3)) for place in range(20)]) == []
    assert "memory rises" in soak.verdict([note(10**9 + 10**7 * place) for place in range(20)])[0]
    assert soak.verdict([note(10**9), note(10**9, files=12, leftovers=1)]) == ["files 9 -> 12", "leftovers 0 -> 1"]


def test_a_file_left_open_or_lying_about_is_seen(tmp_path):
    with soak.own_temporary_folder() as folder:
        before = soak.note_now()
        with (folder / "tmp/left").open("w"):
            after = soak.note_now()
    assert (after.files, after.leftovers) == (before.files + 1, before.leftovers + 1)
    assert not folder.exists()

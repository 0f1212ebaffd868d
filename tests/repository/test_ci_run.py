"""The script that decides whether a change lands: browser tests are never skipped unseen."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from run_files import put

SCRIPT = Path(__file__).parents[2] / ".ci/run"


@pytest.mark.parametrize(
    ("commands", "code", "told"),
    [
        ({}, 0, "No Chromium and no apt-get here: the browser tests are skipped."),
        ({"apt-get": 1}, 1, "Chromium cannot be installed"),
        ({"apt-get": 0}, 0, "apt-get install -y -qq chromium"),
        ({"chromium": 0, "apt-get": 1}, 0, ""),
        ({"chromium-browser": 0, "apt-get": 1}, 0, ""),
    ],
)
def test_chromium_is_there_or_installed_or_said_to_be_missing(tmp_path, commands, code, told):
    for name in ("bash", "dirname"):
        os.symlink(str(shutil.which(name)), tmp_path / name)
    for name, status in {"make": 0, **commands}.items():
        put(tmp_path / name, f'#!{tmp_path}/bash\necho {name} "$@" >> {tmp_path}/called\nexit {status}\n')
        (tmp_path / name).chmod(0o755)
    command = [str(tmp_path / "bash"), str(SCRIPT)]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    called = (tmp_path / "called").read_text() if (tmp_path / "called").exists() else ""
    assert done.returncode == code and told in done.stdout + done.stderr + called
    assert ("make test" in called) == (code == 0)

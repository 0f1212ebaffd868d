"""The command line, called in this process, and the settings of the whole small run that several tests look at."""

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

WHOLE = [
    *("data.limit=32", "eval.limit=8", "eval.max_new_tokens=8", "sft.save_steps=2", "joint.save_steps=2"),
    *("sft.batch_size=8", "sft.micro_batch_size=8", "joint.batch_size=4", "joint.micro_batch_size=4"),
    *("sft.epochs=1", "sft.learning_rate=2e-3", "joint.learning_rate=2e-3", "baselines=[sft]"),
]


class Result(NamedTuple):
    code: int | str
    out: str
    err: str


def weakdriven(*words: object) -> Result:
    """Exit code and output of a command, on a wide terminal."""
    from weakdriven.commands.app import main

    out, err, code = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["weakdriven", *map(str, words)])
        patch.setenv("COLUMNS", "200")
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Result(code, out.getvalue(), err.getvalue())


def assert_user_error(result: Result, *words: str) -> None:
    """A user's mistake is one sentence on stderr and exit code 2, without a traceback."""
    assert result.code == 2 and result.err.startswith("Error: ") and "Traceback" not in result.err, result
    assert all(word in result.err for word in words), result.err


DIES_AT = """
import os, pathlib, signal, sys, threading, time
from weakdriven.commands.app import main

def watch(path):
    while not path.exists():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=watch, args=(pathlib.Path(sys.argv.pop(1)),), daemon=True).start()
main()
"""


def killed_at(path: Path, *words: object) -> int:
    """Exit code of a command in a process that kills itself as soon as a file is there."""
    command = [sys.executable, "-c", DIES_AT, str(path), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # as in this process
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode

"""Calls the command line in this process; also the settings of the complete small run that several tests share."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

import pytest

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
    """Run a command on a wide terminal, and return its exit code and output."""
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
    """Check that a user's mistake gives one sentence on stderr and exit code 2, without a traceback."""
    assert result.code == 2 and result.err.startswith("Error: ") and "Traceback" not in result.err, result
    assert all(word in result.err for word in words), result.err

"""Runs programs that nobody has read, without the network, files or rights of the host, and under limits.

Start at `run.py`: `run_code` takes a program and returns how it ended. `isolation.py` has the commands that isolate it,
with bubblewrap or util-linux. `watcher.py` is process 1 of the sandbox: it starts the program and enforces the limits.
`io_tests.py` runs inside and feeds an answer the inputs of its tests. What makes an answer right is in `eval/graders`.
"""

from weakdriven.eval.sandbox.run import CodeResult, SandboxError, run_code

__all__ = ["CodeResult", "SandboxError", "run_code"]

"""Run untrusted programs under limits, without network, files or rights of the host.

Start at `run.py`: `run_code` takes a program and returns how it ended. `isolation.py` has the commands that isolate it,
with bubblewrap or util-linux. `watcher.py` is process 1 of the sandbox: it starts the program and enforces the limits.
`io_tests.py` runs inside and gives an answer the inputs of its tests. `eval/graders` decides which answers are right.
"""

from weakdriven.eval.sandbox.run import CodeResult, SandboxError, run_code

__all__ = ["CodeResult", "SandboxError", "run_code"]

"""Start a vLLM server of a model folder in a separate environment, and always stop it."""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired, run

import httpx2

from weakdriven.errors import UserError

NOT_PASSED_ON = ("TRITON_INTERPRET", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of our process that a server must not inherit."""
CPU_CACHE_GIB = "4"
"""Cache size of vLLM's CPU build, which would otherwise take nearly all memory; GPUs ignore it."""
GUARD = """
import os, signal, sys, time
sys.stdin.read()
for number in (signal.SIGTERM, signal.SIGKILL):
    os.killpg(int(sys.argv[1]), number)
    time.sleep(5)
"""
"""A process that stops the server when our end of the pipe closes, even if we were killed."""


@contextmanager
def serve(
    python: str | Path,
    model_folder: str | Path,
    *,
    log: Path,
    dtype: str | None = None,
    max_model_len: int | None = None,
    extra: Sequence[str] = (),
    start_seconds: float = 1800.0,
    stop_seconds: float = 20.0,
) -> Iterator[str]:
    """Start a vLLM server on a free local port, yield its address, and stop it with all its processes.

    Args:
        dtype: `float32`, `bfloat16` or `float16`; vLLM's default turns a float32 checkpoint into 16 bits.
        max_model_len: Tokens of a prompt with its completion; by default the model's own limit, which may need
            more cache than there is memory.
    """
    check_python(python)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(Path(model_folder).resolve())]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", Path(model_folder).resolve().name]
    # only the request decides about its completion
    command += ["--generation-config", "vllm", "--disable-uvicorn-access-log"]
    command += ["--dtype", dtype] if dtype else []
    command += ["--max-model-len", str(max_model_len)] if max_model_len else []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = Popen(
            [*command, *extra], env=_environment(), stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
        )
    try:
        command = [sys.executable, "-I", "-S", "-c", GUARD, str(process.pid)]
        guard = Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}", log, start_seconds)
            yield f"http://127.0.0.1:{port}"
        finally:
            guard.kill()
            guard.communicate()
    finally:
        _stop(process, stop_seconds)


def _environment() -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
    # PYTHONSAFEPATH: a folder with the name of a library must not be imported instead of it
    ours = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": CPU_CACHE_GIB, "PYTHONSAFEPATH": "1"}
    return ours | given


def check_python(python: str | Path) -> None:
    look = "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec('vllm') is None else 0)"
    try:
        found = run([str(python), "-c", look], env=_environment(), capture_output=True, timeout=60)
        problem = {0: "", 3: "has no vLLM"}.get(found.returncode, f"ends with code {found.returncode}")
    except (OSError, TimeoutExpired) as error:
        problem = f"cannot be run ({error})"
    if problem:
        raise UserError(
            f"{python} {problem}; give the python of an environment that has vLLM, such as .venv-vllm/bin/python, or "
            f"install it ({python} -m pip install vllm). vLLM cannot share weakdriven's environment, which "
            "needs a later transformers."
        )


def _wait_until_ready(process: "Popen[bytes]", url: str, log: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    with httpx2.Client(timeout=5.0, trust_env=False, verify=False) as client:
        while process.poll() is None:
            with suppress(httpx2.RequestError):
                if client.get(f"{url}/health").status_code == 200:
                    return
            if time.monotonic() > end:
                raise UserError(f"The vLLM server was not ready after {seconds:.0f} seconds. {_last_words(log)}")
            time.sleep(0.2)
    raise UserError(f"The vLLM server ended with code {process.returncode} before it was ready. {_last_words(log)}")


def _last_words(log: Path) -> str:
    """Quote the first error in a log, which causes the following ones, and the last lines."""
    lines = [line.rstrip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b\w+(Error|Exception): ", line) and " WARNING " not in line]
    first = f"The first error in its log:\n  {errors[0]}\n" if errors and errors[0] not in lines[-8:] else ""
    return f"{first}The end of its log, {log}:\n" + "\n".join(f"  {line}" for line in lines[-8:])


def _stop(process: "Popen[bytes]", seconds: float) -> None:
    """Stop the server and all processes that it started, which may outlive it."""
    try:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutExpired):
            process.wait(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

"""Forks runs from one process that has everything imported; each may have a fault inside.

As a script, it reads orders, one JSON object per line, and answers each with the process id and the exit code.
"""

import errno
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BACK = 40 * 86_400
"""Seconds by which a wrong clock is set back."""


def strike(kind: str, path: str) -> None:
    """Cause the fault at the chosen moment, when the file `path` is about to be opened or renamed."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    else:
        os.kill(os.getpid(), signal.SIGINT if kind == "interrupt" else signal.SIGTERM)


def at_file_event(fault: dict[str, Any]) -> None:
    """Strike after a number of opened or renamed files in the stage's work folder; a full disk, when one is written."""
    place, seen = f".work/{fault['stage'].replace('/', '--')}/", [0]

    def hook(event: str, details: tuple) -> None:
        if event not in ("open", "os.rename") or not isinstance(details[0], str | os.PathLike):
            return
        path = os.fspath(details[0])
        here = place in path and fault.get("file", "") in path
        written = event == "os.rename" or set(details[1] or "") & set("wax")
        if here and (fault["kind"] != "disk" or written):
            seen[0] += 1
            if seen[0] == fault["at"]:
                strike(fault["kind"], path)

    sys.addaudithook(hook)


def at_step(fault: dict[str, Any]) -> None:
    """From a step of a stage's training on, make a weight NaN or let the forward pass run out of memory."""
    from transformers import Trainer

    usual: Callable = Trainer.training_step

    def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if fault["stage"].replace("/", "--") in str(self.args.output_dir) and self.state.global_step == fault["at"]:
            if fault["kind"] == "nan":
                weight = next(one for one in model.parameters() if one.requires_grad)
                weight.data.view(-1)[0] = float("nan")
            else:
                model.register_forward_pre_hook(out_of_memory)
        return usual(self, model, *args, **kwargs)

    def out_of_memory(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes.")

    Trainer.training_step = training_step


def clock_back(_: dict[str, Any]) -> None:
    usual = time.time
    time.time = lambda: usual() - BACK


def kill_at(fault: dict[str, Any]) -> None:
    """Strike when a file appears."""

    def watch() -> None:
        while not os.path.exists(fault["path"]):
            time.sleep(0.001)
        strike("kill", fault["path"])

    threading.Thread(target=watch, daemon=True).start()


def prepare(fault: dict[str, Any] | None) -> None:
    import weakdriven.wmss.score_files

    weakdriven.wmss.score_files.FLUSH_SECONDS = 0.0  # one part per batch, so that there is one to damage
    if fault is None:
        return
    where = {"nan": at_step, "memory": at_step, "clock": clock_back, "kill at": kill_at}
    where.get(fault["kind"], at_file_event)(fault)


def run(order: dict[str, Any]) -> None:
    """Run the command line in the forked process, with its output in a file."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    code = 1
    try:
        prepare(order.get("fault"))
        from weakdriven.commands.app import main

        sys.argv = ["weakdriven", *order["argv"]]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

    import weakdriven.commands.app
    import weakdriven.eval.engines
    import weakdriven.pipeline.run
    import weakdriven.planning.rehearsal  # imports everything that trains
    import weakdriven.runs.progress  # noqa: F401
    from weakdriven.data.demo import demo_rows

    for split in ("train", "test"):
        demo_rows(split)
    gc.freeze()  # excludes imported modules from garbage collection in runs
    for line in sys.stdin:
        order = json.loads(line)
        if not (process := os.fork()):
            run(order)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    serve()

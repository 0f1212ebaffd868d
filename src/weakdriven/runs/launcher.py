"""`weakdriven run RECIPE --launch CONFIG`: run the same command in several processes, started by accelerate.

CONFIG is a file for `accelerate launch --config_file`, or the name of a shipped one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from weakdriven.errors import UserError
from weakdriven.runs.signals import EXIT_CODE
from weakdriven.runs.yaml import read_yaml, shipped

OPTION, LAUNCHED = "--launch", "WEAKDRIVEN_LAUNCHED"
"""LAUNCHED is an environment variable of launched processes; they get the same command line and ignore the option."""
PASSED_ON = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGTERM,
}
"""Maps signals that we receive to those that we send on; schedulers send USR1 to ask a job to save and exit."""
SHUTDOWN_SECONDS = "600"
"""Seconds that torchrun waits after a SIGTERM before it kills processes that are still saving; its default is 30."""
shipped_configs = partial(shipped, "launch")


def find_config(name: str) -> Path:
    """Return the path of a configuration given by name or path."""
    shipped = shipped_configs()
    if name in shipped:
        return shipped[name]
    path = Path(name).expanduser()
    if path.is_file():
        return path
    near = get_close_matches(name, shipped, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(
        f"{OPTION} {name} is neither a file nor a shipped configuration.{hint} Shipped: {', '.join(shipped)}."
    )


def refuse_deepspeed() -> None:
    raise UserError(
        "DeepSpeed is not supported; use FSDP2, which shards as ZeRO-3 does (--launch fsdp2-8gpu, or in a script "
        "`accelerate launch` with fsdp_version: 2)."
    )


def read_config(path: Path) -> dict[str, Any]:
    try:
        found = read_yaml(path)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML ({error}); give a file of `accelerate config`.") from error
    if not isinstance(found, dict) or "distributed_type" not in found:
        raise UserError(
            f"{path} is not a configuration of accelerate: it has no distributed_type. Create one with "
            f"`accelerate config`, or use one of {', '.join(shipped_configs())}."
        )
    processes = found.get("num_processes", 1)
    if not isinstance(processes, int) or processes < 1:
        raise UserError(f"{path}: num_processes is {processes!r}; expected the number of processes on all machines.")
    return found


def launch_command(config: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts accelerate, as a list of arguments."""
    machine = ["--machine_rank", rank] if (rank := os.environ.get("WEAKDRIVEN_MACHINE_RANK")) else []
    address = ["--main_process_ip", ip] if (ip := os.environ.get("WEAKDRIVEN_MAIN_IP")) else []
    start = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config), *machine, *address]
    return [*start, "-m", "weakdriven", *arguments]


def launch(name: str, arguments: Sequence[str]) -> int:
    """Start `weakdriven` with these arguments under a configuration; return the launcher's exit code.

    A single process replaces the current one, so that signals reach the training directly.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{OPTION} is given, but a launcher has already started this process; remove one of them.")
    path = find_config(name)
    config = read_config(path)
    if config["distributed_type"] == "DEEPSPEED":
        refuse_deepspeed()
    refuse_missing_gpus(name, config)
    environment = {**os.environ, LAUNCHED: "1"}
    environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SHUTDOWN_SECONDS)
    if config.get("num_processes", 1) == 1 and config.get("num_machines", 1) == 1:
        if (gpus := str(config.get("gpu_ids", "all"))) != "all":
            environment.setdefault("CUDA_VISIBLE_DEVICES", gpus)
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", "weakdriven", *arguments], environment)
    return supervised(launch_command(path, arguments), environment)


def refuse_missing_gpus(name: str, config: dict[str, Any]) -> None:
    """Raise an error if a configuration with `gpu_ids`, which has a GPU per process, needs more GPUs than there are.

    A single process may also run on the CPU.
    """
    processes = config.get("num_processes", 1) // config.get("num_machines", 1)
    if processes < 2 or "gpu_ids" not in config or config.get("use_cpu"):
        return
    import torch

    if (found := torch.cuda.device_count()) < processes:
        raise UserError(
            f"{OPTION} {name} starts {processes} processes with a GPU each, but this machine has {found}. Use a "
            "configuration with fewer processes; fsdp2-cpu-2 runs without a GPU."
        )


def supervised(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command in its own session, pass on the signals that this process receives, and return its exit code."""
    # set the handlers first, so that a signal during the start is passed on too
    waiting, stopped = list[int](), False
    old = {number: signal.signal(number, lambda got, _: waiting.append(got)) for number in PASSED_ON}
    try:
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        while (code := process.poll()) is None:
            while waiting:
                number = PASSED_ON[signal.Signals(waiting.pop(0))]
                stopped = stopped or number == signal.SIGTERM
                process.send_signal(number)
            try:
                process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if code and stopped:  # torchrun exits with a traceback and 1, whatever its processes return
        return EXIT_CODE
    return code if code >= 0 else 128 - code

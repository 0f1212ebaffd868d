"""--launch and what ships for it: configurations that accelerate takes, signals that arrive, examples that parse."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from typer.testing import CliRunner

from weakdriven.commands.app import app
from weakdriven.config.file import load_recipe
from weakdriven.errors import UserError
from weakdriven.runs.launcher import find_config, launch, launch_command, read_config, shipped_configs, supervised
from weakdriven.runs.signals import EXIT_CODE
from weakdriven.training.launch import refuse_plugin

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = list(shipped_configs())


@pytest.mark.parametrize("name", CONFIGS)
def test_accelerate_takes_each_shipped_configuration(name):
    path = find_config(name)
    config = load_config_from_file(str(path))
    assert config.mixed_precision == "no", "the recipe decides"
    assert config.num_processes >= 1 and config.num_processes % config.num_machines == 0
    options = launch_command_parser().parse_args(launch_command(path, ["run", "demo"])[3:])
    assert options.config_file == str(path) and options.module and options.training_script == "weakdriven"


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.startswith("fsdp2")])
def test_shipped_ways_to_shard_are_those_that_training_takes(name, monkeypatch):
    for key, value in read_config(find_config(name))["fsdp_config"].items():
        monkeypatch.setenv(key.upper(), str(value).lower() if isinstance(value, bool) else str(value))
    refuse_plugin(FullyShardedDataParallelPlugin())


def test_the_environment_of_the_pytorchjob_is_what_the_configuration_for_machines_says():
    job = yaml.safe_load((EXAMPLES / "kubernetes/pytorchjob.yaml").read_text())
    machine = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    told = {entry["name"].lower(): str(entry["value"]) for entry in machine["env"]}
    config = read_config(find_config("fsdp2-multinode"))["fsdp_config"]
    named = {key: value for key, value in told.items() if key.startswith("fsdp_")}
    assert named and all(str(config[key]).lower() == value.lower() for key, value in named.items())


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("kubernetes/*.yaml")), ids=lambda path: path.name)
def test_what_kubernetes_starts_is_a_command_of_ours(file):
    specs = [yaml.safe_load(file.read_text())["spec"]]
    found = []
    while specs:
        node = specs.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if key == "containers":
                found += [[*container["command"], *container["args"]] for container in value]
            elif isinstance(value, dict | list):
                specs.append(value)
    assert found
    for words in found:
        check_command(words[words.index("run") :])


def test_the_slurm_script_is_a_shell_script_with_a_command_of_ours():
    script = EXAMPLES / "slurm/run.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True).returncode == 0
    text = script.read_text()
    check_command(re.search(r"exec weakdriven (run [^']*)'", text)[1].replace('"$1"', "demo").replace('"', "").split())
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))
    assert directives["signal"] == "B:USR1@120" and "requeue" in directives
    config = read_config(find_config("fsdp2-multinode"))
    assert int(directives["nodes"]) == config["num_machines"]
    assert int(directives["nodes"]) * int(directives["gpus-per-node"]) == config["num_processes"]


def check_command(words: list[str]) -> None:
    """Its recipe loads with its overrides, its options exist, and its configuration ships."""
    overrides = [word for word in words[2:] if "=" in word]
    load_recipe(words[1], overrides)
    options = [word for word in words if word.startswith("--")]
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert all(option in shown for option in options)
    if "--launch" in words:
        find_config(words[words.index("--launch") + 1])


def test_an_unknown_configuration_raises_an_error_that_lists_the_known_ones():
    with pytest.raises(UserError, match=r"Did you mean fsdp2-8gpu\? Shipped: .*one-gpu"):
        find_config("fsdp-8gpu")


def test_deepspeed_is_answered_with_fsdp2(tmp_path):
    file = tmp_path / "deepspeed.yaml"
    file.write_text("distributed_type: DEEPSPEED\n")
    with pytest.raises(UserError, match=r"use FSDP2.*--launch fsdp2-8gpu"):
        launch(str(file), ["run", "demo"])


def test_a_file_that_accelerate_did_not_write_raises_an_error(tmp_path):
    file = tmp_path / "other.yaml"
    file.write_text("num_processes: 2\n")
    with pytest.raises(UserError, match="no distributed_type"):
        read_config(file)
    file.write_text("distributed_type: [\n")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        read_config(file)


def test_a_launch_within_a_launch_raises_an_error(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a launcher has already started this process"):
        launch("one-gpu", ["run", "demo"])


@pytest.mark.parametrize("gpus, refused", [(7, True), (8, False)])
def test_more_processes_than_gpus_raise_an_error(gpus, refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("weakdriven.runs.launcher.supervised", lambda *_: 0)
    with pytest.raises(UserError, match=r"8 processes .* has 7\.") if refused else nullcontext():
        assert launch("fsdp2-8gpu", ["run", "demo"]) == 0


def test_the_exit_code_of_what_was_started_comes_back():
    assert supervised([sys.executable, "-c", "raise SystemExit(7)"], dict(os.environ)) == 7


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_what_was_started_and_nothing_stays(sent, tmp_path):
    child = "import signal, sys, time, pathlib\n"
    child += (
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(tmp_path / 'saved')!r}).touch(), sys.exit(3)))\n"
    )
    child += f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\ntime.sleep(60)\n"
    parent = "import os, sys\nfrom weakdriven.runs.launcher import supervised\n"
    parent += f"sys.exit(supervised([sys.executable, '-c', {child!r}], dict(os.environ)))\n"
    process = subprocess.Popen([sys.executable, "-c", parent])
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)
    assert process.wait(timeout=60) == EXIT_CODE  # and not the 3 of what it started
    assert (tmp_path / "saved").exists()


def test_one_process_replaces_the_command_that_launched_it(tmp_path):
    command = [sys.executable, "-m", "weakdriven", "run", "demo", "data.limit=0", "--launch", "one-gpu"]
    done = subprocess.run([*command, "--output", str(tmp_path / "run")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "data.limit" in done.stderr

"""Commands answer before libraries that take seconds are imported, and some without them."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
COMMANDS = """
import contextlib, io, json, sys

class Reached(BaseException):
    "A command is about to import a heavy library."

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in HEAVY:
            raise Reached(name)

HEAVY, COMMANDS = json.loads(sys.stdin.read())
sys.meta_path.insert(0, Watch())
from weakdriven.commands.app import main

for words in COMMANDS:
    sys.argv, reached, said = ["weakdriven", *words], "", io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            main()
        except Reached as library:
            reached = str(library)
        except SystemExit:
            pass
    print(json.dumps([said.getvalue(), reached]))
"""


def said_before(commands):
    """What each command prints before it needs a heavy library, and which one; empty if it needs none."""
    given, code = json.dumps([HEAVY, commands]), [sys.executable, "-c", COMMANDS]
    done = subprocess.run(code, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_plan_and_the_lists_need_no_heavy_library():
    plan = ["plan", "qwen3-4b-math", "--gpus", "8xH100-80G"]
    methods = "sft,sft_compute,scaled_ce,neftune,undial,spin,ssb,dpo,wmss,wmss_frozen"
    commands = [
        plan,
        [*plan, "--grid", "joint.strong_weight=0.3,0.5", "--seeds", "1"],
        ["plan", "qwen3-4b-math", "--gpus", "H200-141G", "--methods", methods, "--seeds", "1"],
        [*plan, "lora={rank: 8}", "--all"],
        ["recipes"],
    ]
    one, sweep, several, adapter, recipes = said_before(commands)
    assert one[0].startswith("qwen3-4b-math fits on 8xH100-80G") and "round-1/strong" in adapter[0]
    assert "(2 runs)" in sweep[0] and "baselines/ssb" in several[0] and "demo" in recipes[0]
    assert [reached for _, reached in (one, sweep, several, adapter, recipes)] == [""] * 5


@pytest.mark.parametrize("quiet", [False, True])
def test_a_command_says_what_it_will_do_before_it_imports_heavy_libraries(quiet, tmp_path):
    options = ["--output", str(tmp_path), *(["--quiet"] if quiet else [])]
    commands = {
        f"demo: method wmss, model embedded:base, output {tmp_path}": ["run", "demo", *options],
        "demo: methods sft, 2 seeds": ["compare", "demo", "--methods", "sft", "--seeds", "2", *options],
        "demo: grid joint.strong_weight=0.3,0.5, 3 seeds": [
            "sweep",
            "demo",
            "--grid",
            "joint.strong_weight=0.3,0.5",
            *options,
        ],
        f"org/model: benchmarks gsm8k, output {tmp_path}": [
            *("eval", "--model", "org/model", "--benchmarks", "gsm8k", *options)
        ],
    }
    if not quiet:
        commands |= {
            f"Measuring the models of {tmp_path}": ["diagnose", str(tmp_path)],
            "Reading embedded": ["data", "show", "embedded"],
        }
    found = said_before(list(commands.values()))
    for line, (said, reached) in zip(commands, found, strict=True):
        assert reached and said.partition("\n")[0] == ("" if quiet else line)

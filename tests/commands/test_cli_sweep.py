"""The command line of a sweep: what it lists, and what it says where something is missing."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from command_line import assert_user_error, weakdriven
from weakdriven.commands.app import app
from weakdriven.config.sweep import shipped_sweeps
from weakdriven.errors import UserError


def test_the_papers_sweeps_are_listed_with_descriptions():
    lines = CliRunner().invoke(app, ["sweep", "--list"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_sweeps())
    assert "The paper's 17 values of lambda" in next(line for line in lines if line.startswith("lambda"))


def test_a_sweep_of_nothing_says_what_to_give():
    for words, answer in ((["sweep"], "Name a recipe"), (["sweep", "demo"], "give --grid KEY=0.1..0.9:9")):
        error = CliRunner().invoke(app, words).exception
        assert isinstance(error, UserError) and answer in str(error)


@pytest.mark.parametrize("command", [["compare", "demo"], ["sweep", "demo", "--grid", "joint.strong_weight=0.5"]])
def test_an_output_under_a_file_is_one_sentence(command, tmp_path):
    (tmp_path / "file").write_text("x")
    assert_user_error(weakdriven(*command, "--output", tmp_path / "file/runs"), "is a file or inside a file")


def test_listing_and_grids_need_no_torch():
    code = "import sys, weakdriven.commands.sweep, weakdriven.report.sweep.files; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", [["compare", "demo"], ["sweep", "demo", "--grid", "joint.strong_weight=0.5"]])
@pytest.mark.parametrize(
    "word, rehearsed, forced",
    [("--no-rehearsal", False, False), ("--rehearsal", True, False), ("--force", None, True)],
)
def test_options_of_a_run_reach_every_run(command, word, rehearsed, forced, tmp_path, monkeypatch):
    asked = []

    def carry_out(*args, options, **more):
        asked.append((options.rehearsal, options.force))
        raise UserError("That is all.")

    monkeypatch.setattr(f"weakdriven.pipeline.{command[0]}.carry_out", carry_out)
    CliRunner().invoke(app, [*command, "--seeds", "1", "--output", str(tmp_path / "runs"), word])
    assert asked == [(rehearsed, forced)]

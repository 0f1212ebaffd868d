"""Settings of a command as `key=value`: what --help lists, and how `data build` answers former options."""

import pytest
from typer.testing import CliRunner

from weakdriven.commands.app import app
from weakdriven.errors import UserError


@pytest.mark.parametrize("words, keys", [(["eval"], ["top_p", "served_name"]), (["data", "build"], ["teacher.keep"])])
def test_help_lists_every_setting_that_is_no_option(words, keys):
    said = CliRunner().invoke(app, [*words, "run", "--help"] if words == ["eval"] else [*words, "--help"]).output
    assert all(key in said for key in keys) and "Settings, as key=value" in said


@pytest.mark.parametrize(
    "words, answer",
    [
        (["--samples", "8", "--keep", "4"], "use teacher.samples=8 teacher.keep=4"),
        (["--serve", "py", "--url=http://x"], "use teacher.vllm_python=py teacher.url=http://x"),
        (["--style", "tag-free", "--seed", "7"], "use style=tag-free teacher.seed=7"),
        (["--no-trust-remote-code"], "use teacher.trust_remote_code=false"),
        (["teacher.samples=4"], "settings: teacher.model is required but missing."),
        (["--teacher", "m", "teacher.kep=4"], "teacher.kep is not a setting. Did you mean teacher.keep?"),
        (["--teacher", "m", "teacher.keep=9"], "teacher: keep is 9 of 4 samples; expected 1 to 4."),
        (["--teacher", "m", "teacher.url=a", "teacher.vllm_python=b"], "give one of them"),
    ],
)
def test_a_build_answers_former_options_and_mistakes(words, answer, tmp_path):
    command = ["data", "build", "math", "train.jsonl", "--output", str(tmp_path / "out"), "--benchmarks", "none"]
    error = CliRunner().invoke(app, [*command, *words]).exception
    assert isinstance(error, UserError) and answer in str(error)
    assert not (tmp_path / "out").exists()

"""Settings of a command as `key=value`: what --help lists, and how `data build` reports mistakes."""

import pytest
from typer.testing import CliRunner

from weakdriven.commands.app import app
from weakdriven.errors import UserError


@pytest.mark.parametrize("words, keys", [(["eval"], ["top_p", "served_name"]), (["data", "build"], ["teacher.keep"])])
def test_help_lists_every_setting_that_is_not_an_option(words, keys):
    said = CliRunner().invoke(app, [*words, "run", "--help"] if words == ["eval"] else [*words, "--help"]).output
    assert all(key in said for key in keys) and "Settings, as key=value" in said


@pytest.mark.parametrize(
    "words, message",
    [
        (["--samples", "8", "--keep", "4"], "There is no option --samples; write the setting teacher.samples=VALUE."),
        (["--style", "tag-free"], "There is no option --style; write the setting style=VALUE."),
        (["--no-trust-remote-code"], "write the setting teacher.trust_remote_code=VALUE."),
        (["--nonsense"], "There is no option --nonsense"),
        (["teacher.samples=4"], "settings: teacher.model is required but missing."),
        (["--teacher", "m", "teacher.kep=4"], "teacher.kep is not a setting. Did you mean teacher.keep?"),
        (["--teacher", "m", "teacher.keep=9"], "teacher: keep is 9, but samples is 4; expected 1 to 4."),
        (["--teacher", "m", "teacher.url=a", "teacher.vllm_python=b"], "give one of them"),
    ],
)
def test_unknown_options_and_settings_of_a_build_raise_an_error(words, message, tmp_path):
    command = ["data", "build", "math", "train.jsonl", "--output", str(tmp_path / "out"), "--benchmarks", "none"]
    error = CliRunner().invoke(app, [*command, *words]).exception
    assert isinstance(error, UserError) and message in str(error)
    assert not (tmp_path / "out").exists()

"""Every command block of the README that needs no GPU and no network, run as a reader would, on fewer examples."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from command_line import weakdriven
from weakdriven.config.file import parse_recipe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(<!-- not tested:[^>]*-->\n)?```(bash|python|yaml)\n(.*?)```", re.DOTALL)
BLOCKS = [(language, text) for reason, language, text in BLOCK.findall(README) if not reason]


def test_the_readme_opens_with_the_two_commands():
    assert BLOCKS[0] == ("bash", "make demo\nmake test\n")


def test_recipes_in_the_readme_are_valid():
    recipes = [text for language, text in BLOCKS if language == "yaml"]
    assert recipes and all(parse_recipe(yaml.safe_load(text)) for text in recipes)


def test_links_of_the_readme_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert links and all((ROOT / link).exists() for link in links)


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path, monkeypatch):
    """In order and in one folder, because later blocks read what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    ((_, commands), (_, example)) = [block for block in BLOCKS[1:] if block[0] in ("bash", "python")]
    for line in commands.splitlines():
        fewer = line.replace("data.limit=320", "data.limit=32").replace("eval.limit=64", "eval.limit=8")
        program, *words = shlex.split(fewer.replace("--limit 32", "--limit 8"))
        done = weakdriven(*words)
        assert program == "weakdriven" and done.code == 0 and done.out, (line, done)
    exec(example, {})
    assert (tmp_path / "runs/two-rounds/report.html").is_file()

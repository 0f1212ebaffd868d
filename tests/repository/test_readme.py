"""Every command block of the README that needs no GPU and no network, run as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weakdriven.config.file import parse_recipe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(<!-- not tested:[^>]*-->\n)?```(bash|python|yaml)\n(.*?)```", re.DOTALL)
BLOCKS = [(language, text) for reason, language, text in BLOCK.findall(README) if not reason]


def test_the_readme_opens_with_the_two_commands():
    assert BLOCKS[0] == ("bash", "make demo\nmake test\n")


def test_recipes_in_the_readme_are_valid():
    import yaml

    recipes = [text for language, text in BLOCKS if language == "yaml"]
    assert recipes and all(parse_recipe(yaml.safe_load(text)) for text in recipes)


def test_links_of_the_readme_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert links and all((ROOT / link).exists() for link in links)


@pytest.mark.timeout(1800)  # five minutes on two free cores
@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path):
    """In order and in one folder, because later blocks read what earlier ones wrote."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands = [text for language, text in BLOCKS[1:] if language in ("bash", "python")]
    assert len(commands) == 2
    for text, shell in zip(commands, (["bash", "-ec"], [sys.executable, "-c"]), strict=True):
        done = subprocess.run([*shell, text], cwd=tmp_path, env=tools, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/two-rounds/report.html").is_file()

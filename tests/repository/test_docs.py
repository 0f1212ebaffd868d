"""Every page: its links lead to files and headings, its commands and options exist, its code and settings are valid."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from weakdriven import __version__
from weakdriven.build.settings import BuildSettings
from weakdriven.commands.app import app
from weakdriven.commands.settings import SETTING, fields_of
from weakdriven.config.file import load_recipe, parse_recipe
from weakdriven.config.sweep import axes_of, read_sweep_file
from weakdriven.eval.settings import EvaluationSettings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("research/**/*.md")])
FENCE = re.compile(r"^(<!-- not tested:[^>]*-->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
COMMAND = re.compile(r"(?:^|\s)(?:-m )?(weakdriven [a-z-].*)")
of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for _, language, text in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in titles}


@of_each_page
def test_links_lead_to_files_and_headings(page):
    for target, anchor in LINK.findall(re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))):
        if target.startswith(("http://", "https://")):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor[1:] in anchors(file), f"{page.name} links to {target}{anchor}"


def test_the_index_lists_every_page():
    index = ROOT / "docs/README.md"
    linked = {(index.parent / target).resolve() for target, _ in LINK.findall(index.read_text(encoding="utf-8"))}
    evidence = {page for page in PAGES if page.parent.name == "evidence"} - {ROOT / "docs/evidence/README.md"}
    assert {page for page in PAGES if (ROOT / "docs") in page.parents} - evidence - {index} <= linked


def lines_of_commands(page: Path) -> Iterator[str]:
    """Every `weakdriven ...` in code of a page, one in each line."""
    for text in blocks(page, "bash", "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            if found := COMMAND.search(line):
                yield found[1]
    inline = re.findall(r"`(weakdriven [^`]*)`", FENCE.sub("", page.read_text(encoding="utf-8")))
    yield from (re.sub(r"[][]|\.\.\.", "", one) for one in inline)


def check_command(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name = words[0] if words and words[0] in command.commands else getattr(command, "default", None)
        if name is None:
            break
        command, words = command.commands[name], words[1:] if words[:1] == [name] else words
    options = {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - options - {"--help"}
    assert not unknown, f"{line}: {command.name} has no option {', '.join(unknown)}"
    missing = hasattr(command, "commands") and words and not (words[0].startswith("--") or words[0].isupper())
    assert not missing, f"{line}: no such command"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda path: path.stem)
def test_commands_and_their_options_exist(page):
    for line in lines_of_commands(page):
        check_command(line)


@pytest.mark.parametrize("line", ["weakdriven rum demo", "weakdriven run demo --ouput x", "weakdriven data shw x"])
def test_a_wrong_command_is_found(line):
    with pytest.raises(AssertionError):
        check_command(line)


@of_each_page
def test_settings_in_commands_exist(page):
    for text in blocks(page, "bash", "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            grids = [word for option, word in pairwise(words) if option == "--grid"]
            assert not grids or axes_of(grids), line
            settings = [word for word in words if SETTING.match(word) and word[:2] != "--" and word not in grids]
            if {"eval", "build"} & {*words}:
                known = {key for model in (EvaluationSettings, BuildSettings) for key, _ in fields_of(model)}
                assert {word.partition("=")[0] for word in settings} <= known, line
            elif settings and "weakdriven" in words:
                load_recipe("demo", settings)


@of_each_page
def test_recipes_and_parts_of_recipes_are_valid(page, tmp_path):
    for text in blocks(page, "yaml"):
        tree = yaml.safe_load(text)
        if "points" in tree:
            (tmp_path / "sweep.yaml").write_text(text)
            assert read_sweep_file(tmp_path / "sweep.yaml")
            continue
        data = {"path": "train.jsonl", **tree.get("data", {})}
        if "sources" in data:
            del data["path"]
        assert parse_recipe({"model": "embedded:base", **tree, "data": data})


@of_each_page
def test_python_compiles_and_imports_what_exists(page):
    for text in blocks(page, "python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, one.name) for one in node.names), ast.unparse(node)
            elif isinstance(node, ast.Import):
                for one in node.names:
                    importlib.import_module(one.name)


@of_each_page
def test_scripts_modules_and_make_targets_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    if page.name != "CHANGELOG.md":
        for script in re.findall(r"python3? ([\w/.]+\.py)\b", text):
            assert (ROOT / script).is_file(), script
        for module in re.findall(r"python3? -m (research[\w.]*)", text):
            assert (
                list(ROOT.glob(f"{module.replace('.', '/')}*/__main__.py"))
                or (ROOT / f"{module.replace('.', '/')}.py").is_file()
            ), module
    assert {*re.findall(r"`make ([a-z-]+)`", text)} <= {*targets}


def test_the_page_of_the_algorithm_quotes_the_minimal_script():
    script = (ROOT / "examples/wmss_minimal.py").read_text(encoding="utf-8")
    quoted = blocks(ROOT / "docs/concepts/algorithm.md", "python")
    assert len(quoted) == 2 and all(text in script for text in quoted)


def test_the_version_that_is_cited_is_this_one():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    first = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert (
        first and (cited["version"], str(cited["date-released"])) == (__version__, first[2]) and first[1] == __version__
    )

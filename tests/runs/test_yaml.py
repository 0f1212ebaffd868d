"""YAML that expands to far more than its text, or does more than hold values, raises an error wherever it is read."""

import ast
import time
from pathlib import Path

import pytest
import yaml

from weakdriven.config.file import apply_override, load_recipe
from weakdriven.config.sweep import read_sweep_file
from weakdriven.errors import UserError
from weakdriven.runs.yaml import LONGEST, load_yaml

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{','.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "a billion laughs": LAUGHS,
    "a billion merges": MERGES,
    "a list in itself": "a: &a [*a]",
    "deep nesting": "[" * 1000,
    "a long text": "# " + "x" * LONGEST,
    "a key twice": "model: a\nmodel: b",
    "a python object": "!!python/object/apply:os.system [touch marker]",
    "a python name": "a: !!python/name:os.system",
    "a number that takes long to write": "a: " + "9" * 5000,
    "a hexadecimal number that takes long": "a: 0x" + "f" * 50_000,
    "bytes": "a: !!binary =",
    "aliases of a long text": "a: &a " + "x" * 1000 + "\nb: [" + "*a, " * 2000 + "]",
    "a set": "a: !!set {x}",
    "a list as a key": "? [a, b]\n: c",
    "a word as a number": "a: !!int x",
    "half a character": 'a: "\\ud800"',
    "an end of text in a text": 'a: "\\0"',
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_it_raises_a_yaml_error_at_once_and_a_recipe_of_it_a_sentence(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)
    assert time.process_time() - begin < 10
    assert not list(tmp_path.iterdir()), "code was run"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml"):
        load_recipe(str(tmp_path / "mine.yaml"))


def test_the_place_of_a_mistake_is_in_the_file_that_holds_it(tmp_path):
    (tmp_path / "below.yaml").write_text("model: a\nseed: 1\nmodel: b")
    (tmp_path / "mine.yaml").write_text("extends: below.yaml")
    with pytest.raises(UserError) as error:
        load_recipe(str(tmp_path / "mine.yaml"))
    assert f'model is given twice in "{tmp_path / "below.yaml"}", line 3, column 1' in str(error.value)


def test_sweeps_and_overrides_are_read_with_the_same_limits(tmp_path):
    path = tmp_path / "mine.yaml"
    for text in (LAUGHS, REFUSED["a python object"], REFUSED["half a character"]):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"mine\.yaml"):
            read_sweep_file(path)
        with pytest.raises(UserError, match="not valid YAML"):
            apply_override({}, f"joint.rounds={text}")


def test_a_few_aliases_merges_and_levels_are_read():
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]"
    assert load_yaml(text) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": [{"x": 1, "y": 2}] * 2}
    assert load_yaml("a: 2024-13-45\nb: 2024-01-02") == {"a": "2024-13-45", "b": "2024-01-02"}
    assert load_yaml("[" * 40 + "]" * 40) != []


def test_a_file_that_never_ends_is_not_read_to_its_end(tmp_path):
    endless = tmp_path / "endless.yaml"
    endless.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"endless\.yaml"):
        load_recipe(str(endless))


def test_no_other_module_reads_yaml():
    source = Path(__file__).parents[2] / "src/weakdriven"
    loads = {
        path.name
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "yaml"
        and ("load" in node.attr.lower() and not node.attr.startswith("YAML"))
    }
    assert loads == {"yaml.py"}

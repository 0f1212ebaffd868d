"""Writes docs/reference/commands.md and docs/reference/python-api.md from --help and from docstrings.

python scripts/reference_pages.py
"""

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic_core import PydanticUndefined

import weakdriven
from weakdriven import eval as evaluation
from weakdriven.commands.app import app
from weakdriven.commands.settings import fields_of
from weakdriven.eval import sandbox
from weakdriven.losses.head import Head

FOLDER = Path(__file__).parents[1] / "docs/reference"
LINE = 120
LEFT_OUT = ("help", "debug")
NAMES = {str: "text", Path: "path", int: "integer", float: "number", bool: "flag"}
API = {
    "Losses": [weakdriven.mixed_cross_entropy, weakdriven.token_entropy, Head],
    "Selection (WD-DS)": [weakdriven.score_dataset, weakdriven.selection_probabilities, weakdriven.draw_active],
    "Joint training (WD-JT)": [weakdriven.WDJTTrainer, weakdriven.WDJTConfig, weakdriven.WeakStrongPair],
    "The mixture": [weakdriven.MixtureForCausalLM, weakdriven.MixtureConfig],
    "Grading": [getattr(evaluation, name) for name in evaluation.__all__],
    "The sandbox": [getattr(sandbox, name) for name in sandbox.__all__],
}


def commands_page() -> str:
    """Describe every command with its usage, arguments, options and settings."""
    root: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "With this page you can look up every command, its arguments and its options. `weakdriven COMMAND --help`",
        "prints the same. Most commands also take `--debug`, which shows the traceback of an error. This page is",
        "the output of `python scripts/reference_pages.py`.",
        "",
        "| command | |",
        "|---|---|",
    ]
    order = root.list_commands(None)
    lines += [
        f"| [`{name}`](#weakdriven-{name}) | {cell(root.commands[name].get_short_help_str(200))} |" for name in order
    ]
    for name in order:
        lines += ["", *section(root.commands[name], f"weakdriven {name}", "##")]
    return "\n".join([*lines, ""])


def section(command: Any, path: str, level: str) -> Iterator[str]:
    yield from (f"{level} {path}", "", *inspect.cleandoc(command.help or "").replace("\f", "").splitlines())
    if hasattr(command, "commands"):
        if default := getattr(command, "default", None):
            yield from ("", f"`{path} ...` is short for `{path} {default} ...`.")
        for name, below in command.commands.items():
            yield from ("", *section(below, f"{path} {name}", "###"))
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one not in arguments and one.name not in LEFT_OUT]
    hints = get_type_hints(inspect.unwrap(command.callback))
    needed = [f"{one.opts[0]} {one.name.upper()}" for one in options if one.required]
    usage = [path, *needed, *map(shown_argument, arguments)]
    yield from ("", "```text", " ".join(usage), "```")
    if command.params:
        yield from ("", "| argument or option | value | default | |", "|---|---|---|---|")
        for one in [*arguments, *options]:
            names = [one.name.upper()] if one in arguments else [*one.opts, *one.secondary_opts]
            text = ", ".join(f"`{name}`" for name in names)
            yield f"| {text} | {one.metavar or values(hints[one.name])} | {default_of(one)} | {cell(one.help or '')} |"
    if model := getattr(command, "settings", None):
        yield from ("", "| setting, as `key=value` | default | |", "|---|---|---|")
        for key, field in fields_of(model):
            if key not in {one.name for one in command.params}:
                default = (
                    f"`{str(field.default).lower()}`" if field.default not in (None, "", PydanticUndefined) else ""
                )
                yield f"| `{key}` | {default} | {cell(field.description or '')} |"


def shown_argument(argument: Any) -> str:
    text = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return text if argument.required else f"[{text}]"


def values(hint: Any) -> str:
    """Name the values of an annotation in a word; of a list, those of its elements."""
    inner = [one for one in get_args(hint) if one is not NoneType]
    if get_origin(hint) is Literal:
        return ", ".join(map(str, inner))
    return values(inner[0]) if inner else NAMES[hint]


def default_of(parameter: Any) -> str:
    return "required" if parameter.required else f"`{parameter.default}`" if parameter.default else ""


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python_api_page() -> str:
    """Describe the importable names with their signatures and docstrings."""
    lines = [
        "# Python API",
        "",
        "With this page you can use the loss, the selection, the trainer and the graders in your own code. Modules",
        "that are not on it may change without notice. It is the output of `python scripts/reference_pages.py`.",
        "",
        "The letters at the end of a name are the shape of an array: T = tokens, V = vocabulary, D and E = widths",
        "of the strong and the weak model, N = examples.",
    ]
    for title, objects in API.items():
        lines += ["", f"## {title}"]
        for one in objects:
            lines += ["", f"### {one.__name__}", "", f"`from {home(one)} import {one.__name__}`", ""]
            lines += ["```python", *signature(one), "```", *prose(text_of(one)), *fields(one), *methods(one)]
    return "\n".join([*lines, ""])


def home(given: Any) -> str:
    """Return the shortest module from which the object can be imported."""
    return next(
        (one.__name__ for one in (weakdriven, evaluation, sandbox) if given.__name__ in one.__all__), given.__module__
    )


def signature(given: Any) -> list[str]:
    """Return the header of a function; of a class, its own fields and the header of its own __init__."""
    source = inspect.cleandoc("\n" + inspect.getsource(given))
    (node,) = ast.parse(source).body
    lines = source.splitlines()
    if not isinstance(node, ast.ClassDef):
        return header(node, lines)
    bases = ", ".join(map(ast.unparse, node.bases))
    inner = [lines[one.lineno - 1] for one in node.body if isinstance(one, ast.AnnAssign) and not described(given)]
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            inner = header(one, lines)
    inner = [line for line in inner if "ClassVar" not in line]
    first = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    return [first, *inner] if inner else [f"{first} ..."]


def header(node: Any, lines: list[str]) -> list[str]:
    found = lines[node.lineno - 1 : node.body[0].lineno - 1]
    found[-1] += " ..."
    if len(found[0]) > LINE:  # as ruff wraps it
        name, arguments, result = re.fullmatch(r"(def \w+)\((.*)\) -> (.*)", found[0]).groups()  # pyright: ignore
        return [f"{name}(", f"    {arguments}", f") -> {result}"]
    return found


def text_of(given: Any) -> str:
    """Return the docstring, without those that a dataclass generates."""
    text = inspect.getdoc(given) or ""
    return "" if text.startswith(f"{given.__name__}(") else text


def described(given: Any) -> list[Any]:
    """List the new fields of a dataclass that have a help text, as HfArgumentParser shows it."""
    own = vars(given).get("__annotations__", {})
    found = dataclasses.fields(given) if dataclasses.is_dataclass(given) else []
    return [one for one in found if one.name in own and "help" in one.metadata]


def fields(given: Any) -> Iterator[str]:
    if found := described(given):
        yield from ("", "| field | default | |", "|---|---|---|")
        yield from (f"| `{one.name}` | `{one.default}` | {cell(one.metadata['help'])} |" for one in found)


def prose(text: str) -> Iterator[str]:
    """Format a docstring as Markdown: arguments as a list, examples as code."""
    examples = False
    for line in ["", *text.splitlines()] if text else []:
        if line.startswith(">>>") and not examples:
            yield "```pycon"
            examples = True
        elif examples and not line.strip():
            yield "```"
            examples = False
        if argument := re.match(r"    (\w[\w, ]*): (.*)", line):
            names = ", ".join(f"`{name.strip()}`" for name in argument[1].split(","))
            yield f"- {names}: {argument[2]}"
        elif line == "Args:":
            yield from ("Arguments:", "")
        else:
            yield re.sub(r"^ {8}", "  ", line)
    if examples:
        yield "```"


def methods(given: Any) -> Iterator[str]:
    """List the documented public methods that a class adds to those of its library."""
    if not inspect.isclass(given):
        return
    upstream = {
        name for base in given.__mro__[1:] if base.__module__.split(".")[0] != "weakdriven" for name in vars(base)
    }
    own = {name: getattr(one, "__func__", one) for name, one in vars(given).items() if name[0] != "_"}
    kept = {name: one for name, one in own.items() if name == "forward" or name not in upstream}
    found = {name: one for name, one in kept.items() if inspect.isfunction(one) and one.__doc__}
    if found:
        yield from ("", "| method | |", "|---|---|")
    for name, one in found.items():
        yield f"| `{name}` | {cell(inspect.getdoc(one) or '').partition(' Args:')[0].partition(' >>>')[0]} |"


PAGES = {"commands.md": commands_page, "python-api.md": python_api_page}

if __name__ == "__main__":
    for file, page in PAGES.items():
        (FOLDER / file).write_text(page(), encoding="utf-8")

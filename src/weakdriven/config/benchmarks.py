"""Entries of `eval.benchmarks`: the shipped benchmarks and the user's own test sets."""

import difflib
import re
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from weakdriven.config.settings import UNION, Settings

# fmt: off
Benchmark = Literal[
    "arithmetic",
    "aime2025", "math500", "amc23", "aqua", "gsm8k", "mawps", "svamp",
    "humaneval_plus", "mbpp_plus", "bigcodebench", "livecodebench",
    "logiqa2", "reclor",
]
# fmt: on
SHIPPED: tuple[str, ...] = get_args(Benchmark)
GRADERS = ("math", "choice", "exact", "contains", "code")
PYTHON = "python:"
"""Prefix of a grader that is a Python function."""


class TestSet(Settings):
    """A test set of your own (docs/how-to/evaluation.md)."""

    __test__ = False  # pytest collects classes of this name

    path: str
    """File or Hub dataset (its split `test`) with rows of `question`, `prompt` or `messages`, and `answer`."""
    name: str = Field(default="", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)
    """Name in tables and folders (default: the file's name)."""
    grader: str | None = None
    """`math`, `choice`, `exact`, `contains`, `code`, or `python:module.function` (default: inferred from the
    answers)."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a completion (default: `eval.max_new_tokens`, else 1024)."""

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_file(cls, values: Any) -> Any:
        if not (isinstance(values, dict) and isinstance(values.get("path"), str)) or values.get("name") is not None:
            return values
        stem = re.sub(r"(\.(jsonl?|csv|tsv|parquet|gz|zst))+$", "", PurePath(values["path"]).name.partition("?")[0])
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64]
        if not name:
            raise ValueError(
                f"the file name of {values['path']} has no letter or digit to name the test set after; give a name"
            )
        return values | {"name": name}

    @field_validator("grader")
    @classmethod
    def _one_there_is(cls, grader: str | None) -> str | None:
        function = grader.removeprefix(PYTHON).split(".") if grader and grader.startswith(PYTHON) else []
        if grader is None or grader in GRADERS or (len(function) > 1 and all(map(str.isidentifier, function))):
            return grader
        raise ValueError(f"there is no grader {grader!r}; expected {', '.join(GRADERS)} or {PYTHON}module.function")


def is_path(text: str) -> bool:
    """Return whether an entry is a path of a test set rather than a name: names have no dots or slashes."""
    return re.search(r"[./\\]", text) is not None


def _kind(entry: Any) -> str:
    return f"{UNION}name" if isinstance(entry, str) else f"{UNION}test set"


def _read_entry(entry: Any) -> Any:
    """Turn an entry that looks like a path into a test set; raise an error for an unknown name."""
    if not isinstance(entry, str) or entry in SHIPPED:
        return entry
    if is_path(entry):
        return {"path": entry}
    near = difflib.get_close_matches(entry, SHIPPED, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"there is no benchmark {entry!r}.{hint} Benchmarks: {', '.join(SHIPPED)}. Your own test set is given by its "
        "path, such as test.jsonl"
    )


Entry = Annotated[
    Annotated[Benchmark, Tag(f"{UNION}name")] | Annotated[TestSet, Tag(f"{UNION}test set")],
    Discriminator(_kind),
    BeforeValidator(_read_entry, json_schema_input_type=Benchmark | TestSet | str),
]
"""One of `eval.benchmarks`."""


def name_of(entry: str | TestSet) -> str:
    """Return the name of a benchmark or a test set in tables and folders."""
    return entry if isinstance(entry, str) else entry.name


def refuse_same_names(entries: list[Any]) -> list[Any]:
    """Raise an error for two entries with the same name, whose results would share a folder."""
    taken: dict[str, str] = {}
    for entry in entries:
        name, own = name_of(entry), isinstance(entry, TestSet)
        other = f"the benchmark {name}" if own and name.casefold() in SHIPPED else taken.get(name.casefold())
        if own and other:
            raise ValueError(
                f"the test set {entry.path} and {other} have the same name, {name}; give the test set another name: "
                f"{{path: {entry.path}, name: ...}}"
            )
        if other:
            raise ValueError(f"contains a name twice: {', '.join(map(name_of, entries))}")
        taken[name.casefold()] = entry.path if own else name
    return entries

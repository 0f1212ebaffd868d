"""BENCHMARKS: what each benchmark is, where its items come from, how many it must have, and how they are graded.

docs/reference/benchmarks.md lists the fields of a local file.
"""

import ast
import contextlib
import difflib
import subprocess
import sys
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from yaml import YAMLError

from weakdriven.config.benchmarks import is_path
from weakdriven.data.demo import TEST_ITEMS
from weakdriven.data.example import refuse_broken_text
from weakdriven.data.questions import LETTERS, user_message
from weakdriven.data.rows.files import EMBEDDED, read_rows
from weakdriven.errors import UserError
from weakdriven.eval.graders.grading import Kind, check_golds
from weakdriven.eval.hub_rows import Hub, our_fields, read_hub
from weakdriven.runs.yaml import load_yaml

Row = dict[str, Any]
Domain = Literal["math", "code", "logic", ""]
ENDINGS = (".jsonl", ".jsonl.gz", ".json")
DATA_DIR = "--data-dir (in a recipe eval.data_dir)"
CODE = {"timeout": 120, "memory_mb": 4096}
"""Limits for one program with all its tests; the slowest of HumanEval+ and MBPP+ need this much on a small machine."""


@dataclass(frozen=True)
class Benchmark:
    kind: Kind
    """Grader."""
    domain: Domain
    """Chooses the system prompt; empty for test sets of the user: the domain of the training data."""
    rows: int
    max_new_tokens: int
    version: int
    """Raised when prompt or grader change, so that scores of different versions are never averaged."""
    file: str
    """Name of the local file without its ending; the benchmark's own name is accepted too."""
    hub: Hub | None = None
    """Dataset on the Hub; None if a file in `data_dir` is the only source."""
    grading: dict[str, Any] = field(default_factory=dict)
    """Options of the grader."""
    options: int = 0
    """Number of options of each item of a choice benchmark."""
    source: str = ""
    """Where to get a benchmark that is not on the Hub."""
    embedded: bool = False
    grader: str = ""
    """Grader of a test set of the user, as a recipe names it."""
    found: bool = False
    """Whether that grader was chosen from the answers."""


MAWPS = (
    "It is dataset/mawps/testset.json of github.com/LYH-YF/MWPToolkit; copy it to mawps.json. "
    "The Hub's MAWPS has other rows."
)
RECLOR = (
    "Its authors distribute it as a zip with a password, for research only (whyu.me/reclor); unpack it and copy its "
    "val.json to reclor.json."
)

BIGCODEBENCH = Hub("bigcode/bigcodebench", split="v0.1.4")
LIVECODEBENCH = Hub("livecodebench/code_generation_lite", file="test.jsonl")  # release_v1

BENCHMARKS: dict[str, Benchmark] = {
    # grader, prompt, items, new tokens, version, local file, Hub dataset, grader's options
    "arithmetic": Benchmark("math", "math", TEST_ITEMS, 96, 2, "arithmetic", embedded=True),
    "aime2025": Benchmark("math", "math", 30, 8192, 2, "aime2025", Hub("math-ai/aime25")),
    "math500": Benchmark("math", "math", 500, 4096, 2, "math500", Hub("HuggingFaceH4/MATH-500")),
    "amc23": Benchmark("math", "math", 40, 8192, 2, "amc23", Hub("math-ai/amc23")),
    "aqua": Benchmark("choice", "math", 254, 4096, 1, "aqua_test", Hub("deepmind/aqua_rat", config="raw"), options=5),
    "gsm8k": Benchmark("math", "math", 1319, 4096, 2, "gsm8k_test", Hub("openai/gsm8k", config="main")),
    "mawps": Benchmark("math", "math", 238, 4096, 2, "mawps_test", source=MAWPS),
    "svamp": Benchmark("math", "math", 1000, 4096, 2, "svamp", Hub("ChilleD/SVAMP", "train+test")),
    "humaneval_plus": Benchmark("code", "code", 164, 4096, 1, "humaneval_plus", Hub("evalplus/humanevalplus"), CODE),
    "mbpp_plus": Benchmark("code", "code", 378, 4096, 1, "mbpp_plus", Hub("evalplus/mbppplus"), CODE),
    "bigcodebench": Benchmark("code", "code", 1140, 4096, 1, "bigcodebench", BIGCODEBENCH, CODE),
    "livecodebench": Benchmark("code", "code", 400, 4096, 1, "livecodebench", LIVECODEBENCH, CODE),
    "logiqa2": Benchmark("choice", "logic", 1572, 4096, 1, "logiqa2_test", Hub("jeggers/logiqa2_formatted"), options=4),
    "reclor": Benchmark("choice", "logic", 500, 4096, 1, "reclor_val", source=RECLOR, options=4),
}


@dataclass(frozen=True)
class Item:
    """One problem: what the model reads, and what the grader needs."""

    id: str
    question: str
    """User message."""
    gold: Any
    """Gold answer for `weakdriven.eval.grade`: a text, a letter, several of them, the tests of a program, or a row."""
    options: list[str] | None = None
    level: str | None = None
    messages: list[dict[str, str]] | None = None
    """Whole prompt, if it is more than the question."""

    def as_row(self) -> Row:
        """Return plain values for JSON; `Item(**row)` is the inverse."""
        return {name: value for name, value in vars(self).items() if name != "messages" or value}

    def answered(self, gold: Any, options: list[str] | None = None) -> "Item":
        """Return the item with its right answer or answers; a list of one is unpacked."""
        return replace(self, gold=gold[0] if isinstance(gold, list) and len(gold) == 1 else gold, options=options)

    @property
    def shown_gold(self) -> Any:
        """The right answer as a report shows it; None for programs, whose tests are too long."""
        return self.gold.get("row", {}).get("answer") if isinstance(self.gold, dict) else self.gold


def benchmarks_named(names: str) -> list[Any]:
    """Parse --benchmarks: names and paths of test sets, separated by commas, or a list as in a recipe."""
    if names.lstrip().startswith("["):
        try:
            return load_yaml(names)
        except YAMLError:
            raise UserError(f"--benchmarks: {names} is not valid YAML; write [{{path: test.jsonl}}, gsm8k].") from None
    found = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in found:
        if name not in BENCHMARKS and not is_path(name):
            hint = "".join(f" Did you mean {near}?" for near in difflib.get_close_matches(name, BENCHMARKS, n=1))
            raise UserError(f"There is no benchmark {name!r}.{hint} Known benchmarks: {', '.join(BENCHMARKS)}.")
    if not found:
        raise UserError(f"--benchmarks is empty; give names separated by commas, from {', '.join(BENCHMARKS)}.")
    return found


def benchmark_source(name: str, data_dir: str | None) -> str:
    """Return where a benchmark's items are: the embedded set, a file in `data_dir`, or a dataset on the Hub."""
    entry = BENCHMARKS[name]
    if entry.embedded:
        return EMBEDDED
    stems = list(dict.fromkeys([name, entry.file]))
    wanted = " or ".join(f"{stem}.jsonl" for stem in stems)
    if data_dir is None:
        if entry.hub is None:
            raise UserError(f"Benchmark {name} needs {DATA_DIR}, a folder with {wanted}. {entry.source}")
        return entry.hub.id
    folder = Path(data_dir).expanduser()
    for place, stem, ending in product((folder, folder / entry.domain), stems, ENDINGS):
        if (path := place / (stem + ending)).is_file():
            return str(path)
    raise UserError(
        f"Benchmark {name}: {data_dir} ({DATA_DIR}) and its folder {entry.domain} have no {wanted}; "
        f"{', '.join(ENDINGS[1:])} are read too. {entry.source}".strip()
    )


def load_items(name: str, data_dir: str | None) -> list[Item]:
    """Load all items of a benchmark; raise an error for a missing field, a repeated id or a wrong number of rows."""
    source, entry = benchmark_source(name, data_dir), BENCHMARKS[name]
    rows = read_hub(entry.hub) if entry.hub and data_dir is None else read_rows(source, "test")
    items: dict[str, Item] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{source}, row {number}"
        try:
            item = as_item(name, our_fields(name, row, number), where)
        except UserError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, SyntaxError) as error:
            raise UserError(f"{where} is not in a published layout of {name}: {error}.") from error
        if item.id in items:
            first = list(items).index(item.id) + 1
            raise UserError(f"{source}: id {item.id!r} is in rows {first} and {number}; ids must be unique.")
        items[item.id] = item
    if len(items) != entry.rows:
        raise UserError(f"{source} has {len(items)} items, but {name} has {entry.rows}; use the published test set.")
    return list(items.values())


def as_item(name: str, row: Row, where: str) -> Item:
    entry = BENCHMARKS[name]
    if entry.kind == "code":
        return contest_item(row, where) if "tests" in row else code_item(row, where)
    identity, question, answer = (text_of(row, key, where) for key in ("id", "question", "answer"))
    level = None if row.get("level") is None else str(row["level"])
    if entry.kind == "math":
        return Item(identity, user_message({"question": question}, entry.domain), answer, level=level)
    options = [str(option) for option in row.get("options") or []]
    letters = LETTERS[: entry.options]
    if len(options) != entry.options or not all(option.strip() for option in options):
        raise UserError(f"{where}: expected {entry.options} options with text, found {options!r:.200}.")
    if (letter := answer.strip().upper()) not in list(letters):
        raise UserError(f"{where}: the answer is {answer!r}; expected a letter from {letters[0]} to {letters[-1]}.")
    context = {"context": text_of(row, "context", where)} if entry.domain == "logic" else {}
    asked = user_message({"question": question, "options": options, **context}, entry.domain)
    refuse_broken_text(asked, where)
    return Item(identity, asked, letter, options, level)


def code_item(row: Row, where: str) -> Item:
    """Make an item with a function to write and a test program (HumanEval+, MBPP+, BigCodeBench)."""
    gold = {key: text_of(row, key, where) for key in ("id", "prompt", "entry_point", "test", "test_style")}
    if row.get("libs"):
        gold["libs"] = [str(library) for library in row["libs"]]  # pyright: ignore[reportArgumentType]
    if instructed := row.get("instruct_prompt"):
        instructed = text_of(row, "instruct_prompt", where)
    question = user_message({**gold, "instruct_prompt": instructed}, "code")
    return Item(gold["id"], question, gold, level="hard" if row.get("hard") is True else None)


def contest_item(row: Row, where: str) -> Item:
    """Make a contest problem with inputs and outputs (LiveCodeBench)."""
    identity, statement = text_of(row, "id", where), text_of(row, "question", where)
    tests, starter = row["tests"], str(row.get("starter_code") or "")
    for test in tests if isinstance(tests, list) and tests else [tests]:
        if not isinstance(test, dict) or not all(isinstance(test.get(key), str) for key in ("input", "output")):
            raise UserError(f"{where}: tests: expected objects with input and output as text, found {test!r:.200}.")
    kinds = sorted({str(test.get("testtype")) for test in tests})
    if kinds not in (["stdin"], ["functional"]):
        raise UserError(f"{where}: tests of a row must all be stdin or all functional; found {', '.join(kinds)}.")
    gold = {
        "id": identity,
        "prompt": statement,
        "entry_point": text_of(row, "func_name", where) if kinds == ["functional"] else "",
        "test": "",
        "test_style": "io",
        "testtype": kinds[0],
        "tests": [{"input": test["input"], "output": test["output"]} for test in tests],
        "starter_code": starter,
    }
    level = None if row.get("difficulty") is None else str(row["difficulty"])
    asked = user_message({"question": statement, "tests": tests, "starter_code": starter}, "code")
    return Item(identity, asked, gold, level=level)


def text_of(row: Row, key: str, where: str) -> str:
    value = row.get(key)
    if value is None or not str(value).strip():
        raise UserError(f"{where}: the field {key!r} is missing or empty; benchmark items need it.")
    refuse_broken_text(str(value), where)
    return str(value)


def check_items(name: str, items: list[Item], entry: Benchmark | None = None, *, python: str | None = None) -> None:
    """Raise an error for items whose right answers would count as wrong: unreadable gold answers, missing libraries."""
    entry = entry or BENCHMARKS[name]
    options = [item.options for item in items] if entry.kind == "choice" else None
    if bad := check_golds(entry.kind, [item.gold for item in items], options=options):
        first, place, other = items[bad[0]], items[bad[0]].id, ""
        if entry.grader:  # a test set of the user: its items are its rows
            place, other = f"{entry.file}, row {bad[0] + 1}", ", or set another grader (exact compares texts)"
        raise UserError(
            f"{name}: the grader {entry.kind} cannot read the gold answers of {len(bad)} items (first: {place}, "
            f"{first.gold!r}); correct them{other}, because every answer to them would count as wrong."
        )
    if missing := missing_libraries(items, python):
        count = len(set().union(*missing.values()))
        raise UserError(
            f"{name}: {count} of {len(items)} items need libraries that are not installed, so every answer to them "
            f"would count as wrong: {', '.join(missing)}. Install them here, or in another environment and set "
            "code_python to its Python; for BigCodeBench, Requirements/requirements-eval.txt of "
            "github.com/bigcode-project/bigcodebench lists the packages."
        )


def missing_libraries(items: list[Item], python: str | None = None) -> dict[str, list[str]]:
    """Map modules that are not installed to the items that need them, by their `libs` or their tests' imports.

    Args:
        python: Interpreter whose packages generated code imports; by default this one.
    """
    needing: dict[str, list[str]] = {}
    for item in items:
        if isinstance(item.gold, dict) and "libs" in item.gold:
            for name in sorted({*item.gold["libs"], *imports_of(item.gold["test"])}):
                needing.setdefault(name, []).append(item.id)
    if not needing:
        return {}
    look = "import sys; from importlib.util import find_spec; print(*(n for n in sys.argv[1:] if not find_spec(n)))"
    command = [python or sys.executable, "-c", look, *needing]
    try:
        missing = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"code_python: {python} is not a working Python interpreter ({error}).") from error
    return {name: needing[name] for name in sorted(missing, key=lambda name: -len(needing[name]))}


def imports_of(program: str) -> set[str]:
    """Return the top-level modules that a program imports; none if it is not valid Python."""
    modules: list[str] = []
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.append(node.module)
    return {module.partition(".")[0] for module in modules}

"""Fuzzes what users write: recipes, overrides, sweeps, data files. A target takes one input; it may raise UserError."""

import gzip
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from fuzz_values import JSON, NASTY, SCALAR, TEXT, changed_tree, cut_and_mended, cut_bytes, dumped
from hypothesis import strategies as st

from weakdriven.config.file import apply_override, dump_recipe, load_recipe, parse_recipe, shipped_recipes
from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import Settings
from weakdriven.config.sweep import as_overrides, axes_of, points_of
from weakdriven.data.rows.files import read_each
from weakdriven.data.rows.sources import open_source


def place(name: str) -> Path:
    """Return the path of a file that the next input overwrites."""
    return Path(tempfile.gettempdir()) / name


def setting_names(model: type[Settings], prefix: str = "") -> list[str]:
    """List the dotted names of all settings.

    >>> "data.path" in setting_names(Recipe)
    True
    """
    found = []
    for name, field in model.model_fields.items():
        found.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            found += setting_names(field.annotation, f"{prefix}{name}.")
    return found


DOTTED = setting_names(Recipe)
NAMES = sorted({part for name in DOTTED for part in name.split(".")})
SHIPPED = sorted((path.read_text(encoding="utf-8") for path in shipped_recipes().values()), key=len)[:12]
"""The shortest recipes, because PyYAML reads only 0.1 MB per second."""
WHOLE = yaml.safe_load(dump_recipe(load_recipe("demo")))
SMALL = {"model": "some/model", "data": {"path": "rows.jsonl"}, "joint": {"rounds": 1}, "eval": {"benchmarks": []}}
TREES = changed_tree(st.sampled_from([SMALL] * 9 + [WHOLE]), NAMES)
YAML_TEXT = st.one_of(
    cut_and_mended(st.sampled_from(SHIPPED)),
    TREES.map(dumped),
    st.lists(st.tuples(st.sampled_from(NAMES), TEXT).map(": ".join), max_size=4).map("\n".join),
    TEXT,
).map(lambda text: text.encode(errors="surrogatepass"))


def recipe_file(data: bytes) -> None:
    """Read any bytes as a recipe file."""
    path = place("fuzzed.yaml")
    path.write_bytes(data)
    dump_recipe(load_recipe(str(path)))


def recipe_tree(tree: Any) -> None:
    """Read settings that are nearly a recipe; an accepted recipe must come back unchanged from its own dump."""
    if not isinstance(tree, dict):
        return
    recipe = parse_recipe(tree)
    again = parse_recipe(yaml.safe_load(dump_recipe(recipe)))
    assert dump_recipe(again) == dump_recipe(recipe), "the recipe changed when it was written and read"


OVERRIDE = st.one_of(
    st.tuples(st.sampled_from(DOTTED), SCALAR.map(str) | JSON.map(dumped) | TEXT).map("=".join),
    st.tuples(st.sampled_from(DOTTED), st.sampled_from(["", ".", "=", "==", "a", "[", "{", "&a", "*a"])).map("".join),
    TEXT,
)


def overrides(words: list[str]) -> None:
    """Apply `key.sub=value` of the command line to the smallest recipe."""
    tree: dict[str, Any] = {"model": "some/model", "data": {"path": "rows.jsonl"}}
    for word in words:
        apply_override(tree, word)
    parse_recipe(tree)


WORD, VALUES = SCALAR.map(str), st.sampled_from(["0.1..0.9:3", "1..9:3log", "a,b", "1,1.0,true"])
GRID = st.one_of(
    st.tuples(st.sampled_from(DOTTED), VALUES | TEXT).map("=".join),
    st.tuples(WORD, WORD, WORD).map(lambda ends: f"joint.strong_weight={ends[0]}..{ends[1]}:{ends[2]}"),
    TEXT,
)


def grid(words: list[str]) -> None:
    """Expand a sweep's grid; no name of a point may lead out of the sweep's folder."""
    points = points_of(axes_of(words))
    for point in points:
        assert point.name not in ("", ".", "..") and "/" not in point.name and "\0" not in point.name
        assert len(point.name.encode()) < 200, "a folder's name is too long for a disk"
        as_overrides(point.overrides)
    assert len({point.name.casefold() for point in points}) == len(points), "two points share a folder"


MESSAGE = {"role": "user", "content": "1+1?"}
ROWS = [
    {"messages": [MESSAGE, {"role": "assistant", "content": "2", "info": {"reference_answer": "2"}}]},
    {"id": "../../x", "prompt": "1+1?", "completion": "2", "answer": 2, "meta": {"level": 1}},
    {"question": "1+1?", "solution": "2", "answer": "It is 2.\n#### 2", "options": ["1", "2"], "domain": "logic"},
    {"prompt": "def f(x):", "entry_point": "f", "solution": "    return x", "test": "assert f(1)"},
    {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}], "system": "Add."},
    {"instruction": "Add.", "input": "1, 1", "output": "2", "history": [["0+0?", "0"]]},
]
FIELDS = sorted({field for row in ROWS for field in row} | {"role", "content", "from", "value", "info", "source"})
ROW = changed_tree(st.sampled_from(ROWS), FIELDS)
CODECS: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".json": bytes,
    ".jsonl.gz": lambda data: gzip.compress(data, 1),
    ".jsonl.zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    ".json.gz": lambda data: gzip.compress(data, 1),
}


def walk(path: Path) -> None:
    """Read a source as the data stage does, and its rows as `data show` does."""
    for policy in ("error", "drop"):
        source = open_source(str(path), empty_completions=policy)
        for example in source:
            example.replies()
        source.count()


@st.composite
def row_files(draw: st.DrawFn) -> tuple[str, bytes]:
    ending = draw(st.sampled_from([".jsonl", ".json"]))
    rows = draw(st.lists(ROW, max_size=3))
    if draw(st.booleans()):
        rows = rows + rows[:1]
    text = "\n".join(map(dumped, rows)) if ending == ".jsonl" else dumped(rows)
    return ending, text.encode()


def rows(case: tuple[str, bytes]) -> None:
    """Read complete files of rows that are nearly right."""
    ending, data = case
    path = place("rows" + ending)
    path.write_bytes(data)
    walk(path)


@st.composite
def torn_files(draw: st.DrawFn) -> tuple[str, bytes]:
    ending = draw(st.sampled_from([*CODECS, ".parquet"]))
    if ending == ".parquet":
        return ending, draw(cut_bytes(st.sampled_from(PARQUETS)))
    text = draw(cut_and_mended(st.sampled_from(JSON_TEXTS)) | st.sampled_from(NASTY))
    data = CODECS[ending](text.encode(errors="surrogatepass"))
    return ending, draw(cut_bytes(st.just(data)))


JSON_TEXTS = ["\n".join(map(dumped, ROWS[:3])), dumped(ROWS[:3]), dumped([ROWS[1]] * 3), "[" * 3000, '{"a":' * 3000]


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


PARQUETS = [
    _parquet(pa.table({"prompt": ["1+1?", "2+2?"], "completion": ["2", "4"], "id": ["a", None]})),
    _parquet(pa.Table.from_pylist([ROWS[0], ROWS[0]])),
    _parquet(pa.table({"prompt": pa.array([b"\xff", b"x"]), "completion": pa.array([1.5, None])})),
]


def torn(case: tuple[str, bytes]) -> None:
    """Read data files with bytes removed, flipped or inserted."""
    ending, data = case
    path = place("torn" + ending)
    path.write_bytes(data)
    for _ in read_each(str(path)):
        pass
    walk(path)


TARGETS: dict[str, tuple[Callable[[Any], None], st.SearchStrategy[Any]]] = {
    "recipe-file": (recipe_file, YAML_TEXT | cut_bytes(st.sampled_from(SHIPPED).map(str.encode))),
    "recipe-tree": (recipe_tree, TREES),
    "overrides": (overrides, st.lists(OVERRIDE, min_size=1, max_size=3)),
    "grid": (grid, st.lists(GRID, min_size=1, max_size=2)),
    "rows": (rows, row_files()),
    "torn": (torn, torn_files()),
}

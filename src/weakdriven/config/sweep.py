"""Sweeps: turn `--grid` values, shipped sweeps and sweep files into points, each with its overrides."""

import difflib
import itertools
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from weakdriven.config.file import number_like, read_tree
from weakdriven.errors import UserError
from weakdriven.runs.files import digest
from weakdriven.runs.yaml import load_yaml, shipped

MOST_POINTS = 1000
shipped_sweeps = partial(shipped, "sweeps")


@dataclass(frozen=True)
class Choice:
    """One value of an axis, with the overrides that it sets."""

    name: str
    value: Any
    overrides: dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One setting that is varied, or several that are varied together under a label."""

    label: str
    choices: tuple[Choice, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that hold at every point."""
    start: Any = None
    """The value of this axis at which M1 is shown, if any."""

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for choice in self.choices for key in choice.overrides))


@dataclass(frozen=True)
class Point:
    """One recipe of a sweep."""

    name: str
    """Name of the point and of its folder."""
    values: dict[str, Any]
    """Maps axis labels to values."""
    overrides: dict[str, Any]


def axes_of(words: list[str]) -> list[Axis]:
    """Return the axes of all `--grid` words: KEY=VALUES, a shipped sweep, or a sweep's .yaml file."""
    axes = [axis for word in words for axis in _axes_of_word(word)]
    if not axes:
        raise UserError("A sweep needs something to vary: give --grid KEY=0.1..0.9:9, KEY=a,b,c or a sweep's name.")
    for kind, names in {"key": [key for axis in axes for key in axis.keys], "axis": [a.label for a in axes]}.items():
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise UserError(f"--grid: {kind} {twice[0]} is in two grids; give each {kind} once.")
    return axes


def points_of(axes: list[Axis]) -> list[Point]:
    """Return the product of all axes; the last one varies fastest."""
    count = math.prod(len(axis.choices) for axis in axes)
    if count > MOST_POINTS:
        raise UserError(
            f"The grids make {count:,} points, but a sweep can have at most {MOST_POINTS:,}; give fewer values."
        )
    points = []
    for choices in itertools.product(*(axis.choices for axis in axes)):
        values = {axis.label: choice.value for axis, choice in zip(axes, choices, strict=True)}
        overrides = {key: value for choice in choices for key, value in choice.overrides.items()}
        points.append(Point(_folder("__".join(choice.name for choice in choices)), values, overrides))
    seen = Counter(point.name.casefold() for point in points)  # some file systems ignore case
    for place, one in enumerate(points):
        if seen[one.name.casefold()] > 1:
            points[place] = replace(one, name=f"{one.name}-{digest(one.values)[:8]}")
    return points


def as_overrides(settings: dict[str, Any]) -> list[str]:
    """Return settings as overrides for `load_recipe`.

    >>> as_overrides({"joint.strong_weight": 0.4, "baselines": ["sft"]})
    ['joint.strong_weight=0.4', 'baselines=["sft"]']
    """
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def values_of(text: str, label: str) -> list[Any]:
    """Parse values written as `low..high:count` (`:countlog` for logarithmic spacing) or with commas.

    >>> values_of("0.1..0.9:5", "x"), values_of("1e-6..1e-4:3log", "x"), values_of("1..4:4", "x")
    ([0.1, 0.3, 0.5, 0.7, 0.9], [1e-06, 1e-05, 0.0001], [1, 2, 3, 4])
    >>> values_of("joint,frozen", "x"), values_of("[1, 2],null", "x")
    (['joint', 'frozen'], [[1, 2], None])
    """
    try:
        if re.match(r"\s*[-+.]?\d[\d.eE+-]*?\s*\.\.", text):  # ../file is a value
            return _spaced(text, label)
        return number_like(load_yaml(f"[{text}]"))
    except yaml.YAMLError:
        raise UserError(f"{label}: {text!r} is not a list of values; write a,b,c or low..high:count.") from None


def _spaced(text: str, label: str) -> list[Any]:
    wrong = UserError(
        f"{label}: {text!r} is not a range; write low..high:count, such as 0.1..0.9:9, with low below high and a count "
        f"from 2 to {MOST_POINTS:,}. Logarithmic spacing, as in 1e-6..1e-4:5log, needs a low end above 0."
    )
    parts = re.fullmatch(r"\s*(.+?)\s*\.\.\s*(.+?)\s*:\s*(\d{1,6})\s*(log)?\s*", text)
    ends = number_like(load_yaml(f"[{parts[1]}, {parts[2]}]")) if parts else []
    if not parts or len(ends) != 2 or not all(isinstance(end, int | float) and math.isfinite(end) for end in ends):
        raise wrong
    (low, high), count, ratio = ends, int(parts[3]), bool(parts[4])
    if low >= high or not 2 <= count <= MOST_POINTS or (ratio and low <= 0):
        raise wrong
    shares = [place / (count - 1) for place in range(count)]
    exact = [low * (high / low) ** share if ratio else low + (high - low) * share for share in shares]
    clean = [float(f"{value:.10g}") for value in exact]
    whole = all(isinstance(end, int) for end in ends) and all(value.is_integer() for value in clean)
    return [int(value) for value in clean] if whole else clean


def _axes_of_word(word: str) -> list[Axis]:
    key, equals, text = word.partition("=")
    if equals:
        return [_setting_axis(key.strip(), values_of(text, f"--grid {key.strip()}"), "--grid ")]
    if Path(word).suffix in (".yaml", ".yml"):
        return read_sweep_file(Path(word))
    shipped = shipped_sweeps()
    if word not in shipped:
        near = difflib.get_close_matches(word, shipped, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Shipped sweeps: {', '.join(shipped)}."
        raise UserError(f"--grid {word} is neither KEY=VALUES nor a shipped sweep. {hint}")
    return read_sweep_file(shipped[word])


def _setting_axis(key: str, values: list[Any], source: str) -> Axis:
    if not all(key.split(".")):
        raise UserError(f"{source}{key}= does not name a setting; write key.sub=VALUES.")
    if key in ("seed", "name"):
        raise UserError(f"{source}{key} cannot be varied; for several seeds use --seeds.")
    if not values:
        raise UserError(f"{source}{key} has no values; give at least one.")
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    if twice := [text for text, count in Counter(texts).items() if count > 1]:
        raise UserError(f"{source}{key}: {twice[0]} is given twice; give each value once.")
    return Axis(key, tuple(Choice(f"{key}-{text}", one, {key: one}) for text, one in zip(texts, values, strict=True)))


def read_sweep_file(path: Path) -> list[Axis]:
    """Read the axes of a sweep file, which has either `grid` (settings to values) or `axis` and `points` (names to
    settings)."""
    tree = read_tree(path, str(path), "sweep")
    if ("grid" in tree) == ("points" in tree) or tree.keys() - {"axis", "points", "grid", "settings", "start"}:
        raise UserError(f"{path}: expected `grid`, or `axis` and `points`; `settings` and `start` are optional.")
    if "grid" in tree:
        ranges = _group(tree["grid"], path, "grid")
        listed = {key: values_of(one, f"{path}: {key}") if isinstance(one, str) else one for key, one in ranges.items()}
        if wrong := [key for key, values in listed.items() if not isinstance(values, list)]:
            raise UserError(f"{path}: grid.{wrong[0]}: expected a list of values or low..high:count.")
        axes = [_setting_axis(key, values, f"{path}: ") for key, values in listed.items()]
    else:
        axes = [_named_axis(str(tree.get("axis", path.stem)), _group(tree["points"], path, "points"), path)]
    settings = _group(tree.get("settings"), path, "settings", empty=True)
    return [replace(axes[0], settings=settings, start=tree.get("start")), *axes[1:]]


def _named_axis(label: str, points: dict[Any, Any], path: Path) -> Axis:
    choices = []
    for name, overrides in points.items():
        if str(name) in ("figures", "logs"):
            raise UserError(f"{path}: a point cannot be named {name}, because every sweep has a folder of that name.")
        named = f"{label}-{name}" if isinstance(name, int | float) else str(name)
        choices.append(Choice(named, name, _group(overrides, path, f"points.{name}", empty=True)))
    return Axis(label, tuple(choices))


def _group(value: Any, path: Path, place: str, *, empty: bool = False) -> dict[Any, Any]:
    if (empty and value is None) or (isinstance(value, dict) and (value or empty)):
        return value or {}
    raise UserError(f"{path}: {place}: expected `key: value` lines, found {json.dumps(value, default=str)}.")


def _folder(name: str) -> str:
    """Return a folder name that every file system accepts.

    >>> _folder("joint.strong_weight-0.1"), _folder("model-org/name"), _folder("weak (share)-0.2")
    ('joint.strong_weight-0.1', 'model-org-name', 'weak-share-0.2')
    """
    safe = re.sub(r"-*[^A-Za-z0-9._+-][^A-Za-z0-9._+]*", "-", name).strip("-.") or "point"
    return safe if len(safe) <= 80 else f"{safe[:70]}-{digest(name)[:8]}"

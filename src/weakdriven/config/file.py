"""Read recipe files: YAML that may extend another recipe, dotted overrides, clear errors, a JSON Schema for editors."""

import difflib
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from weakdriven.config.data import DataSettings
from weakdriven.config.recipe import METHODS, Recipe
from weakdriven.config.reference import other_name
from weakdriven.config.settings import UNION, Settings
from weakdriven.errors import UserError
from weakdriven.runs.redact import holds_secret, redact
from weakdriven.runs.yaml import load_yaml, read_yaml, shipped

SettingsT = TypeVar("SettingsT", bound=Settings)
OF_A_SOURCE = ("split", "fields", "limit")
"""Settings of `data` that belong to its `path`."""
EXTENDS = "extends"
"""Key of a recipe file that names the recipe it extends."""
shipped_recipes = partial(shipped, "recipes")


def describe(path: Path) -> str:
    """Return the first comment line of a recipe or sweep file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ") and "yaml-language-server" not in line), "")


def load_recipe(source: str, overrides: list[str] | None = None, *, varied: list[str] | None = None) -> Recipe:
    """Read a recipe file, or the shipped recipe of that name, and apply `key.sub=value` overrides.

    With the override `method=NAME`, a shipped recipe trains that method alone in a separate run: unless other overrides
    set them, `baselines` is empty and `name` is RECIPE-NAME.

    Args:
        varied: Overrides that a comparison or a sweep adds; a method among them does not change `baselines` or `name`.
    """
    path = _find(source, source)
    tree, bases = _over_its_bases(path, source)
    tree.setdefault("name", path.stem)
    own_method = tree.get("method", METHODS[0])
    # data.path is applied first: it removes the recipe's data.limit, but must not remove one that is also overridden
    paths = [one for one in [*(overrides or []), *(varied or [])] if one.startswith("data.path=")]
    for override in [*paths, *(overrides or [])]:
        apply_override(tree, override)
    method = tree.get("method", own_method)
    if source in shipped_recipes() and method != own_method and method in METHODS:
        given = {override.partition("=")[0] for override in overrides or []}
        tree |= {"name": f"{tree['name']}-{method}", "baselines": []} | {key: tree[key] for key in given & tree.keys()}
    for override in varied or []:
        apply_override(tree, override)
    refuse_secrets(tree, source)
    label = f"{source} ({', '.join(f'which extends {base}' for base in bases)})" if bases else source
    return parse_recipe(tree, f"{label} with your overrides" if overrides or varied else label)


def _find(source: str, label: str, beside: Path | None = None) -> Path:
    """Return the file of a recipe given by name or path; a relative path is relative to the folder `beside`, if
    given."""
    shipped = shipped_recipes()
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return path if beside is None else beside / path
    if source in shipped:
        return shipped[source]
    recipe, _, method = source.rpartition("-")
    if recipe in shipped and method in METHODS:
        raise UserError(f"{label} is not a recipe; use `weakdriven run {recipe} method={method}`.")
    near = difflib.get_close_matches(source, shipped, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(f"{label} is neither a .yaml file nor a shipped recipe.{hint} `weakdriven recipes` lists those.")


def read_tree(path: Path, label: str, kind: str = "recipe") -> dict[str, Any]:
    """Read the settings of a recipe or sweep file."""
    try:
        tree = read_yaml(path)
    except (OSError, UnicodeDecodeError) as error:
        shipped = {"recipe": "recipes", "sweep": "sweep --list"}[kind]
        raise UserError(
            f"{label}: the {kind} file cannot be read ({error}). `weakdriven {shipped}` lists the shipped ones."
        ) from error
    except yaml.YAMLError as error:
        raise UserError(f"{label} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        found = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise UserError(f"{label}: expected settings as `key: value` lines, found {found}.")
    return number_like(tree)


def _over_its_bases(path: Path, source: str) -> tuple[dict[str, Any], list[str]]:
    """Merge the settings of a file over those of all recipes it extends; also return the names of these recipes."""
    tree, names, seen = data_as_group(read_tree(path, source)), [source], [path.resolve()]
    while EXTENDS in tree:
        base = tree.pop(EXTENDS)
        if not isinstance(base, str) or not base:
            raise UserError(
                f"{names[-1]}: {EXTENDS}: expected the name of a shipped recipe or a .yaml file, found "
                f"{json.dumps(base, default=str)}."
            )
        label = f"{base} (which {names[-1]} extends)"
        path = _find(base, label, beside=path.parent)
        if path.resolve() in seen:
            circle = " extends ".join([*names[seen.index(path.resolve()) :], base])
            raise UserError(f"{source}: recipes extend each other in a circle ({circle}); remove {EXTENDS} from one.")
        below = data_as_group(read_tree(path, label))
        below.pop("name", None)  # names are not inherited
        replace_sources(below.get("data"), tree.get("data"))
        tree = _laid_over(below, tree)
        names.append(base)
        seen.append(path.resolve())
    return tree, names[1:]


def data_as_group(tree: dict[str, Any]) -> dict[str, Any]:
    """Write a list under `data` as `data.sources`, so that other files and overrides can be merged with it."""
    return tree | {"data": {"sources": tree["data"]}} if isinstance(tree.get("data"), list) else tree


def replace_sources(below: Any, above: Any) -> None:
    """Remove `path`, `sources` and their settings from `below` if `above` names other rows."""
    if isinstance(below, dict) and isinstance(above, dict):
        if above.get("sources"):
            for name in ("path", *(name for name in OF_A_SOURCE if name not in above)):
                below.pop(name, None)
        elif above.get("path"):
            below.pop("sources", None)
            if above["path"] != below.get("path"):
                below.pop("limit", None)  # it was chosen for the replaced rows


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two settings trees: groups are merged, values and lists are replaced, also by null."""
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        merged[key] = _laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set one `key.sub=value` in a settings tree; the value is read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"Override {override!r} is not of the form key.sub=value.")
    *parents, last = key.split(".")
    root = tree
    for parent in parents:
        branch = tree[parent] = {} if tree.get(parent) is None else tree[parent]
        if not isinstance(branch, dict):
            raise UserError(f"Override {override!r}: {parent} holds a value, not a group of settings.")
        tree = branch
    try:
        value = load_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"Override {override!r}: the value is not valid YAML.") from error
    value = number_like(value)
    if key == "data" and isinstance(value, list) and isinstance(tree.get("data"), dict):
        key, last, tree = "data.sources", "sources", tree["data"]
    if key in ("data.path", "data.sources"):
        replace_sources(root["data"], {last: value})
    tree[last] = value


def data_settings(given: dict[str, Any], overrides: list[str] | None, source: str) -> DataSettings:
    """Return the `data` settings of a command: those `given` as options, with overrides such as data.limit=8
    applied."""
    tree: dict[str, Any] = {"data": given}
    for override in overrides or []:
        if override.startswith(("data.", "data=")):
            apply_override(tree, override)
    return parse_recipe({"model": ""} | tree, source).data


def refuse_secrets(value: Any, source: str, place: str = "") -> None:
    """Raise an error for passwords and API keys: a recipe is copied into its run, its report and its model card."""
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_secrets(item, source, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for item in value:
            refuse_secrets(item, source, place)
    elif isinstance(value, str) and holds_secret(value):
        raise UserError(
            f"{source}: {place} contains what looks like a key or a password ({redact(value)}), which would be written "
            "into the run; remove it and set the environment variable that the service reads."
        )


def parse_recipe(tree: dict[str, Any], source: str = "recipe") -> Recipe:
    return parse_settings(Recipe, tree, source)


def parse_settings(model: type[SettingsT], tree: dict[str, Any], source: str) -> SettingsT:
    """Validate a settings tree; the error lists every wrong key and what is allowed there."""
    try:
        return model.model_validate(number_like(tree))
    except ValidationError as error:
        raise UserError("\n".join(_explain(model, source, problem) for problem in error.errors())) from None


def number_like(value: Any) -> Any:
    """Copy a settings tree and turn text such as 1e-5, which YAML 1.1 does not read as a number, into numbers.

    The copy shares no YAML aliases, so that an override of one place does not change the others.
    """
    if isinstance(value, dict):
        return {key: number_like(item) for key, item in value.items()}
    if isinstance(value, list):
        return [number_like(item) for item in value]
    if isinstance(value, str) and value[:1] in "0123456789.+-" and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(model: type[BaseModel], source: str, problem: Any) -> str:
    location = [str(part) for part in problem["loc"] if not str(part).startswith(("function-", UNION))]
    key = ".".join(location)
    if location == [EXTENDS]:
        return f"{source}: {EXTENDS} is allowed only in recipe files; write it there, or run that recipe directly."
    if problem["type"] == "extra_forbidden":
        in_a_recipe = model is Recipe and len(location) == 1
        allowed = [*_settings_at(model, location[:-1]).model_fields, *([EXTENDS] if in_a_recipe else [])]
        near = difflib.get_close_matches(location[-1], allowed, 1)
        prefix = "".join(part + "." for part in location[:-1])
        hint = f"Did you mean {prefix}{near[0]}?" if near else f"Allowed here: {', '.join(allowed)}."
        elsewhere = other_name(key) if model is Recipe else None
        return f"{source}: {key} is not a setting. {elsewhere or hint}"
    if problem["type"] == "missing":
        return f"{source}: {key} is required but missing."
    if problem["type"] == "value_error":
        reason = str(problem["ctx"]["error"])
        return f"{source}: {key + ': ' if key else ''}{reason}."
    expected = "expected a group of settings" if problem["type"] == "model_type" else problem["msg"]
    hint = ""
    if problem["type"] == "list_type" and isinstance(problem["input"], str):
        hint = f" Write [{problem['input']}]."
    elif problem["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(problem["input"]), allowed, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
    return f"{source}: {key}: {expected}, found {json.dumps(problem['input'], default=str)}.{hint}"


def _settings_at(model: type[BaseModel], location: list[str]) -> type[BaseModel]:
    for part in location:
        if part in model.model_fields:  # else it is a list index
            model = next(groups_in(model.model_fields[part].annotation), model)
    return model


def groups_in(annotation: Any) -> Iterator[type[Settings]]:
    """Yield the settings classes in a type, such as the one in `LoraSettings | None`."""
    parts = get_args(annotation)
    if not parts and isinstance(annotation, type) and issubclass(annotation, Settings):  # list[str] is a type in 3.10
        yield annotation
    for inner in parts:
        yield from groups_in(inner)


def dump_recipe(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def recipe_schema() -> str:
    """Return the JSON Schema of recipe files, for editors; a file with `extends` may omit required settings."""
    schema = Recipe.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    described = "The recipe whose settings this file changes: a shipped name, or a .yaml file relative to this one."
    schema["properties"] = {EXTENDS: {"description": described, "type": "string"}, **schema["properties"]}
    sources = schema["$defs"]["DataSettings"]["properties"]["sources"]
    schema["properties"]["data"] = {
        "anyOf": [schema["properties"]["data"], {"type": "array", "items": sources["items"]}]
    }
    data = {"anyOf": [{"required": ["path"]}, {"required": ["sources"]}]}  # a list passes, too
    schema["if"] = {"not": {"required": [EXTENDS]}}
    schema["then"] = {"required": schema.pop("required"), "properties": {"data": data}}
    return json.dumps(schema, indent=2) + "\n"

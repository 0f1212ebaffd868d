"""YAML for recipes, launch configurations and model cards: PyYAML's safe loader, restricted to values that JSON has.

Duplicate keys, and aliases that expand to far more than the text, are errors.
"""

import json
from copy import deepcopy
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, ScalarNode

LONGEST = 200_000
"""Maximum number of characters; the longest shipped recipe has a few thousand."""
LARGEST = 5 * LONGEST
"""Maximum number of characters of the value as JSON, where every alias is written out."""


def shipped(kind: str) -> dict[str, Path]:
    """Map the names of the shipped `recipes`, `sweeps` or `launch` configurations to their files."""
    folder = Path(str(resources.files("weakdriven.config"))) / kind
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_yaml(path: Path) -> Any:
    """Read a YAML file; raises OSError, UnicodeDecodeError or yaml.YAMLError."""
    with path.open(encoding="utf-8") as file:
        return load_yaml(file.read(LONGEST + 1), str(path))


def load_yaml(text: str, name: str = "the text") -> Any:
    """Parse a YAML text; every error is a yaml.YAMLError that names the place in `name`.

    >>> load_yaml("a: [1, null]")
    {'a': [1, None]}
    >>> load_yaml("{a: 1, a: 2}")
    Traceback (most recent call last):
    yaml.constructor.ConstructorError: a is given twice
      in "the text", line 1, column 8:
        {a: 1, a: 2}
               ^
    """
    return deepcopy(_parsed(text, name))


@lru_cache(maxsize=64)
def _parsed(text: str, name: str) -> Any:
    """Cached, because pages and cards read the same recipe several times."""
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"the text has more than {LONGEST:,} characters")
    try:
        loader = _Loader(text)
        loader.name = name
        value = loader.get_single_data()
        size = 0
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            size += len(part.encode())
            if size > LARGEST:
                raise yaml.YAMLError(f"its aliases expand to more than {LARGEST:,} characters")
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # values without a JSON form, and errors that PyYAML's constructors do not catch, such as that of `!!int x`
        raise yaml.YAMLError(f"a value does not fit its type ({error})") from error
    return value


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """Check the keys as written, before merging: a key from `<<` may be overridden."""
        node: Any = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise ConstructorError(None, None, "a key is not plain text or a number", node.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        return node

    def flatten_mapping(self, node: MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > LONGEST // 10:
            raise ConstructorError(None, None, "it merges too many keys", node.start_mark)

    def construct_yaml_str(self, node: ScalarNode) -> str:
        text = super().construct_yaml_str(node)
        if "\0" in text:
            raise ConstructorError(None, None, "a text contains a null character", node.start_mark)
        return text


for kind in ("str", "timestamp"):  # keep dates as text: no setting is a date, and JSON has none
    _Loader.add_constructor(f"tag:yaml.org,2002:{kind}", _Loader.construct_yaml_str)

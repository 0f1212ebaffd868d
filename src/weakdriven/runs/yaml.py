"""YAML as people, recipes and model cards write it: values that JSON has, each key once, nothing larger than it looks.

YAML can name code to run, which the safe loader refuses; it can also stand for far more than its text holds (aliases of
aliases), hold itself, nest without end, or let the last of two equal keys win. All of that is refused here, so that no
caller has to think of it.
"""

from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

LONGEST = 200_000
"""Characters; the longest recipe that ships has a few thousand."""
DEEPEST = 40
MOST_VALUES = 100_000
"""Values that a text may stand for when every alias is written out."""
LONGEST_NUMBER = 100
"""Digits of a whole number; Python takes quadratic time to read one and refuses to write long ones."""


def read_yaml(path: Path) -> Any:
    """What a YAML file holds; raises OSError, UnicodeDecodeError or yaml.YAMLError."""
    with path.open(encoding="utf-8") as file:
        return load_yaml(file.read(LONGEST + 1))


def load_yaml(text: str) -> Any:
    """What a YAML text holds; anything wrong with it is a yaml.YAMLError.

    >>> load_yaml("a: [1, null]")
    {'a': [1, None]}
    >>> load_yaml("{a: 1, a: 2}")
    Traceback (most recent call last):
    yaml.constructor.ConstructorError: a stands twice
      in "<unicode string>", line 1, column 1:
        {a: 1, a: 2}
        ^
    """
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"the text has more than {LONGEST:,} characters")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_large(node)
        return loader.construct_document(node)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # the safe constructors do not guard against `!!int x` and the like
        raise yaml.YAMLError(f"a value does not fit its type ({error})") from error
    finally:
        loader.dispose()


def _refuse_large(root: Node) -> None:
    """Count values with every alias written out; each node is looked at once."""
    sizes: dict[int, int] = {}
    under_way: set[int] = set()

    def size(node: Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in under_way:
            raise ConstructorError(None, None, "it holds itself by way of an alias", node.start_mark)
        under_way.add(id(node))
        total = 1
        for child in _children(node):
            total += size(child)
            if total > MOST_VALUES:
                problem = f"it stands for more than {MOST_VALUES:,} values"
                raise ConstructorError(None, None, problem, node.start_mark)
        under_way.discard(id(node))
        sizes[id(node)] = total
        return total

    size(root)


def _children(node: Node) -> list[Node]:
    if isinstance(node, ScalarNode):
        return []
    return [part for pair in node.value for part in pair] if isinstance(node, MappingNode) else list(node.value)


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            mark = self.peek_event().start_mark
            raise ConstructorError(None, None, f"it is nested more than {DEEPEST} levels deep", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """Looked at as written: what `<<` merges in later may well be overridden."""
        node: Any = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise ConstructorError(None, None, "a key is no plain text or number", node.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"{key.value} stands twice", node.start_mark)
            seen.add(key.value)
        return node

    def construct_yaml_int(self, node: ScalarNode) -> int:
        if len(node.value) > LONGEST_NUMBER:
            raise ConstructorError(None, None, f"a number has more than {LONGEST_NUMBER} digits", node.start_mark)
        return super().construct_yaml_int(node)

    def construct_yaml_str(self, node: ScalarNode) -> str:
        text = super().construct_yaml_str(node)
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise ConstructorError(None, None, "a text holds what no file or name can", node.start_mark)
        return text


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for kind in ("str", "timestamp"):  # a date is text: no setting is one, and JSON has none
    _Loader.add_constructor(f"tag:yaml.org,2002:{kind}", _Loader.construct_yaml_str)
for kind in ("binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{kind}", _Loader.construct_undefined)

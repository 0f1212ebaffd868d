"""Building blocks of the fuzzer's inputs: hostile texts, odd values, recipes and rows that are nearly right."""

import json
from typing import Any

from hypothesis import strategies as st

NASTY = [
    "",
    " ",
    "\0",
    "\ud800",
    "\ufeff",
    "\u202e",
    "🦆" * 9,
    "a" * 3000,
    "../../../etc/passwd",
    "/dev/null",
    "C:\\x",
    "CON",
    "~",
    "~root",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "{{ 7*7 }}",
    "{% raw %}",
    "${7*7}",
    "%s%n",
    "javascript:alert(1)",
    '" onmouseover="alert(1)',
    "-1",
    "1e999",
    "nan",
    "inf",
    "0x10",
    "1_000",
    "9" * 5000,
    "null",
    "true",
    "off",
    "[]",
    "{}",
    "*a",
    "&a [*a]",
    "!!python/object/apply:os.system [id]",
    "2024-13-45",
    "!!int x",
    "!!binary =",
    "<<",
    "@",
    "`",
    "\t- a",
    "http://user:pass@[::1",
    "s3://",
    "memory://nothing",
    "https://",
    "embedded:arithmetic",
    "embedded:base",
    "a:b:c",
    "..",
    "\n\n#### 7",
    "<think>",
    "</think>",
    "\\boxed{",
    "\\boxed{\\frac{1}{0}}",
    "$$",
    "```python\n",
    "```",
]
NUMBERS = st.one_of(
    st.integers(-3, 70),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, 10**30, -(2**63)]),
    st.floats(),
    st.floats(-1, 2),
)
TEXT = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=12),
    st.text(st.characters(codec=None), max_size=4),
    st.lists(st.sampled_from(NASTY), min_size=2, max_size=3).map("".join),
)
SCALAR = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def dumped(value: Any) -> str:
    """Dump JSON with Python's extensions, such as NaN."""
    return json.dumps(value)


@st.composite
def changed_tree(draw: st.DrawFn, trees: st.SearchStrategy[Any], names: list[str]) -> Any:
    """Draw a tree of values with some of them removed, replaced, added or moved."""
    tree = json.loads(json.dumps(draw(trees)))
    for _ in range(draw(st.integers(0, 4))):
        places = _places(tree)
        holder, key = draw(st.sampled_from(places)) if places else (None, None)
        if not isinstance(holder, dict | list):
            break
        kind = draw(st.integers(0, 4))
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[draw(st.sampled_from(names) | TEXT)] = draw(JSON)
        elif kind == 2 and isinstance(holder, dict):
            holder[draw(st.sampled_from(names))] = holder[key]
        elif kind == 3:
            holder[key] = draw(SCALAR)
        else:
            holder[key] = draw(JSON)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        inside = list(one.items()) if isinstance(one, dict) else list(enumerate(one)) if isinstance(one, list) else []
        found += [(one, key) for key, _ in inside]
        waiting += [value for _, value in inside]
    return found


@st.composite
def cut_and_mended(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """Draw a text with pieces removed, doubled, replaced or inserted."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        kind = draw(st.integers(0, 2))
        put = "" if kind == 0 else text[start:end] * 2 if kind == 1 else draw(TEXT)
        text = text[:start] + put + text[end:]
    return text


@st.composite
def cut_bytes(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Draw a file with bytes flipped, cut off or inserted."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.integers(0, 2))
        if kind == 0 and data:
            data[place] = draw(st.integers(0, 255))
        elif kind == 1:
            del data[place:]
        else:
            data[place:place] = draw(st.binary(max_size=6))
    return bytes(data)

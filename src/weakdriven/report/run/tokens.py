"""Prepare examples for the token view: the tokens that `diagnose` wrote, cut and rounded to keep the page small."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from weakdriven.report.files import read_examples
from weakdriven.report.format import number, shorten
from weakdriven.runs.directory import DIAGNOSTICS, EXAMPLES

TOKENS, NEGATIVES = 12_000, 5
"""Maximum of tokens over all examples, and of hard negatives per token, to keep the page below 6 MB."""
LISTS = {
    "hardest": "hardest for the strong model",
    "regressed": "entropy rose most from weak to strong",
    "random": "at random",
}
VALUES = (
    "weak_probability",
    "strong_probability",
    "mixed_probability",
    "after_probability",
    "weak_entropy",
    "strong_entropy",
    "disagreement",
    "hard_negatives",
)
OF_NEGATIVES = ("weak", "strong", "mixed", "gradient")


def token_view(run: Path, problems: list[str]) -> dict[str, Any]:
    """Return the input of the page's script; empty if there is no diagnosis.

    A token is `[text, values...]`, then `text, values...` for each hard negative; texts are indices into `texts`.
    """
    path = run / DIAGNOSTICS / "tokens.parquet"
    grouped: dict[int, list[dict[str, Any]]] = {}
    try:
        for token in parquet.read_table(path).to_pylist() if path.is_file() else ():
            grouped.setdefault(token["row"], []).append(token)
    except (OSError, KeyError, pa.ArrowException) as error:
        name = type(error).__name__
        problems.append(f"diagnostics/tokens.parquet cannot be read ({name}); run weakdriven diagnose again.")
    if not grouped:
        return {}
    most = max(20, TOKENS // len(grouped))
    other = (run / DIAGNOSTICS / EXAMPLES).is_file()  # examples of `diagnose --rows`
    wanted = {row: tokens[0]["id"] for row, tokens in grouped.items()}
    questions = read_examples(run, wanted, stage=DIAGNOSTICS if other else "data")
    texts: dict[str, int] = {}
    examples = []
    for row, tokens in grouped.items():
        tokens.sort(key=lambda token: token["position"])
        shown = {"row": row, "id": wanted[row], "lists": tokens[0]["lists"]}
        shown["tokens"] = [_packed(token, texts) for token in tokens[:most]]
        shown["question"] = shorten(questions.get(row, {}).get("prompt"), 600)
        examples.append(shown | {"left_out": max(0, len(tokens) - most)})
    lists = {name: [n for n, one in enumerate(examples) if name in one["lists"]] for name in LISTS}
    return {
        "examples": examples,
        "texts": list(texts),
        "lists": [{"name": name, "words": LISTS[name], "examples": found} for name, found in lists.items() if found],
        "values": list(VALUES),
        "negative_values": list(OF_NEGATIVES),
    }


def _packed(token: dict[str, Any], texts: dict[str, int]) -> list[Any]:
    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    packed: list[Any] = [place(token["text"]), *(_short(token[name]) for name in VALUES)]
    columns = [token[f"negative_{name}"][:NEGATIVES] for name in ("texts", *OF_NEGATIVES)]
    for text, *values in zip(*columns, strict=True):
        packed += [place(text), *map(_short, values)]
    return packed


def _short(value: Any) -> Any:
    """Round to three digits; keep counts whole."""
    return None if number(value) is None else int(value) if value == int(value) else float(f"{value:.3g}")

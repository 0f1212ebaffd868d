"""Rows of a file or a Hub dataset -> Example. Understood: `messages`, `prompt`/`completion`, `question`/`solution`."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weakdriven.demo.problems import demo_rows
from weakdriven.errors import UserError

EMBEDDED = "embedded:arithmetic"
GOLD_FIELDS = ("answer", "gold", "reference_answer")
Message = dict[str, str]


@dataclass(frozen=True)
class Example:
    """One prompt with the completion to learn and, where known, the answer that a grader accepts."""

    id: str
    prompt: list[Message]
    completion: str
    gold: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def load_examples(
    path: str, split: str = "train", limit: int | None = None, *, empty_completions: str = "error"
) -> list[Example]:
    """All examples of a source; an empty source or a repeated id is an error.

    Args:
        empty_completions: `drop` keeps rows without a completion as examples whose completion is empty, for whoever
            counts them; else they are an error.
    """
    examples: list[Example] = []
    first_use: dict[str, int] = {}
    for number, row in enumerate(read_rows(path, split), start=1):
        if limit is not None and number > limit:
            break
        example = as_example(row, number, path, needs_completion=empty_completions != "drop")
        if example.id in first_use:
            raise UserError(
                f"{path}: id {example.id!r} stands in rows {first_use[example.id]} and {number}; ids must be unique."
            )
        first_use[example.id] = number
        examples.append(example)
    if not examples:
        raise UserError(f"{path}: there is no row to train on.")
    return examples


def as_example(row: dict[str, Any], number: int, path: str, *, needs_completion: bool = True) -> Example:
    """Read one row in whichever of the known forms it has; `number` counts from 1 and stands in for a missing id."""
    where = f"{path}, row {number}"
    if "messages" in row:
        turns, used = _messages(row["messages"], where), {"messages"}
        replies = turns[-1:] if turns and turns[-1]["role"] == "assistant" else []
        prompt = turns[: len(turns) - len(replies)]
    elif "prompt" in row or "question" in row:
        ask, reply = ("prompt", "completion") if "prompt" in row else ("question", "solution")
        used = {ask, reply}
        prompt = _messages(row[ask], where, role="user")
        replies = _messages(row[reply], where, role="assistant") if row.get(reply) else []
    else:
        raise UserError(
            f"{where}: found the fields {', '.join(row) or 'none'}; expected messages, prompt and completion, "
            "or question and solution."
        )
    if not prompt or not any(message["content"].strip() for message in prompt):
        raise UserError(f"{where}: the prompt is empty; every row needs one.")
    if len(replies) > 1 or any(reply["role"] != "assistant" for reply in replies):
        raise UserError(f"{where}: the completion has to be one message of the assistant; found {len(replies)} others.")
    completion = replies[0]["content"] if replies else ""
    if needs_completion and not completion.strip():
        raise UserError(
            f"{where}: there is no completion to learn from; give it one, remove the row, or leave such rows out with "
            "data.empty_completions=drop."
        )
    identity = str(number if row.get("id") is None else row["id"]).encode(errors="backslashreplace").decode()
    gold = next((str(row[key]) for key in GOLD_FIELDS if row.get(key) is not None), None)
    meta = {key: value for key, value in row.items() if key not in used | {"id", *GOLD_FIELDS}}
    return Example(identity, prompt, completion, gold, meta)


def _messages(value: Any, where: str, role: str = "") -> list[Message]:
    """A conversation, or a bare text as the one message of `role`."""
    if role and isinstance(value, str):
        value = [{"role": role, "content": value}]
    fields = ("role", "content")
    turns: list[Any] = value if isinstance(value, list) else [None]
    if not all(isinstance(turn, dict) and all(isinstance(turn.get(f), str) for f in fields) for turn in turns):
        found = json.dumps(value, default=str)[:80]
        raise UserError(f"{where}: expected text or messages with role and content, found {found}.")
    for turn in turns:
        refuse_broken_text(turn["role"] + turn["content"], where)
    return [{field: turn[field] for field in fields} for turn in turns]


def refuse_broken_text(text: str, where: str) -> None:
    """JSON can hold half a surrogate pair; no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: the text holds half a surrogate pair, which is not valid Unicode.") from None


def read_rows(path: str, split: str = "train") -> Iterator[dict[str, Any]]:
    """Raw rows of the embedded set, a JSONL (.gz), JSON or Parquet file, or a Hub dataset."""
    if path == EMBEDDED:
        yield from demo_rows(split)
        return
    file = Path(path).expanduser()
    if file.is_file():
        if file.suffix == ".parquet":
            yield from _hub_rows("parquet", "train", data_files=str(file))
        elif file.suffix == ".json":
            yield from _json_array(file)
        else:
            yield from _json_lines(file)
    elif file.exists() or path.startswith((".", "/", "~")) or file.suffix in (".jsonl", ".json", ".gz", ".parquet"):
        raise UserError(f"{path}: there is no such data file.")
    else:
        yield from _hub_rows(path, split)


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if file.suffix == ".gz" else open
    number = 0
    try:
        with opener(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _object(json.loads(line), file, number)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {number} is not JSON: {error}.") from None
    except (UnicodeDecodeError, OSError, zlib.error, EOFError) as error:
        raise UserError(f"{file}, line {number + 1} cannot be read: {error}.") from None


def _json_array(file: Path) -> Iterator[dict[str, Any]]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read as JSON: {error}.") from None
    if not isinstance(rows, list):
        raise UserError(f"{file}: expected a list of rows, found {type(rows).__name__}.")
    for number, row in enumerate(rows, start=1):
        yield _object(row, file, number)


def _object(row: Any, file: Path, number: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{file}, row {number}: expected an object with named fields, found {type(row).__name__}.")
    return row


def _hub_rows(name: str, split: str, **kwargs: Any) -> Iterable[dict[str, Any]]:
    from datasets import load_dataset

    try:
        return load_dataset(name, split=split, **kwargs)  # pyright: ignore[reportReturnType]
    except Exception as error:
        found = kwargs.get("data_files", name)
        raise UserError(f"{found} is neither a readable data file nor a dataset on the Hub ({error}).") from error

"""Known layouts of training rows: `detect` finds a source's layout, `as_example` reads a row.

`renamed` reads a source whose fields have other names.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from weakdriven.data.example import DOMAINS, Example, Message, refuse_broken_text
from weakdriven.data.questions import LETTERS, user_message
from weakdriven.data.rows.conversations import as_messages, from_history, from_sharegpt, info_of, infos, with_system
from weakdriven.errors import UserError

Row = dict[str, Any]
GOLD_FIELDS = ("answer", "gold", "reference_answer")
EXPECTED = (
    "messages, prompt and completion, question and solution, prompt with entry_point and solution (code), "
    "conversations (ShareGPT), instruction and output (Alpaca), or text"
)
PARTS = {
    "AM-DeepSeek-R1-Distilled": ("messages",),
    "messages": ("messages",),
    "ShareGPT": ("conversations", "system"),
    "code": ("prompt", "entry_point", "test", "instruct_prompt", "solution", "completion"),
    "prompt/completion": ("prompt", "completion", "all_turns", "meta"),
    "question/solution": ("question", "context", "options", "starter_code", "tests", "solution"),
    "Alpaca": ("instruction", "input", "system", "history", "output"),
    "text": ("text",),
}
"""Fields that each layout reads besides id, domain, source and an answer."""
TAKEN = {
    "code": {"prompt", "solution", "completion", "instruct_prompt"},
    "question/solution": {"question", "solution"},
}
"""Fields that become the prompt or the completion; the others stay in meta for graders."""
REPLIES = {
    "code": ("solution", "completion"),
    "prompt/completion": ("completion",),
    "question/solution": ("solution",),
    "Alpaca": ("output",),
    "text": ("text",),
}


COMMON = ("id", *GOLD_FIELDS, "domain", "source")
"""Fields of every layout."""
DECIDING = ("messages", "conversations", "prompt", "question", "instruction", "text")
"""The first of these fields that a row has decides its layout."""


def check_fields(fields: Mapping[str, str], rows: Sequence[Row], path: str) -> None:
    """Raise an error if `data.fields` renames to a field that no layout has, or from a field that no row has."""
    known = dict.fromkeys(name for names in (*PARTS.values(), COMMON) for name in names)
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}."
            raise UserError(f"{path}: data.fields names {name}, which no known layout has; {hint}")
    found = dict.fromkeys(str(field) for row in rows for field in row)
    if missing := [field for field in fields.values() if field not in found]:
        raise UserError(
            f"{path}: data.fields names {', '.join(missing)}, which no row has; found the fields {', '.join(found)}."
        )


def renamed(row: Row, fields: Mapping[str, str]) -> Row:
    """Rename the fields of a row to ours; omit deciding fields of layouts other than the named one.

    >>> renamed({"q": "1+1?", "a": "2", "text": "1+1? 2", "id": 7}, {"prompt": "q", "completion": "a"})
    {'id': 7, 'prompt': '1+1?', 'completion': '2'}
    """
    unused = {*fields, *fields.values(), *(DECIDING if any(name in DECIDING for name in fields) else ())}
    others = {name: value for name, value in row.items() if name not in unused}
    return others | {name: row[field] for name, field in fields.items() if field in row}


class Layout(NamedTuple):
    """The layout of a source."""

    name: str
    fields: tuple[str, ...]
    """Fields that are read from its rows."""

    def refuse_other(self, row: Row, where: str) -> None:
        """Raise an error for a row in another layout; a source has a single layout."""
        found = layout_name(row)
        if found is None:
            raise unknown_layout(row, where)
        if found != self.name and not {found, self.name} <= {"messages", "AM-DeepSeek-R1-Distilled"}:
            raise UserError(
                f"{where} has another layout: found {found} (fields {', '.join(row)}), but the rows before "
                f"it are {self.name}; put rows of different layouts into different files."
            )


def detect(
    rows: Sequence[Row], path: str = "rows", *, needs_completion: bool = True, places: Iterable[str] | None = None
) -> Layout:
    """Detect the layout of a source's first rows; raise an error for rows of several layouts or of none."""
    if not rows:
        raise UserError(f"{path}: there are no rows to train on.")
    name = layout_name(rows[0]) or ""
    for place, row in zip(places or (f"{path}, row {number}" for number in count(1)), rows, strict=False):
        Layout(name, ()).refuse_other(row, place)
    present = dict.fromkeys(field for row in rows for field in row)
    replies = REPLIES.get(name, tuple(present))
    found = any(field in present for field in replies) or any(rationale(row)[0] for row in rows)
    if needs_completion and not found:
        raise UserError(
            f"{path}: there is no completion to train on: found the fields {', '.join(present)}, which are "
            f"{name} without {' or '.join(replies)}; add it."
        )
    known = (*PARTS[name], *COMMON)
    return Layout(name, tuple(field for field in known if field in present))


def layout_name(row: Row) -> str | None:
    """Return the first layout that fits the fields of a row; null fields count only if nothing else fits."""
    filled = {name: value for name, value in row.items() if value is not None}
    return _named(filled) or _named(row)


def _named(row: Row) -> str | None:
    if "messages" in row:
        return "AM-DeepSeek-R1-Distilled" if infos(row["messages"]) else "messages"
    if "conversations" in row:
        return "ShareGPT"
    if "prompt" in row:
        names = row.get("entry_point")
        return "code" if names and all(isinstance(one, str) for one in (row["prompt"], names)) else "prompt/completion"
    if "question" in row:
        return "question/solution"
    if "instruction" in row:
        return "Alpaca"
    return "text" if "text" in row else None


def unknown_layout(row: Row, where: str) -> UserError:
    return UserError(
        f"{where}: found the fields {', '.join(map(str, row)) or 'none'}; expected {EXPECTED}. "
        "Rename other fields with data.fields: {prompt: input, completion: target}."
    )


def as_example(row: Row, number: int, path: str, *, needs_completion: bool = True, domain: str = "") -> Example:
    """Read a row in any known layout; its number replaces a missing id, and `domain` a missing domain."""
    where = f"{path}, row {number}"
    if (name := layout_name(row)) is None:
        raise unknown_layout(row, where)
    used = {"id", *GOLD_FIELDS, *(TAKEN[name] if name in TAKEN else PARTS[name])}
    if row.get("domain") in (*DOMAINS, "", None):
        domain = row.get("domain") or domain
        used.add("domain")
    prompt, replies = _prompt_and_replies(name, row, domain, where)
    asked = any(message["content"].strip() for message in prompt if message["role"] != "system")
    if name != "text" and not asked:
        raise UserError(f"{where}: the prompt is empty; every row needs one.")
    if len(replies) > 1 or any(reply["role"] != "assistant" for reply in replies):
        raise UserError(f"{where}: the completion must be a single message of the assistant; found {len(replies)}.")
    info = info_of(row.get("messages"))
    source = row.get("source") or info.get("source")
    if isinstance(row.get("source"), str | None):
        used.add("source")
    meta = {key: value for key, value in row.items() if key not in used}
    if name == "prompt/completion" and row.get("meta") is not None:
        meta = (row["meta"] if isinstance(row["meta"], dict) else {"meta": row["meta"]}) | meta
    if "test_case" in info:
        meta["test_case"] = info["test_case"]
    golds = [rationale(row)[1], *(row.get(key) for key in GOLD_FIELDS), info.get("reference_answer")]
    gold = next((gold for gold in golds if gold is not None and str(gold).strip()), None)
    example = Example(
        id=str(number if row.get("id") is None else row["id"]).encode(errors="backslashreplace").decode(),
        prompt=prompt,
        completion=replies[0]["content"] if replies else "",
        gold=None if gold is None else str(gold),
        domain=domain,
        source=source if isinstance(source, str) else "",
        meta=meta,
        all_turns=(name != "prompt/completion" or row.get("all_turns") is True)
        and any(message["role"] == "assistant" for message in prompt),
    )
    if all(reply.strip() for reply in example.replies()):
        return example
    if needs_completion:
        raise UserError(
            f"{where}: there is no completion to train on; add it, remove the row, or drop such rows with "
            "data.empty_completions=drop."
        )
    return replace(example, completion="", all_turns=False)


def _prompt_and_replies(name: str, row: Row, domain: str, where: str) -> tuple[list[Message], list[Message]]:
    if name in ("messages", "AM-DeepSeek-R1-Distilled", "ShareGPT"):
        if name == "ShareGPT":
            turns = with_system(row.get("system"), from_sharegpt(row["conversations"], where), where)
        else:
            turns = as_messages(row["messages"], where)
        replies = turns[-1:] if turns and turns[-1]["role"] == "assistant" else []
        return turns[: len(turns) - len(replies)], replies
    if name == "text":
        prompt = []
    elif name == "prompt/completion":
        prompt = as_messages(row["prompt"], where, role="user")
    elif name == "Alpaca":
        asked = _text(row, "instruction", where)
        given = _text(row, "input", where) if row.get("input") else ""
        asked = f"{asked}\n\n{given}" if given.strip() else asked
        turns = [*from_history(row.get("history"), where), {"role": "user", "content": asked}]
        prompt = with_system(row.get("system"), turns, where)
    elif name == "question/solution" and not isinstance(row["question"], str):
        prompt = as_messages(row["question"], where, role="user")
    else:
        refuse_wrong_options(row.get("options"), where)
        asked = user_message(row, domain)
        refuse_broken_text(asked, where)
        prompt = [{"role": "user", "content": asked}]
    reply = next((row[field] for field in REPLIES[name] if row.get(field)), None) or rationale(row)[0]
    return prompt, as_messages(reply, where, role="assistant") if reply else []


def rationale(row: Row) -> tuple[str, str | None]:
    """Split the `answer` of a row of openai/gsm8k into solution and final answer."""
    text, mark, final = row["answer"].rpartition("\n####") if isinstance(row.get("answer"), str) else ("", "", "")
    return (text.strip(), final.strip().replace(",", "")) if mark else ("", None)


def refuse_wrong_options(options: Any, where: str) -> None:
    """Raise an error unless options are a list of strings, at most as many as letters."""
    good = options is None or (
        isinstance(options, list)
        and len(options) <= len(LETTERS)
        and all(isinstance(option, str | int | float) and str(option).strip() for option in options)
    )
    if not good:
        raise UserError(f"{where}: expected options as a list of at most {len(LETTERS)} texts, found {options!r:.100}.")


def _text(row: Row, field: str, where: str) -> str:
    messages = as_messages(row[field], f"{where}, {field}", role="user")
    if len(messages) != 1:
        raise UserError(f"{where}, {field}: expected a text, found {len(messages)} messages.")
    return messages[0]["content"]

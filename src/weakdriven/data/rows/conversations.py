"""Convert conversations (`messages`, ShareGPT, Alpaca or AM) to messages with role and content."""

import json
from typing import Any

from weakdriven.data.example import Message, refuse_broken_text
from weakdriven.errors import UserError

ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")}
SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
SHAREGPT_ROLES |= {"model": "assistant", "system": "system"}
INFO_FIELDS = ("reference_answer", "test_case", "source")


def as_messages(value: Any, where: str, role: str = "") -> list[Message]:
    """Keep role and content of messages; a bare text becomes one message of `role`."""
    if role and isinstance(value, str):
        value = [{"role": role, "content": value}]
    turns = _turns(value, ("role", "content"))
    if turns is None:
        raise UserError(f"{where}: expected text or messages with role and content, found {_start(value)}.")
    return _with_roles(turns, ROLES, where)


def from_sharegpt(value: Any, where: str) -> list[Message]:
    """Convert ShareGPT's `conversations` to messages with our role names."""
    turns = _turns(value, ("from", "value")) or _turns(value, ("role", "content"))
    if turns is None:
        raise UserError(f"{where}: expected conversations with from and value as texts, found {_start(value)}.")
    return _with_roles(turns, SHAREGPT_ROLES, where)


def from_history(value: Any, where: str) -> list[Message]:
    """Convert the turns before an Alpaca row's instruction from LLaMA-Factory's form: [["1+1?", "2"]]."""
    pairs: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            expected = "history as a list of pairs, each a question and its answer"
            raise UserError(f"{where}: expected {expected}, found {_start(value)}.")
    roles = ("user", "assistant")
    turns = [{"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True)]
    return _with_roles(turns, ROLES, where)


def with_system(system: Any, turns: list[Message], where: str) -> list[Message]:
    """Put a system prompt from its own field first, unless the turns have one."""
    if system is None or system == "" or (turns and turns[0]["role"] == "system"):
        return turns
    return [*as_messages(system, where, role="system"), *turns]


def info_of(messages: Any) -> dict[str, Any]:
    """Merge the `info` of AM-DeepSeek-R1-Distilled's messages: the first value of each field.

    Omits `think_content` and `answer_content`, which repeat parts of the reply.
    """
    found: dict[str, Any] = {}
    for given in infos(messages):
        found = {name: given[name] for name in INFO_FIELDS if given.get(name) not in (None, "")} | found
    return found


def infos(messages: Any) -> list[dict[str, Any]]:
    """Return the `info` of each message that has one."""
    turns = messages if isinstance(messages, list) else []
    return [turn["info"] for turn in turns if isinstance(turn, dict) and isinstance(turn.get("info"), dict)]


def _turns(value: Any, names: tuple[str, str]) -> list[Message] | None:
    """Convert to messages, or return None if the value is something else."""
    turns: list[Any] = value if isinstance(value, list) else [None]
    if not all(isinstance(turn, dict) and all(isinstance(turn.get(name), str) for name in names) for turn in turns):
        return None
    return [{"role": turn[names[0]], "content": turn[names[1]]} for turn in turns]


def _with_roles(turns: list[Message], roles: dict[str, str], where: str) -> list[Message]:
    """Rename the roles of turns to ours; raise an error for an unknown role or broken text."""
    for place, turn in enumerate(turns, start=1):
        if (role := turn["role"]) not in roles:
            raise UserError(f"{where}: message {place} has the role {role!r}; expected one of {', '.join(roles)}.")
        turn["role"] = roles[role]
        refuse_broken_text(turn["content"], where)
    return turns


def _start(value: Any) -> str:
    return json.dumps(value, default=str)[:80]

"""System prompts and chat rendering: the same text in training, entropy scans, sampling and evaluation."""

import logging
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from weakdriven.data.example import Message
from weakdriven.errors import UserError
from weakdriven.runs.processes import is_main

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
PLAIN_TEMPLATE = "plain"
SHIPPED_TEMPLATES = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    PLAIN_TEMPLATE: (),
}
"""By template: the special tokens that it writes besides the tokenizer's begin and end of text."""
_TAGGED = (
    "Think about the problem first, then answer. Write your reasoning between <think> and </think>, "
    "then the result between <answer> and </answer>. "
)
_TAG_FREE = "Solve the problem step by step. End your solution with the final answer enclosed in \\boxed{}"
SYSTEM_PROMPTS = {
    ("math", "tagged"): _TAGGED + "Put the final answer in \\boxed{}.",
    ("code", "tagged"): _TAGGED + "Give the program as one Python code block.",
    ("logic", "tagged"): _TAGGED + "End with: The answer is (X).",
    ("math", "tag-free"): _TAG_FREE,
    ("code", "tag-free"): "Provide clean, correct Python code",
    ("logic", "tag-free"): "End your response with 'The answer is (X).'",
}
_SENTINEL = "weakdriven completion goes here"


def with_system_prompt(messages: list[Message], domain: str, style: str, own: str | None = None) -> list[Message]:
    """Add the user's own system prompt, or the one of domain and style, unless the messages have one."""
    system = own or SYSTEM_PROMPTS.get((domain, style))
    if system and messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    return messages


def with_request(question: str, domain: str, style: str) -> str:
    """Return a benchmark's question; in style plain, append the required form of the answer."""
    return f"{question}\n\n{SYSTEM_PROMPTS[domain, 'tag-free']}" if style == "plain" else question


@dataclass
class Renderer:
    """Renders messages as the exact text that a model sees."""

    tokenizer: "PreTrainedTokenizerBase"
    domain: str
    style: str
    system_prompt: str | None = None
    """The user's own system prompt, for messages without one."""

    def prompt(self, messages: list[Message], domain: str = "") -> str:
        """Render the text up to the start of the model's reply, with the row's own system prompt and domain."""
        from jinja2 import TemplateError

        try:
            return self._render(messages, domain or self.domain)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(f"The chat template rejects a conversation of {roles}: {error}") from error

    def _render(self, messages: list[Message], domain: str) -> str:
        messages = with_system_prompt(messages, domain, self.style, self.system_prompt)
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    @cached_property
    def end_of_turn(self) -> str:
        """The text that ends a reply: the template's, up to its first special token, or else the EOS token.

        The reply itself is never rendered by the template, because some templates rewrite replies (Qwen3's moves
        thinking blocks), and a model must be trained on the text that it has to generate.
        """
        if not (end := self._end_in_template) and self.tokenizer.eos_token is None:
            raise UserError("Neither the chat template nor the tokenizer has a token that ends a reply.")
        return end or str(self.tokenizer.eos_token)

    @cached_property
    def beginning(self) -> str:
        """The token that the tokenizer adds before a text, if any."""
        first, bos = self.tokenizer("x")["input_ids"][0], self.tokenizer.bos_token_id  # pyright: ignore
        return str(self.tokenizer.bos_token) if bos is not None and first == bos else ""

    @property
    def end_of_text(self) -> str:
        """The token that ends a text without a chat template."""
        return str(self.tokenizer.eos_token or self.end_of_turn)

    @cached_property
    def _end_in_template(self) -> str:
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SENTINEL}]
        _, found, after = str(self.tokenizer.apply_chat_template(turns, tokenize=False)).partition(_SENTINEL)
        if not found:
            raise UserError("The chat template omits the assistant's reply, so there is nothing to train on.")
        special = [*special_tokens(self.tokenizer), *self.tokenizer.all_special_tokens]
        ends = [after.find(token) + len(token) for token in special if token in after]
        return after[: min(ends)] if ends else ""

    @cached_property
    def warning(self) -> str:
        """A warning if replies do not end properly with this template; else empty."""
        end, ids = self.end_of_turn, self.tokenizer("x" + self.end_of_turn, add_special_tokens=False)["input_ids"]
        if not self._end_in_template:
            return (
                "The chat template writes no special token after a reply. So the model learns to end replies with "
                f"{end!r}, which the template never shows it, and only the last reply of a conversation can be "
                "supervised; use a template that writes a special token after each reply."
            )
        if ids[-1] not in self.stop_ids:
            return (
                f"The end of a reply, {end!r}, is not tokenized separately from the text before it, so the model "
                "cannot learn to stop; use the tokenizer that belongs to the chat template."
            )
        return ""

    @cached_property
    def stop_ids(self) -> list[int]:
        """Tokens that end generation: the chat template's end of turn and the tokenizer's EOS."""
        end = self.tokenizer(self.end_of_turn, add_special_tokens=False)["input_ids"]
        return sorted({end[-1], self.tokenizer.eos_token_id} - {None})  # pyright: ignore

    def check(self) -> None:
        """Render a prompt and an ending, so that a broken template is found before any work."""
        try:
            self._render([{"role": "user", "content": "?"}], self.domain)
            self.stop_ids  # noqa: B018
        except UserError:
            raise
        except Exception as error:
            asked = "data.system_prompt" if self.system_prompt else f"style {self.style!r}"
            raise UserError(f"The chat template cannot be used with {asked}: {error}.") from error


def special_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    return {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}


def give_chat_template(
    tokenizer: "PreTrainedTokenizerBase", template: str | None, model: str, *, setting: str = "chat_template"
) -> None:
    """Set the chat template (a file or a shipped name); a tokenizer without a template gets `plain`."""
    if template is None and not tokenizer.chat_template:
        template = PLAIN_TEMPLATE
        report_plain_template(model, setting)
    if template in SHIPPED_TEMPLATES:
        # a marker that is not a special token would be split, and its last piece would end every reply
        if missing := [mark for mark in SHIPPED_TEMPLATES[template] if mark not in special_tokens(tokenizer)]:
            raise UserError(
                f"{setting}: {template} writes {' and '.join(missing)}, which the tokenizer of {model} does not have "
                "as special tokens; use a template that fits the model."
            )
        tokenizer.chat_template = (resources.files("weakdriven.data") / f"{template}.jinja").read_text()
    elif template is not None:
        try:
            tokenizer.chat_template = Path(template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise UserError(
                f"{setting}: {template} is neither a readable file nor one of the shipped templates "
                f"({', '.join(SHIPPED_TEMPLATES)})."
            ) from None


@cache
def report_plain_template(model: str, setting: str) -> None:
    if is_main():
        others = ", ".join(name for name in SHIPPED_TEMPLATES if name != PLAIN_TEMPLATE)
        logger.warning(
            "The tokenizer of %s has no chat template, so conversations are written with `plain` (User:, Assistant:); "
            "%s chooses another (%s, or a file).",
            model,
            setting,
            others,
        )

"""Prompts -> completions with a transformers model, greedily, in batches of similar length."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int
    finish: str
    """`stop` if the model ended its turn, `length` if the token budget did."""


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    *,
    max_new_tokens: int,
    stop_ids: list[int],
    batch_size: int,
    on_batch: Callable[[list[int], list[Completion]], None],
) -> None:
    """Complete every prompt; `on_batch` gets the prompts' positions and their completions, shortest prompts first."""
    ids = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
    order = sorted(range(len(ids)), key=lambda i: (len(ids[i]), i))
    pad = tokenizer.pad_token_id
    greedy = GenerationConfig(do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=stop_ids, pad_token_id=pad)
    # penalties or beams in the checkpoint's own config would make "greedy" mean something else for each model
    own, model.generation_config = model.generation_config, greedy
    model.eval()
    try:
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            width = max(len(ids[row]) for row in rows)
            padded = torch.tensor([[pad] * (width - len(ids[row])) + ids[row] for row in rows], device=model.device)
            mask = torch.tensor([[0] * (width - len(ids[row])) + [1] * len(ids[row]) for row in rows]).to(model.device)
            output = model.generate(input_ids=padded, attention_mask=mask)  # pyright: ignore[reportCallIssue]
            on_batch(rows, [_completion(tokenizer, new, stop_ids) for new in output[:, width:].tolist()])
    finally:
        model.generation_config = own


def _completion(tokenizer: PreTrainedTokenizerBase, new: list[int], stop_ids: list[int]) -> Completion:
    end = next((i for i, token in enumerate(new) if token in stop_ids), None)
    text = tokenizer.decode(new[:end], skip_special_tokens=True)
    return Completion(str(text), len(new) if end is None else end + 1, "length" if end is None else "stop")

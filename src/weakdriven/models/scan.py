"""One teacher-forced pass over a tokenised dataset: entropy and likelihood of each example."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from weakdriven.data.tokenize import IGNORE
from weakdriven.losses.entropy import token_entropy
from weakdriven.models.head import head, hidden_states


def scan_batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers in groups of similar length, longest first so that memory trouble shows at once."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@torch.no_grad()
def scan(
    model: PreTrainedModel,
    dataset: Dataset,
    *,
    batch_tokens: int,
    skip: set[str],
    on_batch: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Pass each batch's scores to `on_batch`; a batch whose ids are all in `skip` was done before."""
    model.eval()
    lengths = [len(ids) for ids in dataset["input_ids"]]
    for rows in scan_batches(lengths, batch_tokens):
        examples = [dataset[row] for row in rows]
        if all(example["id"] in skip for example in examples):
            continue
        on_batch(score_batch(model, examples))


def score_batch(model: PreTrainedModel, examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entropy (mean over supervised tokens, nats) and mean negative log-likelihood of each example."""
    width = max(len(example["input_ids"]) for example in examples)
    shape, device = (len(examples), width), model.device
    ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, IGNORE)
    for i, example in enumerate(examples):
        length = len(example["input_ids"])
        ids[i, :length], mask[i, :length] = torch.tensor(example["input_ids"]), 1
        labels[i, :length] = torch.tensor(example["labels"])
    ids, mask, target = ids.to(device), mask.to(device), labels[:, 1:].to(device)
    kept = target != IGNORE
    hidden = hidden_states(model, {"input_ids": ids, "attention_mask": mask, "use_cache": False})[:, :-1]
    entropy_T, nll_T = token_entropy(hidden[kept], head(model), target[kept])
    counts = kept.sum(1).tolist()
    return [
        {
            "id": example["id"],
            "tokens": count,
            "entropy": entropy.double().mean().item(),
            "nll": nll.double().mean().item(),
            "truncated": example["truncated"],
        }
        for example, count, entropy, nll in zip(
            examples, counts, entropy_T.split(counts), nll_T.split(counts), strict=True
        )
    ]

"""Computes the entropy and likelihood of each example in one teacher-forced pass over a tokenised dataset.

N = examples, B = examples of a batch, T = supervised tokens of a batch, S = scores of a token.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from weakdriven.data.tokenize import IGNORE, row_lengths
from weakdriven.errors import UserError
from weakdriven.losses.entropy import TokenScores, token_scores
from weakdriven.models.head import causal_lm, head, hidden_states
from weakdriven.models.row_attention import has_kernel, keeps_rows_apart, rows_apart, takes_attention
from weakdriven.wmss.score_files import HITS_SCHEMA, MEANS, PART_SCHEMA


def plan_batches(lengths_N: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Group row numbers by similar length, longest first so that a lack of memory shows at once.

    The groups depend on the lengths alone. Half-precision products may round differently in another shape, and scores
    should not change when a scan is resumed or runs on another number of processes.

    >>> [rows.tolist() for rows in plan_batches(np.array([3, 9, 4, 2]), batch_tokens=10)]
    [[1], [2, 0], [3]]
    """
    order = np.argsort(-lengths_N, kind="stable")
    batches, begin = [], 0
    while begin < len(order):
        size = max(batch_tokens // max(int(lengths_N[order[begin]]), 1), 1)
        batches.append(order[begin : begin + size])
        begin += size
    return batches


def score_dataset(model: PreTrainedModel, dataset: Dataset, *, batch_tokens: int = 32768) -> pa.Table:
    """Return the entropy, likelihood and token count of each example, in order; null if nothing is supervised.

    Args:
        dataset: Tokenised examples with `input_ids` and `labels` (-100: not supervised). `id` (default: the row
            number) and `truncated` (default: false) are copied into the result.
        batch_tokens: Padded tokens in one forward pass.
    """
    if missing := {"input_ids", "labels"} - set(dataset.column_names):
        raise UserError(f"The dataset has no {' and no '.join(missing)}, which scoring needs; tokenise it first.")
    parts = list(scan(model, dataset, plan_batches(row_lengths(dataset), batch_tokens)))
    return pa.Table.from_batches(parts, PART_SCHEMA).sort_by("row").drop_columns("row")


class States(NamedTuple):
    """Hidden states that predict the supervised tokens of a batch, row after row."""

    numbers: np.ndarray
    ids: list[str]
    truncated: list[bool]
    count_B: np.ndarray
    """Supervised tokens of each row."""
    hidden_TD: Tensor
    target_T: Tensor


@torch.no_grad()
def supervised_states(model: PreTrainedModel, dataset: Dataset, batches: Iterable[np.ndarray]) -> Iterator[States]:
    """Yield the hidden states and true tokens of each batch of row numbers, on the model's device."""
    model.eval()
    if "longrope" in _rotary_kinds(model):
        batches = (part for numbers in batches for part in _by_length(dataset, numbers))
    for numbers in batches:
        yield _states(model, dataset, numbers)


@torch.no_grad()
def scan(
    model: PreTrainedModel, dataset: Dataset, batches: Iterable[np.ndarray], *, hits: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the scores of each batch of row numbers, in order; null for an example without supervised tokens."""
    waiting = None
    for *rows, hidden_TD, target_T in supervised_states(model, dataset, batches):
        launched = rows, _to_host(token_scores(hidden_TD, head(model), target_T, hits=hits))
        if waiting:  # read one batch late, so that the device never waits
            yield _collect(*waiting)
        waiting = launched
    if waiting:
        yield _collect(*waiting)


def can_pack(model: PreTrainedModel) -> bool:
    """Return whether examples can be packed into one long row and still attend only to themselves."""
    inner: Any = causal_lm(model)
    flash = "flash" in str(inner.config.get_text_config()._attn_implementation)
    kernel = flash or (takes_attention(inner) and has_kernel(model.device, model.dtype))
    stateful = getattr(inner, "_is_stateful", False)
    return kernel and keeps_rows_apart(inner) and not stateful and not _rotary_kinds(model) & {"dynamic", "longrope"}


def _rotary_kinds(model: PreTrainedModel) -> set[str]:
    """Return the types of rotary embedding; a configuration has one for all layers or one per type of layer."""
    rope = getattr(causal_lm(model).config.get_text_config(), "rope_parameters", None) or {}
    return {one.get("rope_type", "") for one in (rope, *rope.values()) if isinstance(one, dict)}


def _by_length(dataset: Dataset, numbers: np.ndarray) -> list[np.ndarray]:
    """Group rows of equal length; with `longrope`, one long row changes the frequencies of its whole batch."""
    length_B = row_lengths(dataset.select(numbers))
    return [numbers[length_B == length] for length in np.unique(length_B)[::-1]]


def _states(model: PreTrainedModel, dataset: Dataset, numbers: np.ndarray) -> States:
    """Run one forward pass: over one long row if the examples can be packed, else over one padded row each.

    Padding is on the right, where causal attention never looks, so there is no mask. Without a mask, torch uses its
    fused causal kernel.
    """
    rows = [dataset[int(number)] for number in numbers]
    names = [str(row.get("id", number)) for row, number in zip(rows, numbers, strict=True)]
    lengths = [len(row["input_ids"]) for row in rows]
    for row, name in zip(rows, names, strict=True):
        _refuse_row(model, row, name)
    packed = can_pack(model)
    shape = (1, sum(lengths)) if packed else (len(rows), max(lengths))
    starts = np.cumsum([0, *lengths[:-1]]) if packed else max(lengths) * np.arange(len(rows))
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    predictors, targets = [], []
    for row, start, length in zip(rows, starts, lengths, strict=True):
        ids.flat[start : start + length] = row["input_ids"]
        positions.flat[start : start + length] = np.arange(length)
        labels = np.asarray(row["labels"])[1:]  # position t - 1 predicts token t
        places = np.flatnonzero(labels != IGNORE)
        predictors.append(start + places)
        targets.append(labels[places].astype(np.int64))

    def to_device(parts: list[np.ndarray]) -> Tensor:
        x = torch.from_numpy(np.concatenate(parts))
        return x.pin_memory().to(model.device, non_blocking=True) if model.device.type == "cuda" else x

    inputs: dict[str, Any] = {"input_ids": to_device([ids]), "use_cache": False}
    if packed:
        inputs["position_ids"] = to_device([positions])
    with rows_apart(model) if packed else nullcontext():
        hidden_TD = hidden_states(model, inputs).flatten(0, 1)[to_device(predictors)]
    truncated = [row.get("truncated", False) for row in rows]
    return States(numbers, names, truncated, np.array([len(part) for part in targets]), hidden_TD, to_device(targets))


def _refuse_row(model: PreTrainedModel, row: dict[str, Any], name: str) -> None:
    tokens, labels, vocabulary = len(row["input_ids"]), len(row["labels"]), len(head(model).weight_VD)
    if not tokens or tokens != labels:
        raise UserError(
            f"Row {name!r} has {tokens} input_ids and {labels} labels; expected one label for each token, and at "
            "least one token."
        )
    if (largest := max(max(row["input_ids"]), max(row["labels"]))) >= vocabulary:
        raise UserError(
            f"Row {name!r} has token {largest}, but the model knows {vocabulary} tokens; use the model's own tokenizer."
        )
    if "dynamic" in _rotary_kinds(model):
        limit = causal_lm(model).config.get_text_config().max_position_embeddings
        if tokens > limit:
            raise UserError(
                f"Row {name!r} has {tokens} tokens. Beyond {limit}, the model's dynamic rotary embedding makes a score "
                f"depend on other rows; truncate rows to {limit} tokens (data.max_length in a recipe)."
            )


def _to_host(scores: TokenScores) -> tuple[Tensor, Any]:
    """Start copying to the host; the copy is complete when the event is."""
    all_ST = torch.stack([score_T for score_T in scores if score_T is not None])
    if not all_ST.is_cuda:
        return all_ST, None
    host_ST = torch.empty_like(all_ST, device="cpu", pin_memory=True)
    host_ST.copy_(all_ST, non_blocking=True)
    return host_ST, torch.cuda.current_stream().record_event()


def _collect(rows: list[Any], copying: tuple[Tensor, Any]) -> pa.RecordBatch:
    """Average over each example's supervised tokens, in float64; `rows` are the first four fields of `States`."""
    numbers, ids, truncated, count_B = rows
    host_ST, event = copying
    if event:
        event.synchronize()
    entropy_T, nll_T, *hit_T = host_ST.double().numpy()
    some_B, begin_B = count_B > 0, np.cumsum(count_B) - count_B
    means = {name: np.zeros(len(count_B)) for name in MEANS}
    for mean_B, value_T in zip(means.values(), (entropy_T, nll_T, np.exp(-nll_T)), strict=True):
        mean_B[some_B] = np.add.reduceat(value_T, begin_B[some_B]) / count_B[some_B]
    if len(bad := np.flatnonzero(~np.isfinite(means["entropy"] + means["nll"]))):
        named = ", ".join(repr(ids[i]) for i in bad[:5])
        raise UserError(
            f"The model's entropy or likelihood is not a finite number for {len(bad)} of {len(count_B)} examples in a "
            f"batch (first: {named}); its weights are damaged or overflow: try float32 (precision: fp32 in a "
            "recipe) or another checkpoint, or take those examples out."
        )
    columns = [numbers, ids, count_B.astype(np.int32)]
    columns += [pa.array(mean_B, mask=~some_B) for mean_B in means.values()]
    columns.append(truncated)
    if hit_T:
        row_T = np.repeat(np.arange(len(count_B)), count_B)
        columns.append(np.bincount(row_T, hit_T[0], len(count_B)).astype(np.int32))
    schema = HITS_SCHEMA if hit_T else PART_SCHEMA
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=schema)

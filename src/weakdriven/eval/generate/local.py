"""In-process generation with a transformers model, in batches of similar length; finished rows are dropped.

B = unfinished rows, L = length of the longest prompt, N = maximum of new tokens, V = vocabulary.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from weakdriven.errors import UserError
from weakdriven.eval.generate.attention import grouped
from weakdriven.eval.generate.decode import read_prompts
from weakdriven.eval.generate.graphs import Repeated
from weakdriven.eval.generate.requests import Completion, OnDone, Request, Sampling

Batching = Literal["auto", "static", "continuous"]
LARGEST_BATCH, LARGEST_CPU_BATCH = 512, 64
PREFILL_TOKENS = 2**17
CACHE_SHARE = 0.6
"""Share of the free memory for the keys and values of a batch; the rest is for activations."""
LOOK_EVERY = 16
"""Steps on a GPU between two checks for finished rows, each of which synchronizes with the device."""
DROP_SHARE = 0.25
"""Share of rows that must be finished before the cache is copied without them."""
CPU_PAGES, CPU_BATCH_TOKENS = 16, 512
"""Limits of continuous batching on a CPU, where it would otherwise take most of the memory."""
TOP = 1024
"""Number of most probable tokens that nearly always contain `top_p`, so that few vocabularies are sorted fully."""


@dataclass(frozen=True)
class LocalEngine:
    """Generates with a loaded model.

    Args:
        batch_size: Completions generated together; by default as many as memory allows, up to 512 (64 on a CPU).
        batching: `continuous` is transformers' paged continuous batching, greedy only, because its random numbers
            depend on the rest of the batch; `auto` uses it if the model runs with flash attention.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    batch_size: int | None = None
    batching: Batching = "auto"

    def complete(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        room = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        longest = max(len(request.ids) for request in requests)
        if room is not None and longest + sampling.max_new_tokens > room:
            raise UserError(
                f"The longest prompt has {longest} tokens; with {sampling.max_new_tokens} new ones it exceeds "
                f"the model's {room} positions; lower max_new_tokens."
            )
        self.model.eval()

        def report(tokens: Mapping[int, list[int]]) -> None:
            on_done({row: as_completion(self.tokenizer, new, sampling) for row, new in tokens.items()})

        if self.goes_continuously(sampling):
            complete_continuously(self.model, requests, sampling, report)
            return
        with grouped(self.model):
            self.complete_batches(requests, sampling, report)

    def complete_batches(
        self, requests: Sequence[Request], sampling: Sampling, report: Callable[[Mapping[int, list[int]]], None]
    ) -> None:
        order = sorted(range(len(requests)), key=lambda row: (len(requests[row].ids), row))
        size = self.batch_size or fitting_batch(self.model, len(requests[order[-1]].ids) + sampling.max_new_tokens)
        while order:
            rows = order[:size]
            rows = rows[: max(1, PREFILL_TOKENS // len(requests[rows[-1]].ids))]
            written: set[int] = set()
            try:
                for done in written_rows(self.model, [requests[row] for row in rows], sampling):
                    written.update(rows[place] for place in done)
                    report({rows[place]: tokens for place, tokens in done.items()})
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                size = max(1, len(rows) // 2)
                torch.cuda.empty_cache()
            order = [row for row in order if row not in written]

    def goes_continuously(self, sampling: Sampling) -> bool:
        if self.batching == "continuous" and sampling.temperature > 0:
            raise UserError("Continuous batching does not support a seed for each sample; use static batches.")
        config: Any = self.model.config
        flash = str(config._attn_implementation).startswith("flash") and self.model.dtype != torch.float32
        plain = set(getattr(config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}
        fast = flash and plain and hasattr(config, "num_hidden_layers") and self.model.device.type == "cuda"
        return self.batching == "continuous" or (self.batching == "auto" and sampling.temperature == 0 and fast)


def complete_continuously(
    model: PreTrainedModel,
    requests: Sequence[Request],
    sampling: Sampling,
    report: Callable[[Mapping[int, list[int]]], None],
) -> None:
    """Complete greedily with transformers' continuous batching; raise an error if a request failed."""
    on_gpu = model.device.type == "cuda"
    settings = ContinuousBatchingConfig()
    if not on_gpu:
        longest = max(len(request.ids) for request in requests) + sampling.max_new_tokens
        pages, tokens = max(CPU_PAGES, 4 * -(-longest // 256)), max(CPU_BATCH_TOKENS, longest)
        settings = ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=tokens)
    settings.auto_switch_to_flash = False  # keep the requested attention
    budget = sampling.max_new_tokens
    greedy = GenerationConfig(do_sample=False, max_new_tokens=budget, eos_token_id=[*sampling.stop_ids], pad_token_id=0)
    engine: Any = model
    with engine.continuous_batching_context_manager(
        generation_config=greedy, continuous_batching_config=settings, block=True, timeout=5, warmup=on_gpu
    ) as manager:
        names = manager.add_requests(inputs=[request.ids for request in requests], max_new_tokens=budget)
        row_of = {name: row for row, name in enumerate(names)}
        while row_of:
            result = manager.get_result(timeout=1)
            if (result is None and not manager.is_running()) or (result is not None and result.error is not None):
                raise UserError(
                    f"transformers' continuous batching failed with {len(row_of)} of {len(requests)} requests open "
                    f"({result.error if result else 'it stopped'}); finished ones are kept. Use eval.batching: static."
                )
            if result is not None and result.is_finished():
                report({row_of.pop(result.request_id): result.generated_tokens})


@torch.inference_mode()
def written_rows(
    model: PreTrainedModel, requests: Sequence[Request], sampling: Sampling
) -> Iterator[dict[int, list[int]]]:
    """Generate one batch; yield the new tokens of rows as they end, by place in the batch, each place once."""
    device, budget = model.device, sampling.max_new_tokens
    width = max(len(request.ids) for request in requests)
    ids_BL = torch.tensor([[0] * (width - len(r.ids)) + r.ids for r in requests], device=device)
    mask_BL = torch.tensor([[0] * (width - len(r.ids)) + [1] * len(r.ids) for r in requests], device=device)
    rows = OpenRows(requests, sampling, device)
    logits_BV, decoder = read_prompts(model, inspect.signature(model.forward).parameters, ids_BL, mask_BL)
    rows.take(logits_BV)
    del logits_BV
    # with top_p, choosing a token asks the device whether to sort, which no graph can capture
    whole = sampling.temperature == 0 or sampling.top_p >= 1

    def step() -> Tensor | None:
        logits_BV = decoder.step(rows.last_B1)
        return rows.take(logits_BV) if whole else logits_BV

    repeated = Repeated(step, device if decoder.repeats else None)
    look_every = LOOK_EVERY if device.type == "cuda" else 1
    for count in range(1, budget + 1):
        if count == budget or count % look_every == 0:
            if bool(rows.broken_B.any()):
                raise UserError(f"{type(model).__name__} returns NaN logits; try attention eager or precision fp32.")
            gone_B = torch.ones_like(rows.ended_B) if count == budget else rows.ended_B
            if int(gone_B.sum()) >= max(1.0, (DROP_SHARE if decoder.can_drop_rows else 1.0) * len(gone_B)):
                written = rows.tokens_BN[gone_B, :count].tolist()
                yield dict(zip(rows.place_B[gone_B].tolist(), written, strict=True))
                keep = (~gone_B).nonzero()[:, 0]
                if not len(keep):
                    return
                rows.keep(keep)
                decoder.keep(keep)
                repeated.forget()
        if decoder.make_room():
            repeated.forget()
        logits_BV = repeated(min(budget - count, decoder.room_left()))
        if logits_BV is not None:
            rows.take(logits_BV)
        decoder.count()


class OpenRows:
    """The unfinished rows. A step changes these tensors in place, so that a CUDA graph can replay it."""

    def __init__(self, requests: Sequence[Request], sampling: Sampling, device: torch.device):
        B, N = len(requests), sampling.max_new_tokens
        self.sampling = sampling
        self.stop = torch.tensor(sampling.stop_ids, dtype=torch.long, device=device)
        self.step_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.place_B = torch.arange(B, device=device)
        self.last_B1 = torch.zeros(B, 1, dtype=torch.long, device=device)
        self.tokens_BN = torch.zeros(B, N, dtype=torch.long, device=device)
        self.ended_B = torch.zeros(B, dtype=torch.bool, device=device)
        self.broken_B = torch.zeros(B, dtype=torch.bool, device=device)
        self.uniform_BN: Tensor | None = None
        if sampling.temperature > 0:  # from each request's own seed, independent of the batch
            uniform = [np.random.Generator(np.random.Philox(request.seed)).random(N) for request in requests]
            self.uniform_BN = torch.from_numpy(np.stack(uniform)).to(device)

    def take(self, logits_BV: Tensor) -> None:
        """Append the next token of each row."""
        uniform_B = None if self.uniform_BN is None else self.uniform_BN.index_select(1, self.step_1)[:, 0]
        token_B = choose(logits_BV, uniform_B, self.sampling)
        self.broken_B |= ~logits_BV.gather(1, token_B[:, None])[:, 0].isfinite()
        self.ended_B |= (token_B[:, None] == self.stop).any(1)
        self.tokens_BN.index_copy_(1, self.step_1, token_B[:, None])
        self.last_B1.copy_(token_B[:, None])
        self.step_1 += 1

    def keep(self, rows: Tensor) -> None:
        self.place_B, self.last_B1, self.tokens_BN = self.place_B[rows], self.last_B1[rows], self.tokens_BN[rows]
        self.ended_B, self.broken_B = self.ended_B[rows], self.broken_B[rows]
        self.uniform_BN = None if self.uniform_BN is None else self.uniform_BN[rows]


def choose(logits_BV: Tensor, uniform_B: Tensor | None, sampling: Sampling) -> Tensor:
    """Choose the next token of each row: the most probable one, or the one at which its random number falls.

    >>> logits = torch.tensor([[2.0, 1.0, 0.0]]).repeat(3, 1)
    >>> choose(logits, torch.tensor([0.1, 0.7, 0.95]), Sampling(1, (), temperature=1.0)).tolist()
    [0, 1, 2]
    >>> choose(logits, torch.tensor([0.1, 0.7, 0.95]), Sampling(1, (), temperature=1.0, top_p=0.7)).tolist()
    [0, 0, 1]
    >>> choose(logits, torch.tensor([0.1, 0.7, 0.95]), Sampling(1, (), temperature=1.0, top_k=2)).tolist()
    [0, 0, 1]
    """
    if uniform_B is None:
        return logits_BV.argmax(-1)
    likely_BV = logits_BV - logits_BV.amax(-1, keepdim=True)  # before the division, to avoid an overflow
    if sampling.top_k is not None and sampling.top_k < likely_BV.shape[-1]:
        least_B1 = likely_BV.topk(sampling.top_k).values[:, -1:]
        likely_BV = likely_BV.masked_fill(likely_BV < least_B1, -torch.inf)
    probability_BV = (likely_BV / sampling.temperature).softmax(-1)
    if sampling.top_p >= 1:
        return drawn(probability_BV, uniform_B)
    top_BK, index_BK = probability_BV.topk(min(TOP, probability_BV.shape[-1]))
    if bool((top_BK.sum(-1) < sampling.top_p).any()):
        top_BK, index_BK = probability_BV.sort(descending=True)
    before_BK = top_BK.cumsum(-1) - top_BK
    kept_BK = top_BK.masked_fill(before_BK >= sampling.top_p, 0.0)
    kept_BK[:, 0] = top_BK[:, 0]  # even if top_p underflows
    return index_BK.gather(1, drawn(kept_BK, uniform_B)[:, None])[:, 0]


def drawn(weight_BK: Tensor, uniform_B: Tensor) -> Tensor:
    """Find where a number in [0, 1) falls among weights laid end to end; a weight of 0 is never hit."""
    end_BK = weight_BK.double().cumsum(-1)
    place_B = torch.searchsorted(end_BK, uniform_B.double()[:, None] * end_BK[:, -1:], right=True)[:, 0]
    last_B = weight_BK.shape[-1] - 1 - (weight_BK > 0).flip(-1).int().argmax(-1)
    return torch.minimum(place_B, last_B)


def as_completion(tokenizer: PreTrainedTokenizerBase, new: list[int], sampling: Sampling) -> Completion:
    end = next((place for place, token in enumerate(new) if token in sampling.stop_ids), None)
    text = str(tokenizer.decode(new[:end], skip_special_tokens=True))
    return Completion(text, len(new), "length") if end is None else Completion(text, end + 1, "stop")


def fitting_batch(model: PreTrainedModel, length: int) -> int:
    """Return how many rows of `length` tokens fit into free memory, counting keys and values."""
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
        most = LARGEST_BATCH
    else:
        free, most = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), LARGEST_CPU_BATCH
    return max(1, min(most, int(CACHE_SHARE * free) // (length * cache_bytes(model))))


def cache_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of keys and values per token, counting all layers as full attention."""
    parts = [getattr(model, name) for name in ("strong", "weak") if hasattr(model, name)] or [model]
    total = 0
    for part in parts:
        config: Any = part.config.get_text_config()
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        kept = getattr(config, "num_key_value_heads", None) or heads
        total += 2 * config.num_hidden_layers * kept * width * part.dtype.itemsize
    return total

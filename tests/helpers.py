"""Builders that several tests share: tiny random models, token rows, files of rows."""

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)

from weakdriven.build.settings import BuildSettings
from weakdriven.config.file import parse_settings
from weakdriven.data.prompts import give_chat_template
from weakdriven.data.rows.sources import load_examples
from weakdriven.data.tokenize import IGNORE
from weakdriven.models.load import EMBEDDED, load_tokenizer, locate_model

FAMILIES = {"qwen3": Qwen3Config, "llama": LlamaConfig, "gemma3": Gemma3TextConfig, "qwen2": Qwen2Config}
OTHERS = {"gemma2": Gemma2Config, "granite": GraniteConfig, "cohere": CohereConfig, "phi": PhiConfig}
"""Model families that may cap, scale or shift their logits after the head."""
VOCABULARY = 64


@lru_cache
def demo_examples(count: int) -> list[Any]:
    return load_examples("embedded:arithmetic", limit=count)


def build_settings(domain: str, *sources: str, **changes: Any) -> BuildSettings:
    """Return settings of a training set, without comparing it with benchmarks unless some are named."""
    given = {"domain": domain, "sources": list(sources), "benchmarks": []}
    return parse_settings(BuildSettings, given | changes, "settings")


def embedded_tokenizer() -> PreTrainedTokenizerBase:
    """Load a new tokenizer each time, because tests change its chat template."""
    return load_tokenizer(locate_model(EMBEDDED))


def gemma_tokenizer() -> PreTrainedTokenizerBase:
    """Give the embedded tokenizer what Gemma's has: its template's special tokens and a beginning-of-text token."""
    tokenizer = embedded_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]})
    tokenizer.bos_token = "<|endoftext|>"
    give_chat_template(tokenizer, "gemma", "some/model")
    return tokenizer


def tiny_model(family: str = "qwen3", *, seed: int = 0, width: int = 16, tied: bool = True, **changes: Any) -> Any:
    """Make a model of two layers with weights large enough that its logits are far from uniform."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "tie_word_embeddings": tied,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "qwen2":
        del sizes["head_dim"]
    torch.manual_seed(seed)
    config = (FAMILIES | OTHERS)[family](**(sizes | changes))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def token_rows(count: int, *, seed: int = 0) -> Dataset:
    """Make rows of different lengths, each with an unsupervised prompt and a supervised completion."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        prompt, completion = torch.randint(2, 8, (2,), generator=draw).tolist()
        ids = torch.randint(3, VOCABULARY, (prompt + completion,), generator=draw).tolist()
        rows.append({"input_ids": ids, "labels": [IGNORE] * prompt + ids[prompt:]})
    return Dataset.from_list(rows)


def padded_batch(rows: Iterable[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad rows on the right into tensors."""
    rows = list(rows)
    width = max(len(row["input_ids"]) for row in rows)

    def column(name: str, fill: int) -> torch.Tensor:
        return torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])

    mask = torch.tensor([[int(i < len(row["input_ids"])) for i in range(width)] for row in rows])
    return {"input_ids": column("input_ids", 0), "labels": column("labels", IGNORE), "attention_mask": mask}


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def write_rows(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)

"""SSB's student: SFT on rows with the teacher's largest logits for each token.

T = supervised tokens of a batch, K = stored logits of a token, N = T * K.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from weakdriven.config.baselines import SsbSettings
from weakdriven.config.recipe import Recipe
from weakdriven.losses.mixed_ce import IGNORE
from weakdriven.methods.ssb.loss import topk_distillation
from weakdriven.methods.ssb.targets import STORED, from_bits
from weakdriven.methods.token_loss import TokenLossTrainer, Tokens
from weakdriven.models.recompute import keep
from weakdriven.training.phase import Phase, fit


@dataclass(frozen=True)
class Collator:
    """Pads rows on the right and concatenates the stored logits of their tokens."""

    pad: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        def padded(parts: list[np.ndarray], filler: int) -> Tensor:
            return pad_sequence([torch.tensor(np.asarray(part, np.int64)) for part in parts], True, filler)

        ids_N, logits_N, lse_T = (np.concatenate([np.asarray(row[name]) for row in rows]) for name in STORED)
        return {
            "input_ids": padded([row["input_ids"] for row in rows], self.pad),
            "labels": padded([row["labels"] for row in rows], IGNORE),
            "attention_mask": padded([np.ones(len(row["input_ids"])) for row in rows], 0),
            "teacher_ids": torch.from_numpy(ids_N.astype(np.int64)).view(len(lse_T), -1),
            "teacher_logits": from_bits(logits_N).view(len(lse_T), -1),
            "teacher_lse": torch.from_numpy(lse_T.astype(np.float32)),
        }


@dataclass(frozen=True)
class StoredLogits:
    """SSB's loss, on the stored logits of a batch."""

    settings: SsbSettings

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        options = self.settings.model_dump(include={"temperature", "kd_weight", "ce_weight", "renormalize"})
        options["support"] = self.settings.student_support
        teacher: Any = tuple(tokens.batch[name] for name in STORED)
        return topk_distillation(tokens.hidden_TD, tokens.head, tokens.target_T, teacher, scale=tokens.scale, **options)


def train_student(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: SsbSettings,
    recipe: Recipe,
    phase: Phase,
) -> dict[str, Any]:
    """Train an adapter in place on replies with their teacher's logits; return counters."""
    keep(model, settings.gradient_checkpointing)
    made = phase.prepare(dataset.with_format("numpy"), settings, recipe, ("input_ids", "labels", *STORED))
    made["args"].remove_unused_columns = False
    collate = Collator(tokenizer.pad_token_id or 0)  # pyright: ignore
    made |= {"data_collator": collate, "token_loss": StoredLogits(settings)}
    return fit(TokenLossTrainer(model, processing_class=tokenizer, **made))

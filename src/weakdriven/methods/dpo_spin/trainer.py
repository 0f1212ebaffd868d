"""DPO and SPIN: TRL's DPOTrainer on tokenised pairs, with reference log-probabilities computed once."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig

from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.methods.rollouts.preference_pairs import COLUMNS, SIDES
from weakdriven.models.recompute import keep
from weakdriven.runs.files import append_jsonl, digest, salvage_jsonl
from weakdriven.training.attention import trained_attention
from weakdriven.training.phase import Phase, fit
from weakdriven.training.upstream import refuse_release

REFERENCE = "reference.jsonl"


class Referenced(torch.utils.data.Dataset[dict[str, Any]]):
    """Pairs with reference log-probabilities in memory, because a new column would copy all pairs on disk."""

    def __init__(self, pairs: Dataset, reference: dict[str, list[float]]):
        self.pairs, self.reference = pairs, reference

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.pairs[place] | {name: values[place] for name, values in self.reference.items()}


class PreferenceTrainer(DPOTrainer):
    """TRL's DPOTrainer with the model before training as the reference, of which it keeps no copy.

    Upstream tokenises prompt and completion together and ends every completion. Our pairs have the tokens of SFT, and a
    truncated completion has no end token. Upstream writes its cache of reference log-probabilities next to the data,
    all at once; ours, the file `reference`, grows batch by batch, so that a killed run resumes from it.
    """

    def __init__(self, *args: Any, reference: Path, **kwargs: Any):
        self.reference = reference
        model: Any = args[0] if args else kwargs["model"]
        # upstream hashes all weights to name its cache, which is not used here; hide them to save the time
        with model.register_state_dict_post_hook(lambda _, state, *__: state.clear()):
            super().__init__(*args, **kwargs)
        model = self.model
        if isinstance(model, PeftModel) and "ref" in model.peft_config:
            model.delete_adapter("ref")  # upstream's copy of the adapter is no longer needed

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Score each pair once, even if it is trained on several times, in micro-batches of the size of training."""
        refuse_other_reference(self.model)
        keys = [digest([row[column] for column in COLUMNS]) for row in dataset]
        known = {row["key"]: row for row in salvage_jsonl(self.reference)}
        places: dict[str, int] = {}
        for place, key in enumerate(keys):
            if key not in known:
                places.setdefault(key, place)
        left = list(places)
        rows = DataLoader(dataset.select(places.values()), batch_size, collate_fn=self.data_collator)  # pyright: ignore
        for batch in self.accelerator.prepare(rows):
            with trained_attention(self.model):  # pyright: ignore  # else the first step would not start exactly at the reference
                asked: Any = self.accelerator.gather_for_metrics(self.compute_ref_log_probs(self.model, batch))
            found = zip(left, *(sums.tolist() for sums in asked), strict=False)
            new = [{"key": key, "chosen": chosen, "rejected": rejected} for key, chosen, rejected in found]
            left = left[len(new) :]
            known.update((row["key"], row) for row in new)
            if self.accelerator.is_main_process:
                append_jsonl(self.reference, new, sealed=True)
        self.accelerator.wait_for_everyone()
        return Referenced(dataset, {f"ref_{side}_logps": [known[key][side] for key in keys] for side in SIDES})


def refuse_other_reference(model: Any) -> None:
    """Raise an error unless upstream's reference, a copy of the adapter, equals the adapter before training.

    `state_dict` is empty while upstream makes that copy, so a release that copied from it would fail here.
    """
    weights = dict(model.named_parameters()) if isinstance(model, PeftModel) else {}
    for name in (name for name in weights if ".default." in name):
        reference = weights.get(name.replace(".default.", ".ref."))
        if reference is None or not torch.equal(reference, weights[name]):
            refuse_release(f"the reference of DPO is not the adapter before training (first: {name})")


def train_preference(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: TrainSettings,
    recipe: Recipe,
    phase: Phase,
    *,
    beta: float = 0.1,
    sft_weight: float = 0.0,
) -> dict[str, Any]:
    """Train in place on the output of `pair_rows`, with the model before training as the reference; return counters."""
    keep(model, settings.gradient_checkpointing)
    made = phase.prepare(dataset, settings, recipe, COLUMNS)
    optimizer = made.pop("optimizer_cls_and_kwargs")
    made["args"] = preference_arguments(made["args"], beta=beta, sft_weight=sft_weight)
    trainer = PreferenceTrainer(model, processing_class=tokenizer, reference=phase.work / REFERENCE, **made)
    trainer.optimizer_cls_and_kwargs = optimizer  # upstream's constructor does not take it
    return fit(trainer, made["train_dataset"])


def preference_arguments(args: SFTConfig, *, beta: float, sft_weight: float = 0.0) -> DPOConfig:
    """Return the arguments of SFT with the loss of DPO: sums over completion tokens, mean over pairs.

    `sft_weight` adds the cross-entropy of the chosen completions, a mean over the tokens of a micro-batch.
    """
    return DPOConfig(
        **{item.name: getattr(args, item.name) for item in fields(TrainingArguments) if item.init},
        activation_offloading=args.activation_offloading,
        router_aux_loss_coef=args.router_aux_loss_coef,
        beta=beta,
        loss_type=["sigmoid", "sft"] if sft_weight else ["sigmoid"],
        loss_weights=[1.0, sft_weight] if sft_weight else None,
        precompute_ref_log_probs=True,
        max_length=None,  # the rows are already truncated
    )

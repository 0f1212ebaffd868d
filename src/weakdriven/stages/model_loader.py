"""Loads models of a run for training or evaluation, and saves them: whole models, or adapters over one base."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from weakdriven.config.recipe import Recipe
from weakdriven.data.prompts import Renderer
from weakdriven.models.adapters import ADAPTER, add_adapter, load_adapter, twin
from weakdriven.models.head import causal_lm
from weakdriven.models.liger import fast_layers, use_liger
from weakdriven.models.load import DTYPES, drop_router_loss, load_model
from weakdriven.models.sharded import gathered_model, is_sharded
from weakdriven.runs.processes import is_main
from weakdriven.stages.model import Model
from weakdriven.training.lora import lora_config, name_base
from weakdriven.training.sft import save_model


@dataclass(frozen=True)
class Loader:
    """Loads the models of a recipe with its precision and its layers."""

    recipe: Recipe
    base: Model

    def load(self, model: Model, *, train: bool = True, scan: bool = False) -> Any:
        """Load a model to train or evaluate; with `lora`, the base and the model's adapter (new if M0 is trained).

        Args:
            scan: Evaluate with the layers of training, which are faster on long rows.
        """
        network: Any = self._read(model, train=train)
        if self.recipe.lora and (train or model.name != self.base.name):
            network = self._adapted(network, model, kind=lora_config(self.recipe.lora), seed=self.recipe.seed)
        return self._ready(network, train=train, fast=train or scan)

    def pair(self, strong: Model, weak: Model) -> tuple[Any, Any]:
        """Load two models to train; with `lora`, two adapters over one base (M0's is new and of the same kind)."""
        if self.recipe.lora is None:
            return self.load(strong), self.load(weak)
        base = self._read(self.base, train=True)
        other = twin(base)
        strong_model: Any = load_adapter(base, strong.folder)
        kind = strong_model.peft_config[ADAPTER]
        weak_model = self._adapted(other, weak, kind=kind, seed=self.recipe.seed + 1)
        return tuple(self._ready(network, train=True, fast=True) for network in (strong_model, weak_model))  # pyright: ignore

    def save(self, model: PreTrainedModel | PeftModel, renderer: Renderer, out: Path, work: Path | None = None) -> None:
        """Write a model's folder on the main process, with the metrics of its phase in `work`."""
        if is_sharded(model):
            model = gathered_model(model, DTYPES[self.recipe.saved_precision])
        if not is_main():
            return
        if isinstance(model, PeftModel):
            name_base(model, self.recipe.model, self.base.folder)
        options = {"precision": self.recipe.precision, "stop_ids": renderer.stop_ids}
        save_model(model, renderer.tokenizer, out, work=work, **options)

    def _read(self, model: Model, *, train: bool) -> PreTrainedModel:
        """Load weights from disk: the model's own, or with `lora`, those of the base."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        recipe, lora = self.recipe, self.recipe.lora
        return load_model(
            self.base.folder if lora else model.folder,
            precision=recipe.precision if train and not lora else recipe.saved_precision,
            attention=recipe.attention,
            trust_remote_code=recipe.trust_remote_code,
            quantize=lora.quantize if lora else None,
        )

    def _adapted(self, base: PreTrainedModel, model: Model, *, kind: Any, seed: int) -> PeftModel:
        """Add the model's adapter to the base; M0 has none, so it gets a new one that changes nothing yet."""
        if model.name == self.base.name:
            return add_adapter(base, kind, seed=seed)
        return load_adapter(base, model.folder)

    def _ready(self, network: PreTrainedModel | PeftModel, *, train: bool, fast: bool) -> Any:
        inner: Any = causal_lm(network)
        if fast and fast_layers(self.recipe.fast_layers, inner.config.model_type):
            use_liger(inner)
        if train:
            drop_router_loss(inner.config)
            return network
        on_device = not torch.cuda.is_available() or getattr(inner, "quantization_method", None) is not None
        return inner if on_device else inner.cuda()  # its layers hold the adapter

"""Checks a recipe before anything is computed, and binds it to a run directory."""

import logging
from pathlib import Path

import torch
from transformers.integrations.integration_utils import get_available_reporting_integrations

from weakdriven.config.recipe import Recipe
from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.errors import UserError
from weakdriven.eval.generate.serve import check_python
from weakdriven.eval.run import check_sandbox, check_task
from weakdriven.models.adapters import ADAPTER_FILE
from weakdriven.models.gemma3.multimodal import text_config
from weakdriven.models.liger import fast_layers, model_type
from weakdriven.models.load import (
    check_model,
    fingerprint,
    load_tokenizer,
    locate_model,
    positions,
    refuse_different_tokenizers,
    router_loss,
)
from weakdriven.runs.executor import Listing
from weakdriven.runs.files import digest
from weakdriven.runs.processes import is_main
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.training.launch import refuse_processes
from weakdriven.training.lora import check_lora, ready_adapter
from weakdriven.training.optimizer import check_optimizer
from weakdriven.wmss.score_files import refuse_other_tokens

logger = logging.getLogger(__name__)


def check_recipe(recipe: Recipe, run: Listing, *, processes: int = 1, evaluates: bool = True) -> Context:
    """Check everything that can be checked before the run; the first stage checks the rows themselves.

    Args:
        processes: Number of processes of this run.
        evaluates: Whether benchmarks will be run, so that their files must exist.
    """
    if unknown := sorted(set(recipe.report_to) - set(trackers := get_available_reporting_integrations())):
        have = ", ".join(trackers) or "none"
        raise UserError(f"report_to: {', '.join(unknown)} is not a tracker installed here (installed: {have}).")
    refuse_processes(recipe, processes)
    if recipe.precision == "fp16-mixed" and not torch.cuda.is_available():
        raise UserError(
            "precision is fp16-mixed, which scales losses on a GPU, but there is no GPU here; set precision: fp32."
        )
    for phase in ("sft", "joint", "dpo", "spin", "ssb"):
        settings = getattr(recipe, phase)
        check_optimizer(f"{phase}.optimizer", settings.optimizer)
        if settings.activation_offloading and not torch.cuda.is_available():
            raise UserError(
                f"{phase}.activation_offloading moves activations from the GPU to the CPU's memory, but there is no "
                "GPU here; set it to false."
            )
    folder, trust = checked_model(recipe.model, recipe), recipe.trust_remote_code
    tokenizer = load_tokenizer(folder, trust_remote_code=trust)
    give_chat_template(tokenizer, recipe.chat_template, recipe.model)
    base = Model("base", folder, fingerprint(folder))
    if recipe.lora:
        check_lora(recipe.lora, folder, trust_remote_code=trust)
    strong = ready_model("sft", recipe.sft.model, recipe, base, setting="sft.model: ") if recipe.sft.model else None
    renderer = Renderer(tokenizer, recipe.data.domain, recipe.data.style, recipe.data.system_prompt)
    renderer.check()
    room, router = positions(folder, trust_remote_code=trust), router_loss(text_config(folder, trust_remote_code=trust))
    context = Context(recipe, run, base, strong, renderer, positions=room, router_loss=router)
    if is_main():
        _warn(context)
    if reuse := recipe.selection.reuse:
        refuse_other_tokens(reuse, tokenizer=context.tokenizer_key, max_length=recipe.data.max_length)
    if not evaluates:
        return context
    if recipe.eval.engine == "vllm" and (recipe.eval.benchmarks or recipe.samples_rollouts):
        if recipe.eval.vllm_python is None:
            raise UserError("eval.engine is vllm, which needs eval.vllm_python: a Python with vLLM installed.")
        check_python(recipe.eval.vllm_python)
        if recipe.lora:
            raise UserError("eval.engine: vllm serves whole models, but lora trains adapters; set it to transformers.")
    if recipe.data.domain == "code" and not {"rft", "dpo", "ssb"}.isdisjoint([recipe.method, *recipe.baselines]):
        check_sandbox(python=recipe.eval.code_python, unsafe=recipe.eval.unsafe)
    for benchmark in recipe.eval.benchmarks:
        check_task(context.task(benchmark), context.positions)
    return context


def _warn(context: Context) -> None:
    """Warn of what a user may not expect of the run."""
    recipe, strong = context.recipe, context.given_strong
    if recipe.method == "wmss" and strong and strong.key == context.base.key:
        logger.warning("sft.model and model are the same checkpoint: round 1 mixes a model with itself.")
    if context.router_loss:
        logger.warning(
            "%s is a mixture of experts. No phase trains with its load-balancing loss (router_aux_loss_coef %s in its "
            "configuration), because the mixed loss does not include it.",
            recipe.model,
            context.router_loss,
        )


def checked_model(source: str, recipe: Recipe) -> Path:
    """Return the folder of a whole model, after checking that the recipe can train it."""
    folder = locate_model(source)
    check_model(folder, trust_remote_code=recipe.trust_remote_code)
    fast_layers(recipe.fast_layers, model_type(folder))
    return folder


def ready_model(name: str, source: str, recipe: Recipe, base: Model, *, setting: str = "") -> Model:
    """Return a model that was trained elsewhere: one like the base, or with `lora`, an adapter over it."""
    if recipe.lora:
        folder = ready_adapter(source, base.folder, recipe.model, trust_remote_code=recipe.trust_remote_code)
        return Model(name, folder, digest([fingerprint(folder), base.key]))
    if (Path(source).expanduser() / ADAPTER_FILE).is_file():
        raise UserError(
            f"{setting}{source} is an adapter; set lora to continue training adapters, or merge it into its base first."
        )
    folder = checked_model(source, recipe)
    refuse_different_tokenizers(base.folder, folder, trust_remote_code=recipe.trust_remote_code)
    return Model(name, folder, fingerprint(folder))

"""A recipe tied to a run directory, after all that can be checked has been checked."""

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
from weakdriven.models.liger import fast_layers, model_type
from weakdriven.models.load import (
    check_model,
    fingerprint,
    load_tokenizer,
    locate_model,
    positions,
    refuse_different_tokenizers,
)
from weakdriven.runs.executor import Listing
from weakdriven.runs.files import digest
from weakdriven.runs.processes import is_main, launched, refuse_uneven
from weakdriven.stages.context import Context
from weakdriven.stages.model_loader import Model
from weakdriven.training.fsdp import fsdp_is_asked_for, refuse_sharded_adapters, refuse_sharding_of_launch
from weakdriven.training.lora import check_lora, ready_adapter
from weakdriven.training.optimizer import check_optimizer
from weakdriven.wmss.score_files import refuse_other_tokens

logger = logging.getLogger(__name__)
ALONE = {"scaled_ce", "undial", "ssb"}
"""Methods whose trainers read their model's layers directly, where gradients of several processes would not meet."""
UNSHARDED = ("dpo", "spin")
"""Methods whose trainers need whole models in every process."""


def check_recipe(recipe: Recipe, run: Listing, *, processes: int = 1, evaluates: bool = True) -> Context:
    """Check what can be checked before anything is computed; the rows themselves are checked by the first stage.

    Args:
        processes: How many work on this run, where its stages allow for several.
        evaluates: Whether benchmarks will be run, so that their files have to be there.
    """
    if unknown := sorted(set(recipe.report_to) - set(trackers := get_available_reporting_integrations())):
        have = ", ".join(trackers) or "none"
        raise UserError(f"report_to: {', '.join(unknown)} is not a tracker installed here (installed: {have}).")
    refuse_processes(recipe, processes)
    if recipe.precision == "fp16-mixed" and not torch.cuda.is_available():
        raise UserError(
            "precision is fp16-mixed, which scales losses on a GPU, and there is no GPU here; set precision: fp32."
        )
    for phase in ("sft", "joint", "dpo", "spin", "ssb"):
        settings = getattr(recipe, phase)
        check_optimizer(f"{phase}.optimizer", settings.optimizer)
        if settings.activation_offloading and not torch.cuda.is_available():
            raise UserError(
                f"{phase}.activation_offloading moves activations from the GPU to the CPU's memory, and there is no "
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
    context = Context(recipe, run, base, strong, renderer)
    if is_main():
        _warn(context)
    if reuse := recipe.selection.reuse:
        refuse_other_tokens(reuse, tokenizer=context.tokenizer_key, max_length=recipe.data.max_length)
    if not evaluates:
        return context
    if recipe.eval.engine == "vllm" and (recipe.eval.benchmarks or recipe.samples_rollouts):
        if recipe.eval.vllm_python is None:
            raise UserError("eval.engine is vllm, which needs eval.vllm_python: a Python that has vLLM.")
        check_python(recipe.eval.vllm_python)
        if recipe.lora:
            raise UserError("eval.engine: vllm serves whole models, and lora trains adapters; use transformers.")
    if recipe.data.domain == "code" and not {"rft", "dpo", "ssb"}.isdisjoint([recipe.method, *recipe.baselines]):
        check_sandbox(python=recipe.eval.code_python, unsafe=recipe.eval.unsafe)
    for benchmark in recipe.eval.benchmarks:
        check_task(context.task(benchmark), positions(folder, trust_remote_code=trust))
    return context


def _warn(context: Context) -> None:
    """What a run does all the same, and its user may not expect."""
    recipe, strong = context.recipe, context.given_strong
    if recipe.method == "wmss" and strong and strong.key == context.base.key:
        logger.warning("sft.model and model are the same checkpoint: round 1 mixes a model with itself.")
    if context.router_loss:
        logger.warning(
            "%s is a mixture of experts. No phase trains with its load-balancing loss (router_aux_loss_coef %s in its "
            "configuration), because joint training has none.",
            recipe.model,
            context.router_loss,
        )


def checked_model(source: str, recipe: Recipe) -> Path:
    """The folder of a whole model that the recipe can train."""
    folder = locate_model(source)
    check_model(folder, trust_remote_code=recipe.trust_remote_code)
    fast_layers(recipe.fast_layers, model_type(folder))
    return folder


def refuse_processes(recipe: Recipe, processes: int, *, sharded: bool = False) -> None:
    """Processes, GPUs and batch sizes that do not go together.

    Args:
        sharded: Whether a plan shards weights, whatever the launcher asks for.
    """
    if processes == 1:
        if launched() > 1:
            raise UserError(
                f"This command works in one process, and a launcher started {launched()}; start it without one. "
                "weakdriven run and weakdriven select work in several."
            )
        if (devices := torch.cuda.device_count()) > 1:
            raise UserError(
                f"{devices} GPUs are visible, and one process uses one of them; give --launch a configuration that "
                "starts a process on each (such as weakdriven run RECIPE --launch fsdp2-8gpu), or set "
                "CUDA_VISIBLE_DEVICES=0."
            )
        return
    refuse_sharding_of_launch()
    sharded = sharded or fsdp_is_asked_for()
    refuse_sharded_adapters(sharded, recipe.lora is not None)
    if sharded and recipe.precision == "fp16-mixed":
        raise UserError(
            "precision is fp16-mixed, and FSDP2 is asked for, which was never tried with loss scaling; set precision: "
            "bf16-mixed, or train under --launch ddp-8gpu (a plan: --sharding ddp)."
        )
    methods = {recipe.method, *recipe.baselines}
    if alone := sorted(methods & ALONE):
        raise UserError(
            f"{', '.join(alone)} trains in one process, found {processes}; run it without a launcher, or leave it out "
            "of method and baselines here and run it afterwards: what is finished is kept."
        )
    used = [name for name in UNSHARDED if name in methods]
    if used and sharded:
        raise UserError(
            f"{', '.join(used)} trains in one process or under DDP, and FSDP is asked for; use --launch "
            "ddp-8gpu for it (a plan: --sharding ddp), or leave it out of method and baselines here."
        )
    used += ["joint"] if methods - {"sft", "neftune", *UNSHARDED} else []
    used += [] if recipe.sft.model and methods <= {"wmss", *UNSHARDED} else ["sft"]
    refuse_uneven({f"{name}.batch_size": getattr(recipe, name).batch_size for name in sorted(used)}, processes)


def ready_model(name: str, source: str, recipe: Recipe, base: Model, *, setting: str = "") -> Model:
    """A model that was trained elsewhere: one like the base, or with `lora` an adapter over it."""
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

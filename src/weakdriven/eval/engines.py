"""Open the engine of a model inside or outside a run, and find the prompt format that it was trained with."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import weakdriven.wmss.mixture  # noqa: F401 - registers the classes of saved mixtures
from weakdriven.config.evaluation import EngineSettings
from weakdriven.config.file import load_recipe
from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.errors import UserError
from weakdriven.eval.generate import Engine
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.eval.generate.serve import check_python, serve
from weakdriven.eval.generate.server import ServerEngine
from weakdriven.eval.settings import EvaluationSettings, TargetSettings
from weakdriven.models.folder import ModelFolder
from weakdriven.models.load import is_mixture, load_tokenizer
from weakdriven.runs.directory import RECIPE_FILE

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def local_engine(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings
) -> AbstractContextManager[Engine]:
    return nullcontext(LocalEngine(model, tokenizer, settings.batch_size, settings.batching))


@contextmanager
def served_engine(
    folder: Path, settings: EngineSettings, *, precision: str, longest: int, log: Path
) -> Iterator[Engine]:
    """Run a vLLM server of a model folder, whose cache holds `longest` tokens, and stop it at the end."""
    assert settings.vllm_python is not None
    with serve(settings.vllm_python, folder, log=log, dtype=DTYPES[precision], max_model_len=longest) as url:
        yield ServerEngine(url)


def open_engine(
    target: TargetSettings, branch: ModelFolder, renderer: Renderer, *, longest: int, log: Path
) -> AbstractContextManager[Engine]:
    """Open an engine without a running server; `longest` counts the tokens of a prompt and its completion."""
    if target.engine == "vllm":
        return served_engine(branch.folder, target, precision=target.precision, longest=longest, log=log)
    model = branch.load(target.precision, attention=target.attention, trust_remote_code=target.trust_remote_code)
    model = model.cuda() if torch.cuda.is_available() else model  # pyright: ignore
    return local_engine(model, renderer.tokenizer, target)


def check_engine(target: TargetSettings, branch: ModelFolder) -> None:
    """Raise an error now for an engine that could not be started later."""
    if target.engine == "vllm" and branch.base is not None:
        raise UserError(f"{target.model} is an adapter, but vLLM needs a whole model; merge the adapter first.")
    if is_mixture(branch.model) and (target.engine == "vllm" or target.batching == "continuous"):
        raise UserError(
            f"{target.model} is a mixture of two models, which only transformers' static batches support; set "
            "engine=transformers and batching=auto, and leave url out."
        )
    if target.engine == "vllm" and target.url is None:
        if target.vllm_python is None:
            raise UserError("engine is vllm, which needs vllm_python: the Python of an environment with vLLM.")
        check_python(target.vllm_python)


def running_server(settings: EvaluationSettings, branch: ModelFolder) -> tuple[Engine, dict[str, str]]:
    """Return the server at `url` and what it serves; raise an error if that is not the model to evaluate."""
    engine = ServerEngine(str(settings.url), model=settings.served_name, api_key=os.environ.get("VLLM_API_KEY"))
    served = engine.served()
    ours = {settings.model, Path(settings.model).name, str(branch.folder.resolve()), branch.folder.resolve().name}
    if settings.served_name is None and not ours & {served.name, served.folder, Path(served.folder).name}:
        raise UserError(
            f"The server at {settings.url} serves {served.name} (from {served.folder or 'an unknown folder'}), "
            f"but --model is {settings.model}; if they are the same, add served_name={served.name}."
        )
    return engine, {"served": served.name, "served_from": served.folder}


def find_renderer(target: TargetSettings, style: str | None, branch: ModelFolder) -> Renderer:
    """Return the prompt format that the settings choose, else that of the model's run if its recipe is found."""
    # the recipe of the run that the folder belongs to, if any: from RUN/sft to RUN/round-1/strong/snapshots/25
    recipes = (parent / RECIPE_FILE for parent in branch.folder.resolve().parents[:4])
    trained = next((load_recipe(str(recipe)) for recipe in recipes if recipe.is_file()), None)
    tokenizer = load_tokenizer(branch.tokenizer or branch.model, trust_remote_code=target.trust_remote_code)
    template = target.chat_template or (trained.chat_template if trained and not tokenizer.chat_template else None)
    give_chat_template(tokenizer, template, target.model)
    data = trained.data if trained and style is None else None
    domain = trained.data.domain if trained else "math"
    renderer = Renderer(tokenizer, domain, *((data.style, data.system_prompt) if data else (style or "plain", None)))
    renderer.check()
    return renderer

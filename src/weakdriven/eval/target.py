"""The model that is asked: its prompts, and what answers for it."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import weakdriven.wmss.mixture  # noqa: F401 - registers its classes, so that a saved mixture loads
from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import EngineSettings
from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.errors import UserError
from weakdriven.eval.engine_pool import local_engine, served_engine
from weakdriven.eval.generate import Engine
from weakdriven.eval.generate.serve import check_python
from weakdriven.eval.generate.server import ServerEngine
from weakdriven.models.folder import ModelFolder
from weakdriven.models.load import is_mixture, load_tokenizer
from weakdriven.runs.directory import RECIPE_FILE


@dataclass(frozen=True)
class Subject:
    """A model and how it is asked."""

    model: str
    style: str | None = None
    """System prompt: tagged, tag-free or plain; unset, as the run that the model lies in was trained, else tagged."""
    chat_template: str | None = None
    precision: str = "bf16"
    attention: str | None = None
    trust_remote_code: bool = False
    url: str | None = None
    """A running server that holds this model; its tokenizer still comes from `model`."""
    served_name: str | None = None
    """Name of the model on that server, where it is not that of the folder."""
    seed: int = 42


def open_engine(
    subject: Subject, settings: EngineSettings, branch: ModelFolder, renderer: Renderer, *, longest: int, log: Path
) -> AbstractContextManager[Engine]:
    if subject.url is not None:
        return nullcontext(server_of(subject))
    if settings.engine == "vllm":
        return served_engine(branch.folder, settings, precision=subject.precision, longest=longest, log=log)
    return local_engine(partial(load_subject, subject, branch), renderer.tokenizer, settings)


def check_engine(subject: Subject, settings: EngineSettings, branch: ModelFolder) -> None:
    """Refuse now what could not be started later."""
    if settings.engine == "vllm" and branch.base is not None:
        raise UserError(f"{subject.model} is an adapter, and vLLM is given whole models here; merge it first.")
    others = settings.engine == "vllm" or subject.url is not None or settings.batching == "continuous"
    if others and is_mixture(branch.model):
        raise UserError(
            f"{subject.model} is a mixture of two models, with which only transformers' static batches can answer; use "
            "engine transformers, batching auto and no --url."
        )
    if settings.vllm_python is not None:
        check_python(settings.vllm_python)


def server_of(subject: Subject) -> ServerEngine:
    return ServerEngine(str(subject.url), model=subject.served_name, api_key=os.environ.get("VLLM_API_KEY"))


def served_model(subject: Subject, branch: ModelFolder) -> dict[str, str]:
    """What a running server says it serves; refused if that is not the model whose name the scores would bear."""
    served = server_of(subject).served()
    ours = {subject.model, Path(subject.model).name, str(branch.folder.resolve()), branch.folder.resolve().name}
    if subject.served_name is None and not ours & {served.name, served.folder, Path(served.folder).name}:
        raise UserError(
            f"The server at {subject.url} serves {served.name} (from {served.folder or 'a place it does not name'}), "
            f"and --model is {subject.model}; if they are the same, say so with --served-name {served.name}."
        )
    return {"served": served.name, "served_from": served.folder}


def load_subject(subject: Subject, branch: ModelFolder) -> PreTrainedModel:
    options = {"attention": subject.attention, "trust_remote_code": subject.trust_remote_code}
    model = branch.load(subject.precision, **options)
    return model.cuda() if torch.cuda.is_available() else model  # pyright: ignore


def find_renderer(subject: Subject, branch: ModelFolder) -> Renderer:
    """The prompts that the model was trained with, where its run is at hand, unless others are asked for."""
    trained = run_recipe_of(branch.folder)
    tokenizer = load_tokenizer(branch.tokenizer or branch.model, trust_remote_code=subject.trust_remote_code)
    template = subject.chat_template or (trained.chat_template if trained and not tokenizer.chat_template else None)
    give_chat_template(tokenizer, template, subject.model, setting="--chat-template")
    style = subject.style or (trained.data.style if trained else "tagged")
    renderer = Renderer(tokenizer, "math", style)
    renderer.check()
    return renderer


def run_recipe_of(folder: Path) -> Any:
    """Recipe of the run that a model folder lies in, if it does: RUN/sft to RUN/round-1/strong/snapshots/25."""
    for parent in folder.resolve().parents[:4]:
        if (parent / RECIPE_FILE).is_file():
            return load_recipe(str(parent / RECIPE_FILE))
    return None

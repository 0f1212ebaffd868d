"""`weakdriven chat`: chat with a model, or with M0, M1 and the result of a run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as transformers_logging

from weakdriven.data.example import Message
from weakdriven.data.prompts import Renderer
from weakdriven.data.show import printable
from weakdriven.diagnose.run_models import RunModels, find_models
from weakdriven.errors import UserError
from weakdriven.eval.engines import find_renderer
from weakdriven.eval.generate import Completion, Request, Sampling, generate, request_seed
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.eval.settings import TargetSettings
from weakdriven.models.adapters import ADAPTER_FILE
from weakdriven.models.folder import open_model
from weakdriven.report import load_run
from weakdriven.report.card.card import result_stages
from weakdriven.report.format import model_name
from weakdriven.runs.directory import RUN_FILE
from weakdriven.stages.model import Model
from weakdriven.stages.model_loader import Loader

END = "/exit"
NARROWEST = 36
"""Minimum terminal columns per model to print replies side by side."""
FOR_A_REPLY = 4
"""One in this many of a model's positions is reserved for its reply; the oldest turns are dropped to make room."""


@dataclass
class Speaker:
    """A model and its conversation."""

    name: str
    engine: LocalEngine
    renderer: Renderer
    history: list[Message] = field(default_factory=list)
    forgotten: int = 0
    """Number of messages at the start of the history that were dropped from the prompt."""

    def answer(self, text: str, sampling: Sampling, seed: int) -> str:
        """Reply to a message, given the conversation so far, and add both to the history."""
        self.history.append({"role": "user", "content": text})
        room = getattr(self.engine.model.config.get_text_config(), "max_position_embeddings", None)
        ids = self._prompt()
        kept = 0 if room is None else min(sampling.max_new_tokens, room // FOR_A_REPLY)
        while room is not None and len(ids) + kept > room and len(self.history) > self.forgotten + 1:
            self.forgotten += 2
            ids = self._prompt()
        if room is not None and len(ids) >= room:
            self.history.pop()
            return f"(no reply: the message has {len(ids):,} tokens, but the model has only {room:,} positions)"
        budget = sampling.max_new_tokens if room is None else min(sampling.max_new_tokens, room - len(ids))
        done: dict[int, Completion] = {}
        sampling = replace(sampling, max_new_tokens=budget, stop_ids=tuple(self.renderer.stop_ids))
        generate(self.engine, [Request(ids, seed)], sampling, done.update)
        self.history.append({"role": "assistant", "content": done[0].text})
        return done[0].text if done[0].finish == "stop" else f"{done[0].text} [cut off after {budget:,} tokens]"

    def _prompt(self) -> list[int]:
        text = self.renderer.prompt(self.history[self.forgotten :])
        return self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"]


def open_speakers(source: str, *, trust_remote_code: bool = False) -> list[Speaker]:
    """Load a model, or those of M0, M1 and the result that a run has."""
    transformers_logging.disable_progress_bar()
    folder = Path(source).expanduser()
    if (folder / RUN_FILE).is_file():
        return run_speakers(find_models(folder))
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", ADAPTER_FILE)):
        raise UserError(
            f"{source} is neither a run nor a model: it has no {RUN_FILE}, config.json or {ADAPTER_FILE}; give a run "
            "directory or a model folder."
        )
    branch = open_model(source)
    target = TargetSettings(model=source, trust_remote_code=trust_remote_code)
    renderer = find_renderer(target, None, branch)
    model = branch.load(target.precision, trust_remote_code=trust_remote_code)
    model = model.cuda() if torch.cuda.is_available() else model  # pyright: ignore
    return [Speaker(source, LocalEngine(model, renderer.tokenizer, 1, "static"), renderer)]


def run_speakers(found: RunModels) -> list[Speaker]:
    """Load the models of a run with the settings of its recipe."""
    models = [found.models[name] for name in ("base", "sft") if name in found.models]
    for stage in result_stages(load_run(found.root))[:1]:  # with lora the adapter, not the merged model
        name = stage.removesuffix("/strong").replace("baselines/", "baseline-", 1)
        models.append(Model(name, found.root / stage, stage))
    trained = [model for model in models if model.name != "base"]
    if not trained:
        why = "".join(f" {stage}: {reason}." for stage, reason in found.missing.items() if reason != "not asked for")
        raise UserError(
            f"{found.root} has no trained model yet.{why} Finish the run, or chat with its base model directly."
        )
    renderer = found.renderer()
    base = found.models.get("base")
    if renderer is None or base is None:
        raise UserError(f"The base model of {found.root} is missing: {found.missing.get('base', 'no tokenizer')}")
    loader = Loader(found.recipe, base)
    speakers = list[Speaker]()
    for model in models:
        engine = LocalEngine(loader.load(model, train=False), renderer.tokenizer, 1, "static")
        speakers.append(Speaker(model_name(model.name), engine, renderer))
    return speakers


def talk(
    speakers: list[Speaker],
    lines: Iterable[str],
    show: Callable[[list[tuple[str, str]]], None],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
) -> None:
    """Reply to each line until the input ends or a line is /exit."""
    sampling = Sampling(max_new_tokens, (), temperature)
    for number, line in enumerate(lines):
        text = line.strip()
        if text == END:
            return
        if text:
            draw = request_seed(seed, str(number), 0)
            show([(speaker.name, speaker.answer(text, sampling, draw)) for speaker in speakers])


def print_answers(answers: list[tuple[str, str]], console: Console) -> None:
    """Print replies side by side if the terminal is wide enough, else one below the other."""
    if console.is_terminal and console.width >= NARROWEST * len(answers) > NARROWEST:
        table = Table(expand=True)
        for name, _ in answers:
            table.add_column(Text(name), ratio=1)
        table.add_row(*(Text(printable(text)) for _, text in answers))
        console.print(table)
        return
    for name, text in answers:
        if len(answers) > 1:
            console.print(Text(name, "bold"), soft_wrap=True, highlight=False)
        console.print(Text(printable(text)), soft_wrap=True, highlight=False)

"""`weakdriven diagnose`: what the logits of a run's models look like, and what mixing does, on some examples.

Each model runs once over the examples. Its hidden states are kept, never its logits: those of two models are formed
again, a tile of tokens at a time, where they are needed side by side.
"""

import fcntl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging as transformers_logging

from weakdriven.data.rows.files import data_key
from weakdriven.data.tokenize import load_tokens
from weakdriven.diagnose.forward_pass import Measured, Sample, compare, draw_sample, measure
from weakdriven.diagnose.other_rows import OtherRows, find_other_rows
from weakdriven.diagnose.run_models import RunModels, find_models, read_lenient
from weakdriven.diagnose.summary import DRIFTING, changes, gap, read_steps, summarise_model, summarise_pair
from weakdriven.diagnose.token_view import LISTS, write_token_view
from weakdriven.errors import UserError
from weakdriven.models.load import load_tokenizer
from weakdriven.report.format import mapping, model_at
from weakdriven.runs.directory import DIAGNOSIS_VERSION, DIAGNOSTICS, METRICS, TOKENS, WORK, Progress, work_folder
from weakdriven.runs.executor import DryRun, Run
from weakdriven.runs.files import read_json, write_json
from weakdriven.runs.machine import hardware, library_versions
from weakdriven.runs.manifest import MANIFEST
from weakdriven.stages.model_loader import Loader, Model

LOGITS, GRADIENTS, DRIFT, TOKEN_VIEW = "logits.json", "gradients.json", "drift.json", "tokens.parquet"
EXAMPLES = 200
"""As many as the paper samples for its logit tables."""
CHAIN = ("mean", "std", "centered_norm", "target", "background", "gap", "entropy", "max_probability")
SHIELDING = ("mixed_gradient", "curvature", "cross_curvature", "negative_mass_mixed", "negative_mass_strong")
NO_STEPS = (
    "Mean logits over the steps of {} are not known: its log has none, because an older version wrote it or the models "
    "cap their logits."
)


def diagnose_run(
    root: Path,
    progress: Progress,
    *,
    examples: int = EXAMPLES,
    rows: str | None = None,
    split: str = "train",
    round_number: int | None = None,
    seed: int | None = None,
) -> Path:
    """Measure a run unless that is done; returns the folder with the results.

    Args:
        rows: Source of the examples; unset: what the run was trained on.
        round_number: Round whose pair is looked at; unset: the last that is finished, else the first.
        seed: Of the draw of examples; unset: the recipe's.
    """
    if examples < 1:
        raise UserError(f"--examples is {examples}; it must be at least 1.")
    transformers_logging.disable_progress_bar()
    found = find_models(root)
    round_number, seed = chosen_round(found, round_number), found.recipe.seed if seed is None else seed
    other = None if rows is None else find_other_rows(rows, split, found)
    weights = strong_weights(found, round_number)
    unused = {f"round-{other}-weak" for other in found.rounds if other != round_number}
    wanted = {name: model for name, model in found.models.items() if name not in unused}

    def compute(work: Path, out: Path) -> dict[str, Any]:
        return Diagnosis(found, wanted, round_number, weights, examples, seed, progress, other).write(work, out)

    settings: dict[str, Any] = {"version": DIAGNOSIS_VERSION, "examples": examples, "seed": seed, "round": round_number}
    settings |= {"strong_weight": weights, "missing": sorted(found.missing)}
    settings |= found.recipe.model_dump(mode="json", include={"precision", "attention"})
    data = {"data": found.manifests["data"]["key"]} if "data" in found.manifests else {}
    if other:
        settings |= other.settings()
        data = {"rows": data_key(other.path, other.split)}
    inputs = {name: model.key for name, model in wanted.items()} | data
    with alone(root):
        if mapping(read_lenient(root / DIAGNOSTICS / MANIFEST).get("counters")).get("failed"):
            (root / DIAGNOSTICS / MANIFEST).unlink()  # what could not be loaded then may load now
        planned = DryRun(root)
        planned.stage(DIAGNOSTICS, compute, settings=settings, inputs=inputs)
        progress.plan(planned.planned)
        try:
            run = Run(root, seed=seed, progress=progress)
            return run.stage(DIAGNOSTICS, compute, settings=settings, inputs=inputs).path
        finally:
            progress.close()


def read_diagnosis(folder: Path) -> dict[str, dict[str, Any]]:
    """The results by `logits`, `gradients` and `drift`."""
    return {file.removesuffix(".json"): read_json(folder / file) for file in (LOGITS, GRADIENTS, DRIFT)}


def chosen_round(found: RunModels, round_number: int | None) -> int:
    if round_number is None:
        return max(found.current_rounds or found.rounds, default=1)
    if not 1 <= round_number <= found.last_round:
        raise UserError(f"{found.root} has no round {round_number}; give --round from 1 to {found.last_round}.")
    return round_number


def strong_weights(found: RunModels, round_number: int) -> list[float]:
    """Share of the strong logits at the begin and at the end of a round, as it was trained or will be."""
    joint = found.recipe.joint
    trained = found.round_settings(round_number)
    settings = trained if "strong_weight" in trained else joint.model_dump()
    begin, end = (gap(settings.get(name)) for name in ("strong_weight", "strong_weight_end"))
    begin = joint.strong_weight if begin is None else begin
    return [begin, begin if end is None else end]


def roles(round_number: int, names: Iterable[str], weak: str | None = None) -> dict[str, str]:
    """What the models of a round are to it, of those that are there; `weak` names the weak one if not M_{t-1}.

    >>> roles(1, ["base", "sft", "round-1", "baseline-sft"])
    {'weak': 'base', 'strong_before': 'sft', 'strong_after': 'round-1', 'control': 'baseline-sft'}
    """
    there = list(names)
    known = {
        "weak": weak or model_at(round_number - 1),
        "strong_before": model_at(round_number),
        "strong_after": model_at(round_number + 1),
        "weak_after": f"round-{round_number}-weak",
        "control": next((name for name in there if name.startswith("baseline-")), ""),
    }
    return {role: name for role, name in known.items() if name in there}


@dataclass
class Diagnosis:
    """All measurements of one run and round; what cannot be measured is reported and leaves the rest alone."""

    found: RunModels
    wanted: dict[str, Model]
    round_number: int
    weights: list[float]
    examples: int
    seed: int
    progress: Progress
    other: OtherRows | None = None
    sample: Sample | None = None
    measured: dict[str, Measured] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    compared: dict[tuple[str, str, float], dict[str, np.ndarray]] = field(default_factory=dict)

    def write(self, work: Path, out: Path) -> dict[str, Any]:
        """Measure everything and write the files; returns the counters for the manifest."""
        notes = [*self.found.notes, *self._run_models(work, out)]
        logits, (pairs, more) = self._logits(), self._pairs()
        drift = {"models": self._chain(), "rounds": self._rounds(), "steps": (steps := self._steps())}
        silent = [stage for stage, rows in steps.items() if not any(name in row for row in rows for name in DRIFTING)]
        listed = self._token_view(out / TOKEN_VIEW)
        facts = self._facts([*notes, *more, *map(NO_STEPS.format, silent)])
        for name, values in ((LOGITS, logits), (GRADIENTS, {"pairs": pairs}), (DRIFT, drift)):
            write_json(out / name, {"facts": facts, **values})
        return {**self._size(), "models": list(self.measured), "listed": listed, "failed": self.failed}

    def _run_models(self, work: Path, out: Path) -> list[str]:
        """One forward pass of each model over the sample; returns notes."""
        found = self.found
        base = found.models.get("base") or next(iter(found.models.values()), None)
        no_data = "data" in found.missing and not self.other
        if no_data or base is None or (found.recipe.lora and "base" in found.missing):
            return ["Nothing was measured, because tokenised rows or models are missing."]
        notes = list[str]()
        try:
            if self.other:
                self.sample, notes = self.other.draw(self.examples, self.seed, work, out, self.progress.update)
            else:
                self.sample = draw_sample(load_tokens(found.root / "data" / TOKENS), self.examples, self.seed)
        except (OSError, ValueError, KeyError) as error:
            self.failed["data"] = f"{TOKENS} cannot be read ({error})"
            return ["Nothing was measured, because tokenised rows are missing."]
        chain = {model_at(place) for place in range(found.last_round + 2)} | {found.weak_of(1)}
        each = len(self.sample.count_N)
        for place, (name, model) in enumerate(self.wanted.items()):
            paired = name in chain or name == f"round-{self.round_number}-weak"
            shared = {"keep": paired, "done": place * each, "of": each * len(self.wanted)}
            try:
                self.measured[name] = measure(Loader(found.recipe, base), model, self.sample, self.progress, **shared)
            except UserError as error:
                self.failed[name] = str(error)
                self.progress.note(f"{name} is left out: {error}")
        return notes

    def _roles(self, names: Iterable[str]) -> dict[str, str]:
        return roles(self.round_number, names, self.found.weak_of(self.round_number))

    def _size(self) -> dict[str, int]:
        count_N = self.sample.count_N if self.sample else np.zeros(0, int)
        return {"examples": len(count_N), "tokens": int(count_N.sum())}

    def _facts(self, notes: list[str]) -> dict[str, Any]:
        models = {name: model for name, model in self.wanted.items() if name in self.measured}
        missing = {name: why for name, why in self.found.missing.items() if not (self.other and name == "data")}
        return {
            "round": self.round_number,
            **self._size(),
            "rows": self.other and self.other.path,
            "seed": self.seed,
            "roles": self._roles(models),
            "models": {name: {"key": model.key, "folder": str(model.folder)} for name, model in models.items()},
            "missing": missing | self.failed,
            "notes": notes,
            "precision": self.found.recipe.precision,
            "hardware": hardware(),
            "versions": library_versions(),
            "version": DIAGNOSIS_VERSION,
        }

    def _logits(self) -> dict[str, Any]:
        """Both logit tables of the paper: statistics of each model, and the changes to the strong one after."""
        names = self._roles(self.measured)
        models = {name: self._summary(name) for name in self.measured}
        after = names.get("strong_after")
        starts = {role: names[role] for role in ("weak", "strong_before", "control") if role in names and after}
        changed = {role: changes(models[name], models[str(after)]) for role, name in starts.items()}
        return {"models": models, "changes_to_strong_after": changed}

    def _summary(self, name: str) -> dict[str, Any]:
        assert self.sample is not None
        one = self.measured[name]
        return {"vocabulary": one.vocabulary, **summarise_model(one.statistics, self.sample.example_T)}

    def _pairs(self) -> tuple[dict[str, Any], list[str]]:
        """The pair of the round as it began and as it ended, and notes."""
        names, notes = self._roles(self.measured), []
        weak, strong, after = (names.get(role) for role in ("weak", "strong_before", "strong_after"))
        pairs = {}
        if weak and strong:
            pairs["before"] = self._pair(weak, strong, self.weights[0])
        if after and (beside := names.get("weak_after", weak)):
            pairs["after"] = self._pair(beside, after, self.weights[1])
            if beside == weak and self.found.round_settings(self.round_number).get("weak") != "frozen":
                notes.append(
                    f"The trained weak model was not kept (joint.save_weak: true keeps it), so {after} is paired with "
                    f"{weak}, the weak model as the round began."
                )
        return pairs, notes

    def _pair(self, weak: str, strong: str, weight: float) -> dict[str, Any]:
        assert self.sample is not None
        ours, theirs = self.measured[strong], self.measured[weak]
        columns = self._compare(weak, strong, weight), ours.statistics, theirs.statistics
        vocabulary = min(ours.vocabulary, theirs.vocabulary)
        facts = {"weak": weak, "strong": strong, "strong_weight": weight, "vocabulary": vocabulary}
        return facts | summarise_pair(*columns, self.sample.example_T, weight)

    def _compare(self, weak: str, strong: str, weight: float) -> dict[str, np.ndarray]:
        """Per-token columns of a pair, computed once."""
        key = weak, strong, weight
        if key not in self.compared:
            self.compared[key] = compare(self.measured[strong], self.measured[weak], weight)
        return self.compared[key]

    def _chain(self) -> list[dict[str, Any]]:
        """Mean logit and shape of the logits of M0, M1, ... in the order in which they came about."""
        chain = [name for place in range(self.found.last_round + 2) if (name := model_at(place)) in self.measured]
        found = {name: self._summary(name)["statistics"] for name in chain}
        return [{"model": name, **{key: found[name][key] for key in CHAIN}} for name in chain]

    def _rounds(self) -> list[dict[str, Any]]:
        """What is left of the gradient, and of the curvature between the models, as each round begins."""
        rounds = []
        for round_number in range(1, self.found.last_round + 2):  # the last: how another one would begin
            weak, strong = self.found.weak_of(round_number), model_at(round_number)
            if weak in self.measured and strong in self.measured:
                pair = self._pair(weak, strong, strong_weights(self.found, round_number)[0])
                values = {name: pair["statistics"][name] for name in SHIELDING}
                rounds.append({"round": round_number, "weak": weak, "strong": strong, **values})
        return rounds

    def _steps(self) -> dict[str, list[dict[str, Any]]]:
        """Logs of the rounds, of one in progress too."""
        stages = [f"round-{round_number}/strong" for round_number in range(1, self.found.last_round + 1)]
        places = {stage: (self.found.root / stage, work_folder(self.found.root, stage) / "work") for stage in stages}
        logs = {stage: [read_steps(folder / METRICS) for folder in folders] for stage, folders in places.items()}
        return {stage: steps for stage, (done, begun) in logs.items() if (steps := done or begun)}

    def _token_view(self, path: Path) -> dict[str, int]:
        names = self._roles(self.measured)
        if self.sample is None or not {"weak", "strong_before"} <= names.keys():
            return dict.fromkeys(LISTS, 0)
        weak, strong, after = (names.get(role, "") for role in ("weak", "strong_before", "strong_after"))
        return write_token_view(
            path,
            self.sample,
            self.measured[weak],
            self.measured[strong],
            self.measured.get(after),
            self._compare(weak, strong, self.weights[0]),
            strong_weight=self.weights[0],
            seed=self.seed,
            decode=self._decoder(),
        )

    def _decoder(self) -> Callable[[int], str]:
        """Text of one token; empty where no tokenizer is there or the id only pads the head."""
        for model in self.wanted.values():
            try:
                tokenizer = load_tokenizer(model.folder, trust_remote_code=self.found.recipe.trust_remote_code)
            except UserError:  # a weak model that was kept has none of its own
                continue
            return lambda token: str(tokenizer.decode([token]))
        return lambda token: ""


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """One diagnosis of a run at a time; the run itself may go on beside it."""
    (root / WORK).mkdir(exist_ok=True)
    with (root / WORK / "diagnose.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another process diagnoses {root}; wait for it.") from None
        yield

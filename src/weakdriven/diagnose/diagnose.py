"""`weakdriven diagnose`: measure the logits of a run's models and the effect of mixing, on some examples.

Each model runs once over the examples. Its hidden states are kept and never its logits: the logits of a pair are
computed again for one tile of tokens at a time.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers.utils import logging as transformers_logging

from weakdriven.data.rows.files import data_key
from weakdriven.data.tokenize import load_tokens
from weakdriven.diagnose.forward_pass import Measured, Sample, compare, draw_sample, measure
from weakdriven.diagnose.other_rows import OtherRows, find_other_rows
from weakdriven.diagnose.run_models import RunModels, find_models
from weakdriven.diagnose.summary import DRIFTING, changes, read_steps, summarise_model, summarise_pair
from weakdriven.diagnose.token_view import LISTS, write_token_view
from weakdriven.errors import UserError
from weakdriven.report.files import read_object
from weakdriven.report.format import model_at
from weakdriven.runs.directory import (
    DIAGNOSIS_VERSION,
    DIAGNOSTICS,
    METRICS,
    REPLACED,
    TOKENS,
    WORK,
    Progress,
    locked,
    work_folder,
)
from weakdriven.runs.executor import DryRun, Run
from weakdriven.runs.files import read_json, write_json
from weakdriven.runs.machine import hardware, library_versions
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.replaced import WouldReplace, losses
from weakdriven.stages.model_loader import Loader

LOGITS, GRADIENTS, DRIFT, TOKEN_VIEW = "logits.json", "gradients.json", "drift.json", "tokens.parquet"
EXAMPLES = 200
"""As many as in the paper's logit tables."""
CHAIN = ("mean", "std", "centered_norm", "target", "background", "gap", "entropy", "max_probability")
SHIELDING = ("mixed_gradient", "curvature", "cross_curvature", "negative_mass_mixed", "negative_mass_strong")
NO_STEPS = (
    "Mean logits over the steps of {} are unknown: an older version wrote the log, or the models cap their logits."
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
    replace: bool = False,
) -> Path:
    """Measure a run unless that is done; return the folder with the results.

    Args:
        rows: Source of the examples; by default the run's training data.
        round_number: Round whose pair is measured; by default the last finished round, else the first.
        seed: Seed of the draw of examples; by default the recipe's.
        replace: Replace a diagnosis of other examples or another round; otherwise it raises an error. A diagnosis of an
            earlier state of the run is always replaced.
    """
    if examples < 1:
        raise UserError(f"--examples is {examples}; expected at least 1.")
    transformers_logging.disable_progress_bar()
    found, asked = find_models(root), round_number
    round_number, seed = chosen_round(found, round_number), found.recipe.seed if seed is None else seed
    other = None if rows is None else find_other_rows(rows, split, found)
    diagnosis = Diagnosis(found, round_number, examples, seed, progress, other)
    settings: dict[str, Any] = {"version": DIAGNOSIS_VERSION, "examples": examples, "seed": seed, "round": round_number}
    settings |= {"strong_weight": diagnosis.weights, "missing": sorted(found.missing)}
    settings |= found.recipe.model_dump(mode="json", include={"precision", "attention"})
    data = {"data": found.manifests["data"]["key"]} if "data" in found.manifests else {}
    if other:
        settings |= other.settings()
        data = {"rows": data_key(other.path, other.split)}
    options = {"settings": settings, "inputs": {name: model.key for name, model in diagnosis.wanted.items()} | data}
    manifest = root / DIAGNOSTICS / MANIFEST
    (root / WORK).mkdir(exist_ok=True)
    with locked(root / WORK / "diagnose.lock", f"Another process is diagnosing {root}; wait for it."):
        if read_object(manifest).get("counters", {}).get("failed"):
            manifest.unlink()  # what could not be loaded before may load now
        planned = DryRun(root)
        planned.stage(DIAGNOSTICS, diagnosis.write, **options)
        wanted = {"examples": examples, "seed": seed} | ({} if asked is None else {"round": asked})
        if not replace and other_examples(read_object(manifest), wanted, data.get("rows")):
            raise WouldReplace(losses(root, planned.planned))
        progress.plan(planned.planned)
        try:
            folder = Run(root, seed=seed, progress=progress).stage(DIAGNOSTICS, diagnosis.write, **options).path
            shutil.rmtree(root / REPLACED / DIAGNOSTICS, ignore_errors=True)
            return folder
        finally:
            progress.close()


def other_examples(manifest: dict[str, Any], wanted: dict[str, Any], rows: str | None) -> bool:
    """Return whether a finished diagnosis used other examples or another round than the one asked for."""
    if not manifest.get("key"):
        return False
    settings, inputs = manifest.get("settings", {}), manifest.get("inputs", {})
    return any(settings.get(name) != value for name, value in wanted.items()) or inputs.get("rows") != rows


def read_diagnosis(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the results by `logits`, `gradients` and `drift`."""
    return {file.removesuffix(".json"): read_json(folder / file) for file in (LOGITS, GRADIENTS, DRIFT)}


def chosen_round(found: RunModels, round_number: int | None) -> int:
    if round_number is None:
        return max(found.current_rounds or found.rounds, default=1)
    if not 1 <= round_number <= found.last_round:
        raise UserError(f"{found.root} has no round {round_number}; give --round from 1 to {found.last_round}.")
    return round_number


def strong_weights(found: RunModels, round_number: int) -> list[float]:
    """Return the strong weight at the start and at the end of a round, as it was or will be trained."""
    settings = found.round_settings(round_number)
    if "strong_weight" not in settings:
        settings = found.recipe.joint.model_dump()
    begin, end = settings["strong_weight"], settings.get("strong_weight_end")
    return [begin, begin if end is None else end]


@dataclass
class Diagnosis:
    """All measurements of one run and round; what cannot be measured is reported and skipped."""

    found: RunModels
    round_number: int
    examples: int
    seed: int
    progress: Progress
    other: OtherRows | None
    sample: Sample = field(default_factory=lambda: Sample(Dataset.from_dict({}), np.zeros(0, int), np.zeros(0, int)))
    measured: dict[str, Measured] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    compared: dict[tuple[str, str, float], dict[str, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = strong_weights(self.found, self.round_number)
        unused = {f"round-{t}-weak" for t in self.found.rounds if t != self.round_number}
        self.wanted = {name: model for name, model in self.found.models.items() if name not in unused}
        self.chain = [model_at(place) for place in range(self.found.last_round + 2)]

    def write(self, work: Path, out: Path) -> dict[str, Any]:
        """Measure everything and write the files; return the counters for the manifest."""
        notes = [*self.found.notes, *self.run_models(work, out)]
        roles, steps = self.roles(), self.steps()
        pairs = self.pairs(roles)
        trained = self.found.round_settings(self.round_number)
        if "after" in pairs and "weak_after" not in roles and trained.get("weak") != "frozen":
            weak, after = roles["weak"], roles["strong_after"]
            notes.append(
                f"The trained weak model was not kept (joint.save_weak: true keeps it), so {after} is paired with "
                f"{weak}, the weak model at the start of the round."
            )
        unlogged = [name for name, rows in steps.items() if not any(key in row for row in rows for key in DRIFTING)]
        notes += map(NO_STEPS.format, unlogged)
        listed = self.write_tokens(out / TOKEN_VIEW, roles)
        facts = self.facts(roles, notes)
        logits = self.logits(roles)
        statistics = {name: one["statistics"] for name, one in logits["models"].items() if name in self.chain}
        chain = [{"model": name, **{key: one[key] for key in CHAIN}} for name, one in statistics.items()]
        drift = {"models": chain, "rounds": self.rounds(), "steps": steps}
        for name, values in ((LOGITS, logits), (GRADIENTS, {"pairs": pairs}), (DRIFT, drift)):
            write_json(out / name, {"facts": facts, **values})
        return {**self.size(), "models": list(self.measured), "listed": listed, "failed": self.failed}

    def run_models(self, work: Path, out: Path) -> list[str]:
        """Run each model over the sample once; return notes."""
        found = self.found
        base = found.models.get("base") or next(iter(found.models.values()), None)
        rows, notes = found.root / "data" / TOKENS, list[str]()
        no_rows = not self.other and ("data" in found.missing or not rows.is_file())
        if no_rows or base is None or (found.recipe.lora and "base" in found.missing):
            return ["Nothing was measured, because tokenized examples or models are missing."]
        if self.other:
            self.sample, notes = self.other.draw(self.examples, self.seed, work, out, self.progress.update)
        else:
            self.sample = draw_sample(load_tokens(rows), self.examples, self.seed)
        paired = {*self.chain, found.weak_of(1), f"round-{self.round_number}-weak"}
        loader, each = Loader(found.recipe, base), len(self.sample.count_N)
        for place, (name, model) in enumerate(self.wanted.items()):

            def on_done(done: int, before: int = place * each) -> None:
                self.progress.update(before + done, each * len(self.wanted))

            try:
                self.measured[name] = measure(loader, model, self.sample, on_done, keep=name in paired)
            except UserError as error:
                self.failed[name] = str(error)
                self.progress.note(f"{name} is skipped: {error}")
        return notes

    def roles(self) -> dict[str, str]:
        """Name the measured models by role: weak, strong before and after the round, and a control."""
        known = {
            "weak": self.found.weak_of(self.round_number),
            "strong_before": model_at(self.round_number),
            "strong_after": model_at(self.round_number + 1),
            "weak_after": f"round-{self.round_number}-weak",
            "control": next((name for name in self.measured if name.startswith("baseline-")), ""),
        }
        return {role: name for role, name in known.items() if name in self.measured}

    def size(self) -> dict[str, int]:
        return {"examples": len(self.sample.count_N), "tokens": int(self.sample.count_N.sum())}

    def facts(self, roles: dict[str, str], notes: list[str]) -> dict[str, Any]:
        models = {name: model for name, model in self.wanted.items() if name in self.measured}
        missing = {name: why for name, why in self.found.missing.items() if not (self.other and name == "data")}
        return {
            "round": self.round_number,
            **self.size(),
            "rows": self.other and self.other.path,
            "seed": self.seed,
            "roles": roles,
            "models": {name: {"key": model.key, "folder": str(model.folder)} for name, model in models.items()},
            "missing": missing | self.failed,
            "notes": notes,
            "precision": self.found.recipe.precision,
            "hardware": hardware(),
            "versions": library_versions(),
            "version": DIAGNOSIS_VERSION,
        }

    def logits(self, roles: dict[str, str]) -> dict[str, Any]:
        """Compute both logit tables of the paper: statistics of each model, and changes to the last strong one."""
        models = {
            name: {"vocabulary": one.vocabulary, **summarise_model(one.statistics, self.sample.example_T)}
            for name, one in self.measured.items()
        }
        starts = {role: name for role, name in roles.items() if role in ("weak", "strong_before", "control")}
        after = models.get(roles.get("strong_after", ""))
        changed = {role: changes(models[name], after) for role, name in starts.items()} if after else {}
        return {"models": models, "changes_to_strong_after": changed}

    def pairs(self, roles: dict[str, str]) -> dict[str, Any]:
        """Compare the pair at the start and at the end of the round."""
        pairs, weak = {}, roles.get("weak")
        if weak and "strong_before" in roles:
            pairs["before"] = self.pair(weak, roles["strong_before"], self.weights[0])
        if "strong_after" in roles and (weak := roles.get("weak_after", weak)):
            pairs["after"] = self.pair(weak, roles["strong_after"], self.weights[1])
        return pairs

    def pair(self, weak: str, strong: str, weight: float) -> dict[str, Any]:
        ours, theirs = self.measured[strong], self.measured[weak]
        columns = self.compare(weak, strong, weight), ours.statistics, theirs.statistics
        vocabulary = min(ours.vocabulary, theirs.vocabulary)
        facts = {"weak": weak, "strong": strong, "strong_weight": weight, "vocabulary": vocabulary}
        return facts | summarise_pair(*columns, self.sample.example_T, weight)

    def compare(self, weak: str, strong: str, weight: float) -> dict[str, np.ndarray]:
        """Return the per-token columns of a pair, computed once."""
        key = weak, strong, weight
        if key not in self.compared:
            self.compared[key] = compare(self.measured[strong], self.measured[weak], weight)
        return self.compared[key]

    def rounds(self) -> list[dict[str, Any]]:
        """Measure the remaining gradient and the curvature between the models at the start of each round."""
        rounds = []
        for t, strong in enumerate(self.chain[1:], start=1):  # the last entry describes the start of one more round
            weak = self.found.weak_of(t)
            if weak in self.measured and strong in self.measured:
                pair = self.pair(weak, strong, strong_weights(self.found, t)[0])
                values = {name: pair["statistics"][name] for name in SHIELDING}
                rounds.append({"round": t, "weak": weak, "strong": strong, **values})
        return rounds

    def steps(self) -> dict[str, list[dict[str, Any]]]:
        """Read the logs of the rounds, including one in progress."""
        root, found = self.found.root, {}
        for stage in (f"round-{t}/strong" for t in range(1, self.found.last_round + 1)):
            if rows := read_steps(root / stage / METRICS) or read_steps(work_folder(root, stage) / "work" / METRICS):
                found[stage] = rows
        return found

    def write_tokens(self, path: Path, roles: dict[str, str]) -> dict[str, int]:
        if not {"weak", "strong_before"} <= roles.keys():
            return dict.fromkeys(LISTS, 0)
        weak, strong, first = roles["weak"], roles["strong_before"], self.found.tokenizer()
        return write_token_view(
            path,
            self.sample,
            self.measured[weak],
            self.measured[strong],
            self.measured.get(roles.get("strong_after", "")),
            self.compare(weak, strong, self.weights[0]),
            strong_weight=self.weights[0],
            seed=self.seed,
            decode=lambda token: str(first[1].decode([token])) if first else "",
        )

"""Collects runs of the study: turns a folder of `weakdriven compare` or `weakdriven sweep` into JSON.

A result file holds one comparison of one student: the items that each model got right, by seed, so that every test can
be computed again; the recipe, versions and hardware; and the cost of each method. It holds no path of the machine.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.eval.scoring import correct_counts
from weakdriven.report.compare.table import COMPARE_FILE, costs
from weakdriven.report.read import current_stages
from weakdriven.runs.directory import BENCHMARK_SCORES, PLAN_FILE, RECIPE_FILE, SAMPLES
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.machine import hardware
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.yaml import read_yaml

VERSION = 1
SWEEP_FILE = "sweep.json"
CUT_OFF = "not finished"
MACHINE_PATH = re.compile(r"(?:~|(?<![\w.]))(?:/[\w.@+-]+)*/(?=[\w.@+-])")


def collect(folder: Path, *, study: str, student: str, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the contents of result files by part: one for a comparison, one for each point of a sweep.

    Args:
        folder: The output of `weakdriven compare` or `weakdriven sweep`.
        names: Other names of methods, such as wmss=wmss_annealed for a recipe with another joint training.
    """
    if (folder / COMPARE_FILE).exists():
        comparisons = {"": read_json(folder / COMPARE_FILE)}
    else:
        comparisons = points_of(folder) if (folder / SWEEP_FILE).exists() else {"": stopped(folder)}
    tried = {part: facts for part, facts in comparisons.items() if facts["seeds"] or facts["failed"]}
    found = {part: contents(folder, facts, names or {}) for part, facts in tried.items()}
    return {part: {"version": VERSION, "study": study, "student": student} | one for part, one in found.items()}


def stopped(folder: Path) -> dict[str, Any]:
    """Return the results of a comparison that was interrupted before its first seed was finished."""
    runs = {path.parent.name: path.parent for path in sorted(folder.glob(f"seed-*/{PLAN_FILE}"))}
    if not runs:
        raise SystemExit(f"{folder} holds neither {COMPARE_FILE}, {SWEEP_FILE} nor runs; give a folder with results.")
    first = next(iter(runs.values()))
    versions = read_json(first / "data" / MANIFEST)["versions"]
    methods = {
        method: {"model": model, "stages": stages_of(run, model)}
        for run in runs.values()
        for method, model in models_of(run, "wmss").items()
    }
    seeds = {name.removeprefix("seed-"): name for name in runs}
    facts = {"seeds": seeds, "methods": methods, "failed": {}, "versions": versions}
    return facts | {"hardware": hardware_of(runs.values()), "jobs": len(runs)}


def hardware_of(runs: Iterable[Path]) -> str:
    """Return the hardware of the runs' stages; older runs do not record it, so it is this machine's."""
    manifests = [read_json(run / name / MANIFEST) for run in runs for name in sorted(current_stages(run))]
    if found := dict.fromkeys(one["hardware"] for one in manifests if "hardware" in one):
        return "; ".join(found)
    import torch  # noqa: F401, `hardware` sees a GPU only where it is loaded

    return hardware()


def points_of(folder: Path) -> dict[str, Any]:
    """Return each point of a sweep as the facts of a comparison; the point's own result has the point's name.

    A run with all answers counts even if the sweep was interrupted before it listed the run.
    """
    facts = read_json(folder / SWEEP_FILE)
    points = {name: {"seeds": {}, "methods": {}, "failed": {}} for name in facts["points"]}
    for name, one in points.items():
        failed = dict[str, str]()
        for seed in map(str, facts["seeds"]):
            run = f"{name}/seed-{seed}"
            state = facts["runs"].get(run, {"status": "", "reason": CUT_OFF})
            if state["status"] != "done" and (state["status"] or not answered(folder / run)):
                failed[seed] = state["reason"]
                continue
            one["seeds"][seed] = run
            for method, model in models_of(folder / run, name).items():
                one["methods"][method] = {"model": model, "stages": stages_of(folder / run, model)}
        if failed and (one["seeds"] or set(failed.values()) != {CUT_OFF}):
            one["failed"] = {name: failed}
    common = {name: facts[name] for name in ("hardware", "jobs", "versions")}
    return {name: one | common for name, one in points.items()}


def answered(run: Path) -> bool:
    """Return whether all evaluations of a run are finished: a method cannot be compared without its reference."""
    if not (run / PLAN_FILE).exists():
        return False
    asked = [name for name in read_json(run / PLAN_FILE) if name.startswith("eval/")]
    return current_stages(run).issuperset(asked)


def models_of(run: Path, name: str) -> dict[str, str]:
    """Map methods to models that were evaluated on all benchmarks; the last round is called `name`."""
    asked = dict.fromkeys(one.split("/")[1] for one in read_json(run / PLAN_FILE) if one.startswith("eval/"))
    whole = [model for model in asked if "-at-" not in model and answers_of(model, run, {})]
    rounds = [model for model in whole if model.startswith("round-")]
    baselines = {one.removeprefix("baseline-"): one for one in whole if one.startswith("baseline-")}
    return baselines | dict.fromkeys([name] * bool(rounds), rounds[-1] if rounds else "")


def stages_of(run: Path, model: str) -> list[str]:
    """List the stages of which a model was made, without the data and stages that only set how long to train."""
    current = current_stages(run)
    manifests = {name: read_json(run / name / MANIFEST) for name in read_json(run / PLAN_FILE) if name in current}
    by_key = {one["key"]: name for name, one in manifests.items()}
    own = f"{model}/strong" if model.startswith("round-") else model.replace("baseline-", "baselines/", 1)
    left, used = [own], list[str]()
    while left:
        name = left.pop()
        if name not in used and name != "data" and name in manifests:
            used.append(name)
            inputs = manifests[name]["inputs"].items()
            left += [by_key[key] for source, key in inputs if source != "budget" and key in by_key]
    return used


def contents(folder: Path, facts: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    runs = {seed: folder / name for seed, name in facts["seeds"].items()}
    found = {name: facts[name] for name in ("hardware", "jobs", "versions")}
    recipes = (run / RECIPE_FILE for run in runs.values())
    found |= {"failed": facts["failed"], "recipe": next((read_yaml(path) for path in recipes), {})}
    found = without_paths(found) | {"items": {}, "methods": {}}
    m1 = ["sft"] * any("sft" in one["stages"] for one in facts["methods"].values())
    starts = {"base": {"model": "base", "stages": []}, "m1": {"model": "sft", "stages": m1}}
    for method, one in (starts | facts["methods"]).items():
        answers = {seed: answers_of(one["model"], run, found["items"]) for seed, run in runs.items()}
        if answers := {seed: each for seed, each in answers.items() if each}:
            cost = costs(one["stages"], [runs[seed] for seed in answers])
            stages = {seed: {name: stage_facts(runs[seed] / name) for name in one["stages"]} for seed in answers}
            found["methods"][names.get(method, method)] = {"seeds": answers, "cost": cost, "stages": stages}
    return found


def stage_facts(stage: Path) -> dict[str, Any]:
    """Return a stage's time and counters, such as steps, rows or pairs."""
    manifest = read_json(stage / MANIFEST)
    return {"seconds": round(manifest["wall_seconds"], 1), "counters": manifest["counters"]}


def answers_of(model: str, run: Path, items: dict[str, Any]) -> dict[str, Any]:
    """Map benchmarks to the model's answers, and add their sizes to `items`; empty if a benchmark is missing."""
    asked = [name for name in read_json(run / PLAN_FILE) if name.startswith(f"eval/{model}/")]
    if not asked or not current_stages(run).issuperset(asked):
        return {}
    return {name.split("/")[-1]: answers_at(run / name, items) for name in asked}


def answers_at(stage: Path, items: dict[str, Any]) -> dict[str, Any]:
    """Return a model's answers to the benchmark that names a folder."""
    samples = list(read_jsonl(stage / SAMPLES))
    right_P, n = correct_counts(samples)
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    fact = {"count": len(ids), "ids": hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]}
    fact |= {"samples": n} if n > 1 else {}
    if items.setdefault(stage.name, fact) != fact:
        raise SystemExit(f"{stage} has other items than the models before it.")
    scores, manifest = read_json(stage / BENCHMARK_SCORES), read_json(stage / MANIFEST)
    right = packed(right_P) if n == 1 else bytes(right_P).hex()
    seconds = round(manifest["wall_seconds"], 1)
    return {"right": right, "tokens": scores["tokens"], "cut": scores["cut"], "seconds": seconds}


def with_answers(result: dict[str, Any], method: str, like: str, folders: Mapping[str, Path]) -> dict[str, Any]:
    """Add a method to a result file: the output of `weakdriven eval run`, such as the answers of a mixture.

    Args:
        like: The method that trained the model, for its cost.
        folders: Folders by seed, each with all benchmarks of the file.
    """
    if method in result["methods"]:
        raise SystemExit(f"There is a {method} already; give another name, or remove it.")
    trained = result["methods"].get(like, {"seeds": {}})
    if unknown := folders.keys() - trained["seeds"].keys():
        raise SystemExit(f"There is no {like} of seed {min(unknown)} that could have trained it.")
    as_there = result["recipe"]["data"]["style"], result["recipe"]["eval"]["max_new_tokens"]
    seeds = dict[str, Any]()
    for seed, folder in folders.items():
        for stage in (folder / benchmark for benchmark in list(result["items"])):
            manifest = read_json(stage / MANIFEST)
            asked = manifest["execution"]["style"], manifest["settings"]["max_new_tokens"]
            if asked != as_there:
                raise SystemExit(
                    f"{stage} was evaluated with {asked}, the file's models with {as_there}: style and tokens."
                )
            seeds.setdefault(seed, {})[stage.name] = answers_at(stage, result["items"])
    stages = {seed: trained["stages"][seed] for seed in seeds}
    added = {method: {"seeds": seeds, "cost": trained["cost"], "stages": stages, "like": like}}
    return result | {"methods": result["methods"] | added}


def packed(right_P: Iterable[int]) -> str:
    """Pack right answers as bits in hexadecimal.

    >>> packed([1, 0, 0, 0, 1, 1, 1, 1, 1]), unpacked("8f80", 9).tolist()
    ('8f80', [1, 0, 0, 0, 1, 1, 1, 1, 1])
    """
    return np.packbits(np.array(list(right_P), dtype=np.uint8)).tobytes().hex()


def unpacked(text: str, count: int) -> Any:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8))[:count]


def shares(text: str, fact: Mapping[str, int]) -> Any:
    """Return the share of right answers of each item, (P,); with several answers per item, a byte counts right ones.

    >>> shares("8f80", {"count": 9}).tolist()[:2], shares("000804", {"count": 3, "samples": 8}).tolist()
    ([1.0, 0.0], [0.0, 1.0, 0.5])
    """
    if "samples" not in fact:
        return unpacked(text, fact["count"]).astype(float)
    return np.frombuffer(bytes.fromhex(text), dtype=np.uint8) / fact["samples"]


def without_paths(value: Any) -> Any:
    """Strip the folders from every path in a value.

    >>> without_paths({"model": "/models/gemma", "why": ["See /logs/a/b.log."], "share": "1/2", "id": "a/b"})
    {'model': 'gemma', 'why': ['See b.log.'], 'share': '1/2', 'id': 'a/b'}
    """
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    return MACHINE_PATH.sub("", value) if isinstance(value, str) else value

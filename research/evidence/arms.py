"""The methods of docs/evidence/protocol-2.md, each a function that makes a model from a run's context and data.

Screens make a model from the results of SFT; arms train M1 on completions that a verifier has judged.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weakdriven.data.example import Example
from weakdriven.methods.dpo_spin.stage import examples_of, pair_stage, preference
from weakdriven.methods.rft import train_verified, verified_stage
from weakdriven.methods.rollouts.preference_pairs import Asked, Pair, Tally, mixed_pairs, with_rollouts
from weakdriven.methods.rollouts.stage import read_rollouts, rollout_stage
from weakdriven.methods.table import BASELINES
from weakdriven.methods.wmss import first_strong, pair_of
from weakdriven.models.load import load_model
from weakdriven.runs.directory import EXAMPLES
from weakdriven.runs.files import write_jsonl
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import TrainingSet, supervised_stage
from weakdriven.wmss.export import export_mix

Make = Callable[[Context, Stage], Model]
OWN_EPOCHS = 2
"""Epochs of `own_negatives`, which has fewer pairs and does not sample from a weak model."""
SHARE, TIMES = 4, 2
"""For `*_problems`: one in four problems of the pilot, sampled twice as often."""


def weak_of(context: Context, strong: Model) -> Model:
    """Return M0, or the snapshot of M1 that the recipe names."""
    return pair_of(context, [context.base, strong], 1)[0]


# screens


def averaged(context: Context, data: Stage, *, name: str, percents: list[int]) -> Model:
    """Average the weights at these points of SFT and at its end."""
    strong = first_strong(context, data)
    models = [*map(strong.at, percents), strong]
    return combined(context, name, [(1 / len(models), one) for one in models])


def extrapolated(context: Context, data: Stage, *, name: str, factor: float) -> Model:
    """Extrapolate weights: M1 + a (M1 - M0)."""
    return combined(context, name, [(1 + factor, first_strong(context, data)), (-factor, context.base)])


def contrasted(context: Context, data: Stage, *, name: str, factor: float) -> Model:
    """Extrapolate logits in generation: z_strong + a (z_strong - z_weak)."""
    strong = first_strong(context, data)
    return mixture(context, name, strong, weak_of(context, strong), 1 + factor)


def frozen_mixture(context: Context, data: Stage) -> Model:
    """Mix the strong model of `wmss_frozen` with its frozen weak model, as in training."""
    weak = weak_of(context, first_strong(context, data))
    strong = BASELINES["wmss_frozen"](context, data)
    return mixture(context, "frozen_mixture", strong, weak, context.recipe.joint.strong_weight)


def combined(context: Context, name: str, parts: list[tuple[float, Model]]) -> Model:
    """Make a model whose weights are this linear combination, computed in float32 before they are saved."""

    def compute(work: Path, out: Path) -> dict[str, Any]:
        network = combine([(share, model.folder) for share, model in parts])
        context.save(network, out)
        return {"parameters": network.num_parameters()}

    inputs = {f"model_{number}": model for number, (_, model) in enumerate(parts)}
    stage = context.run.stage(f"screens/{name}", compute, settings={"shares": [x for x, _ in parts]}, inputs=inputs)
    return Model(name, stage.path, lambda: stage.key)


@torch.no_grad()
def combine(parts: list[tuple[float, Path]]) -> Any:
    """Add up the weights of model folders times their shares."""
    networks = [(share, load_model(folder, precision="fp32")) for share, folder in parts]
    first_share, first = networks[0]
    others = [(share, dict(network.named_parameters())) for share, network in networks[1:]]
    for name, weight in first.named_parameters():
        weight.mul_(first_share)
        for share, weights in others:
            weight.add_(weights[name].to(weight.device), alpha=share)
    return first


def mixture(context: Context, name: str, strong: Model, weak: Model, strong_weight: float) -> Model:
    def compute(work: Path, out: Path) -> dict[str, Any]:
        mix = export_mix(str(strong.folder), str(weak.folder), output=str(work / "mix"), strong_weight=strong_weight)
        for path in mix.out.iterdir():
            path.rename(out / path.name)
        return {}

    inputs = {"strong": strong, "weak": weak}
    stage = context.run.stage(f"screens/{name}", compute, settings={"strong_weight": strong_weight}, inputs=inputs)
    return Model(name, stage.path, lambda: stage.key)


# arms


def samples_of(context: Context, data: Stage, model: Model) -> Stage:
    """Sample the pilot: verified completions of M1 or the weak model, shared by all arms."""
    return rollout_stage(context, "rft", model, data, context.recipe.rft.rollouts)


def weak_negatives(context: Context, data: Stage) -> Model:
    """Prefer M1's first right completion to the weak model's first wrong one."""
    strong = first_strong(context, data)
    own, theirs = samples_of(context, data, strong), samples_of(context, data, weak_of(context, strong))
    make = partial(pairs_against, data, theirs)
    pairs = pair_stage(context, "dpo-weak_negatives", data, own, make, weak_rollouts=theirs)
    return preference(context, "dpo-weak_negatives", strong, [pairs], context.recipe.dpo, round_number=1)


def own_negatives(context: Context, data: Stage) -> Model:
    """Prefer M1's first right completion to its first wrong one."""
    strong = first_strong(context, data)
    pairs = pair_stage(context, "dpo-own_negatives", data, samples_of(context, data, strong), mixed_pairs)
    settings = context.recipe.dpo.model_copy(update={"epochs": OWN_EPOCHS})
    return preference(context, "dpo-own_negatives", strong, [pairs], settings, round_number=1)


def pairs_against(data: Stage, theirs: Stage, asked: Iterable[Asked], tally: Tally) -> Iterator[Pair]:
    return mixed_pairs(right_and_wrong(asked, with_rollouts(examples_of(data), read_rollouts(theirs))), tally)


def right_and_wrong(asked: Iterable[Asked], others: Iterable[Asked]) -> Iterator[Asked]:
    """Yield the right completions of `asked` with those of `others` that are not right."""
    for (example, own), (_, theirs) in zip(asked, others, strict=True):
        right, wrong = [one for one in own if one.fault is None], [one for one in theirs if one.fault is not None]
        yield example, [*right, *wrong]


def problems(context: Context, data: Stage, *, name: str, uniform: bool) -> Model:
    """Run RFT with twice the samples for a quarter of the pilot's problems: any, or those where the success of M1 and
    of the weak model differs most (WD-DS on problems)."""
    strong, settings = first_strong(context, data), context.recipe.rft.rollouts
    models = [strong] if uniform else [strong, weak_of(context, strong)]
    pilots = [samples_of(context, data, model) for model in models]

    def compute(work: Path, out: Path) -> dict[str, Any]:
        rates = [success(pilot) for pilot in pilots]
        chosen, apart = choose(rates, context.recipe.seed)
        examples: Iterator[Example] = examples_of(data)
        write_jsonl(out / EXAMPLES, (one.as_row() for one in examples if one.id in chosen))
        return {"problems": len(rates[0]), "chosen": len(chosen), "mean_difference": apart}

    inputs = {f"pilot_{number}": pilot for number, pilot in enumerate(pilots)}
    decisive = {"seed": context.recipe.seed, "share": SHARE}
    prompts = context.run.stage(f"problems/{name}", compute, settings=decisive, inputs={"data": data, **inputs})
    more = settings.model_copy(update={"samples": TIMES * settings.samples, "subsample": None})
    rollouts = rollout_stage(context, name, strong, prompts, more)
    return train_verified(context, name, strong, verified_stage(context, name, data, rollouts))


def success(rollouts: Stage) -> dict[str, float]:
    """Return the share of right completions of each problem."""
    found: dict[str, list[bool]] = {}
    for one in read_rollouts(rollouts):
        found.setdefault(one.row["id"], []).append(one.fault is None)
    return {id: float(np.mean(each)) for id, each in found.items()}


def choose(rates: list[dict[str, float]], seed: int) -> tuple[set[str], float]:
    """Choose one in four problems by the difference of success rates (ties, or one model, at random), with the mean."""
    ids = list(rates[0])
    apart_N = np.array([abs(rates[0][id] - rates[-1][id]) for id in ids])
    order = np.lexsort((np.random.default_rng([seed, 36]).permutation(len(ids)), -apart_N))
    first = order[: max(len(ids) // SHARE, 1)]
    return {ids[place] for place in first}, float(apart_N[first].mean())


def longer_sft(context: Context, data: Stage, *, epochs: int) -> Model:
    """Fine-tune M0 with one schedule, as the reference of an arm with matched compute."""
    name, settings = f"baselines/sft_{epochs}", context.recipe.sft.model_copy(update={"snapshots": []})
    return supervised_stage(context, name, context.base, TrainingSet(data), settings, epochs=epochs)


SCREENS: dict[str, Make] = {
    "average_half": partial(averaged, name="average_half", percents=[50, 75]),
    "average_quarter": partial(averaged, name="average_quarter", percents=[75]),
    **{f"extrapolate_{a:g}": partial(extrapolated, name=f"extrapolate_{a:g}", factor=a) for a in (0.1, 0.25, 0.5)},
    **{f"contrast_{a:g}": partial(contrasted, name=f"contrast_{a:g}", factor=a) for a in (0.1, 0.3)},
    "frozen_mixture": frozen_mixture,
}
ARMS: dict[str, Make] = {
    "rft": BASELINES["rft"],
    "weak_negatives": weak_negatives,
    "own_negatives": own_negatives,
    "uniform_problems": partial(problems, name="uniform_problems", uniform=True),
    "wdds_problems": partial(problems, name="wdds_problems", uniform=False),
}


def maker(name: str) -> Make:
    """Return the function of a screen, an arm, `sft_N` for N epochs of SFT, or a method of the package."""
    if name.removeprefix("sft_").isdecimal():
        return partial(longer_sft, epochs=int(name.removeprefix("sft_")))
    known = {**BASELINES, **SCREENS, **ARMS}
    if name not in known:
        raise SystemExit(
            f"There is no {name}; there are {', '.join([*SCREENS, *ARMS])}, sft_N and the package's methods."
        )
    return known[name]

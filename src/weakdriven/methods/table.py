"""The baselines and controls of WMSS: one short function each, whose result is baselines/NAME (for SPIN's second
iteration baselines/spin-2, and so on).

Methods that start from the base train with the settings of `sft`, for all the epochs of WMSS. Those that continue from
M1 train with the settings of `joint`, for the same number of rounds, each with a new optimizer and schedule.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from weakdriven.config.recipe import JointSettings
from weakdriven.methods.control_stages import uniform_draw, wmss_budget
from weakdriven.methods.dpo_spin.stage import dpo, spin
from weakdriven.methods.neftune import EmbeddingNoise, NoisyEmbeddings
from weakdriven.methods.other_loss import AdjustedLogits, NoisedLogits, OtherLoss, ScaledLogits
from weakdriven.methods.rft import rft
from weakdriven.methods.ssb.stage import ssb
from weakdriven.methods.wmss import first_strong, pair_of, select, train_round, wmss
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import TrainingSet, supervised_stage
from weakdriven.training.variant import PLAIN, Variant

Choose = Callable[[int, Model, Model], Stage | None]
"""Takes the number of a round and its weak and strong model, and returns the round's active set (None: all rows)."""


def sft(context: Context, data: Stage) -> Model:
    """Fine-tune the base for as many epochs as WMSS has in all."""
    return from_base(context, data, "sft", PLAIN)


def sft_restart(context: Context, data: Stage) -> Model:
    """Train M1 further as in WMSS, but without a weak model and on all rows: the baseline that WMSS has to beat."""
    return rounds(context, data, "sft_restart", lambda *_: None, plain(context))


def sft_active(context: Context, data: Stage) -> Model:
    """Train M1 on the rows of WMSS, in the same order and with matched steps, but on its own logits alone."""
    return rounds(context, data, "sft_active", partial(set_of_wmss, context, data), plain(context))


def sft_compute(context: Context, data: Stage) -> Model:
    """Fine-tune the base, or M1 if it is given, at the compute of WMSS (`wmss_budget`) with one schedule."""
    recipe = context.recipe
    actives = [set_of_wmss(context, data, round_number) for round_number in range(1, recipe.joint.rounds + 1)]
    budget = wmss_budget(context, "baselines/sft_compute-budget", data, actives)
    start = context.given_strong or context.base
    examples = TrainingSet(data, budget=budget)
    return supervised_stage(context, "baselines/sft_compute", start, examples, recipe.sft, epochs=1)


def uniform_active(context: Context, data: Stage) -> Model:
    """Train as WMSS, but on equally many rows drawn uniformly, so that only the selection differs."""

    def choose(round_number: int, *_: Model) -> Stage:
        active = set_of_wmss(context, data, round_number)
        assert active is not None  # a recipe without selection raises an error before
        return uniform_draw(context, f"baselines/uniform_active-active-{round_number}", round_number, data, active)

    return rounds(context, data, "uniform_active", choose, context.recipe.joint)


def scaled_ce(context: Context, data: Stage) -> Model:
    """Train M1 on the rows of WMSS and on its own logits times `joint.strong_weight`: mixing without a weak model."""
    weight = context.recipe.joint.strong_weight
    variant = OtherLoss({"strong_weight": weight}, loss=ScaledLogits(weight)) if weight != 1 else PLAIN
    return rounds(context, data, "scaled_ce", partial(set_of_wmss, context, data), plain(context), variant)


def neftune(context: Context, data: Stage) -> Model:
    """Fine-tune the base with noise on the embeddings (Jain et al., 2023)."""
    settings = context.recipe.neftune
    decisive: dict[str, Any] = {"neftune": settings.model_dump(mode="json")}
    if padded := settings.length == "padded":  # the noise depends on a micro-batch's length
        decisive["micro_batch_size"] = context.recipe.sft.micro_batch_size
    noise = EmbeddingNoise(settings.alpha, padded=padded)
    return from_base(context, data, "neftune", NoisyEmbeddings(decisive, noise=noise))


def undial(context: Context, data: Stage) -> Model:
    """Distil M1 into itself with lowered true logits (Dong et al., 2024), or run the noisy SFT of the WMSS paper."""
    recipe, settings = context.recipe, context.recipe.undial
    decisive = {"undial": settings.variant()}
    if settings.mode == "adjusted_logits":
        variant = OtherLoss(decisive, loss=AdjustedLogits(settings.strength, settings.ce_weight))
        start, joint = first_strong(context, data), recipe.joint
        epochs = joint.rounds * joint.epochs
        options = {"epochs": epochs, "round_number": 1, "variant": variant, "teacher": start}
        return supervised_stage(context, "baselines/undial", start, TrainingSet(data), joint, **options)
    if settings.site == "embedding":
        variant = NoisyEmbeddings(decisive, noise=EmbeddingNoise(settings.sigma, kind="gaussian"))
    elif settings.sigma == 0:  # the trainer of SFT, so that the result is identical
        variant = Variant(decisive)
    else:
        loss = NoisedLogits(settings.sigma, settings.site, settings.sign, seed=(recipe.seed, 0))
        variant = OtherLoss(decisive, loss=loss)
    return from_base(context, data, "undial", variant)


def wdjt_only(context: Context, data: Stage) -> Model:
    """Train jointly on all rows."""
    settings = context.recipe.joint.model_copy(update={"enabled": True})
    return rounds(context, data, "wdjt_only", lambda *_: None, settings)


def wdds_only(context: Context, data: Stage) -> Model:
    """Fine-tune M1 on active sets that its own models select; with one round, this is `sft_active`."""
    return rounds(context, data, "wdds_only", partial(own_set, context, data, "wdds_only"), plain(context))


def wmss_frozen(context: Context, data: Stage) -> Model:
    """Run WMSS with a frozen weak model; on all rows if the recipe has no selection."""
    return changed_wmss(context, data, "wmss_frozen", weak="frozen", weak_learning_rate=None)


def wmss_annealed(context: Context, data: Stage) -> Model:
    """Run WMSS with a strong weight that rises to 1, so that the strong model ends on its own loss."""
    return changed_wmss(context, data, "wmss_annealed", strong_weight_end=1.0)


def changed_wmss(context: Context, data: Stage, name: str, **changes: Any) -> Model:
    """Run WMSS with changed settings of joint training."""
    settings = context.recipe.joint.model_copy(update={"enabled": True, **changes})
    own = partial(own_set, context, data, name)
    choose = own if context.recipe.selection.enabled else lambda *_: None
    return rounds(context, data, name, choose, settings)


def from_base(context: Context, data: Stage, name: str, variant: Variant) -> Model:
    recipe = context.recipe
    options = {"epochs": recipe.budget_epochs, "variant": variant}
    return supervised_stage(context, f"baselines/{name}", context.base, TrainingSet(data), recipe.sft, **options)


def rounds(
    context: Context, data: Stage, name: str, choose: Choose, settings: JointSettings, variant: Variant = PLAIN
) -> Model:
    """Train M1 further in rounds, and return the model of the last round."""
    models, last = [context.base, first_strong(context, data)], settings.rounds
    for round_number in range(1, last + 1):
        weak, strong = pair_of(context, models, round_number)
        stage = f"baselines/{name}" if round_number == last else f"baselines/{name}-round-{round_number}"
        examples = TrainingSet(data, choose(round_number, weak, strong))
        models.append(train_round(context, stage, round_number, weak, strong, examples, settings, variant))
    return models[-1]


def plain(context: Context) -> JointSettings:
    return context.recipe.joint.model_copy(update={"enabled": False})


def set_of_wmss(context: Context, data: Stage, round_number: int, *_: Model) -> Stage | None:
    """Return the active set of WMSS; its earlier rounds are trained first."""
    if not context.recipe.selection.enabled:
        return None
    weak, strong = pair_of(context, wmss(context, data, rounds=round_number - 1), round_number)
    return select(context, round_number, weak, strong, data)


def own_set(context: Context, data: Stage, name: str, round_number: int, weak: Model, strong: Model) -> Stage:
    """Select an active set by the entropies of the baseline's own models; in round 1, it is that of WMSS."""
    stage = f"baselines/{name}-active-{round_number}" if round_number > 1 else None
    return select(context, round_number, weak, strong, data, stage)


BASELINES: dict[str, Callable[[Context, Stage], Model]] = {
    baseline.__name__: baseline
    for baseline in (
        *(sft, sft_restart, sft_active, sft_compute, uniform_active, scaled_ce),
        *(neftune, undial, rft, spin, dpo, ssb, wdjt_only, wdds_only, wmss_frozen, wmss_annealed),
    )
}

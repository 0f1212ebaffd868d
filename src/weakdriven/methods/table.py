"""What WMSS is compared with: one short function each, whose result is baselines/NAME (of SPIN's second
iteration baselines/spin-2, and so on).

What starts from the base trains with the settings of `sft` for all the epochs that WMSS has; what continues from M1
trains with those of `joint`, in as many rounds, each with a fresh optimizer and schedule.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from weakdriven.config.recipe import JointSettings
from weakdriven.methods.control_stages import uniform_draw, wmss_budget
from weakdriven.methods.dpo_spin.stage import dpo, spin
from weakdriven.methods.neftune import EmbeddingNoise, NoisyEmbeddings
from weakdriven.methods.rft import rft
from weakdriven.methods.ssb.stage import ssb
from weakdriven.methods.token_loss import OtherLoss, ScaledLogits
from weakdriven.methods.undial.loss import AdjustedLogits
from weakdriven.methods.undial.noise import NoisedLogits
from weakdriven.methods.wmss import first_strong, pair_of, select, train_round, wmss
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model_loader import Model
from weakdriven.stages.model_stage import TrainingSet, supervised_stage
from weakdriven.training.sft import PLAIN, Variant

Choose = Callable[[int, Model, Model], Stage | None]
"""Number of a round, its weak and its strong model -> its active set; None: all rows."""


def sft(context: Context, data: Stage) -> Model:
    """Supervised fine-tuning of the base for as many epochs as WMSS sees in all."""
    return from_base(context, data, "sft", PLAIN)


def sft_restart(context: Context, data: Stage) -> Model:
    """M1 trained further as in WMSS, without a weak model and on all rows: what WMSS has to beat."""
    return rounds(context, data, "sft_restart", lambda *_: None, plain(context))


def sft_active(context: Context, data: Stage) -> Model:
    """M1 trained on the rows of WMSS, in their order and for matched steps, on its own logits alone."""
    return rounds(context, data, "sft_active", partial(set_of_wmss, context, data), plain(context))


def sft_compute(context: Context, data: Stage) -> Model:
    """SFT of the base at the compute of WMSS (`wmss_budget`), with one schedule; of M1 if that is given."""
    recipe = context.recipe
    actives = [set_of_wmss(context, data, round_number) for round_number in range(1, recipe.joint.rounds + 1)]
    budget = wmss_budget(context, "baselines/sft_compute-budget", data, actives)
    start = context.given_strong or context.base
    examples = TrainingSet(data, budget=budget)
    return supervised_stage(context, "baselines/sft_compute", start, examples, recipe.sft, epochs=1)


def uniform_active(context: Context, data: Stage) -> Model:
    """WMSS on as many rows drawn uniformly: the same joint training, so that the selection alone differs."""

    def choose(round_number: int, *_: Model) -> Stage:
        active = set_of_wmss(context, data, round_number)
        assert active is not None  # a recipe that selects nothing is refused
        return uniform_draw(context, f"baselines/uniform_active-active-{round_number}", round_number, data, active)

    return rounds(context, data, "uniform_active", choose, context.recipe.joint)


def scaled_ce(context: Context, data: Stage) -> Model:
    """M1 trained on the rows of WMSS, on its own logits times `joint.strong_weight`: mixing without a weak model."""
    weight = context.recipe.joint.strong_weight
    variant = OtherLoss({"strong_weight": weight}, loss=ScaledLogits(weight)) if weight != 1 else PLAIN
    return rounds(context, data, "scaled_ce", partial(set_of_wmss, context, data), plain(context), variant)


def neftune(context: Context, data: Stage) -> Model:
    """SFT with noise on the embeddings (Jain et al., 2023)."""
    settings = context.recipe.neftune
    decisive: dict[str, Any] = {"neftune": settings.model_dump(mode="json")}
    if padded := settings.length == "padded":  # the padded length of a micro-batch decides the noise
        decisive["micro_batch_size"] = context.recipe.sft.micro_batch_size
    noise = EmbeddingNoise(settings.alpha, padded=padded)
    return from_base(context, data, "neftune", NoisyEmbeddings(decisive, noise=noise))


def undial(context: Context, data: Stage) -> Model:
    """M1 distilled into itself with true logits lowered (Dong et al., 2024); or the WMSS paper's noisy SFT."""
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
    elif settings.sigma == 0:  # the trainer of SFT, so that not a bit differs
        variant = Variant(decisive)
    else:
        loss = NoisedLogits(settings.sigma, settings.site, settings.sign, seed=(recipe.seed, 0))
        variant = OtherLoss(decisive, loss=loss)
    return from_base(context, data, "undial", variant)


def wdjt_only(context: Context, data: Stage) -> Model:
    """Joint training on all rows."""
    settings = context.recipe.joint.model_copy(update={"enabled": True})
    return rounds(context, data, "wdjt_only", lambda *_: None, settings)


def wdds_only(context: Context, data: Stage) -> Model:
    """SFT on active sets that its own models choose; in one round the same as `sft_active`."""
    return rounds(context, data, "wdds_only", partial(own_set, context, data, "wdds_only"), plain(context))


def wmss_frozen(context: Context, data: Stage) -> Model:
    """WMSS whose weak model only runs forward; on all rows where the recipe selects none."""
    return changed_wmss(context, data, "wmss_frozen", weak="frozen", weak_learning_rate=None)


def wmss_annealed(context: Context, data: Stage) -> Model:
    """WMSS whose strong weight rises to 1, so that the strong model ends on its own loss."""
    return changed_wmss(context, data, "wmss_annealed", strong_weight_end=1.0)


def changed_wmss(context: Context, data: Stage, name: str, **changes: Any) -> Model:
    """WMSS with other settings of joint training."""
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
    """M1 trained further in rounds; the result is the model of the last round."""
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
    """The active set of WMSS, whose own earlier rounds have to be trained first."""
    if not context.recipe.selection.enabled:
        return None
    weak, strong = pair_of(context, wmss(context, data, rounds=round_number - 1), round_number)
    return select(context, round_number, weak, strong, data)


def own_set(context: Context, data: Stage, name: str, round_number: int, weak: Model, strong: Model) -> Stage:
    """An active set by the entropies of the baseline's own models; the first is that of WMSS."""
    stage = f"baselines/{name}-active-{round_number}" if round_number > 1 else None
    return select(context, round_number, weak, strong, data, stage)


BASELINES: dict[str, Callable[[Context, Stage], Model]] = {
    baseline.__name__: baseline
    for baseline in (
        *(sft, sft_restart, sft_active, sft_compute, uniform_active, scaled_ce),
        *(neftune, undial, rft, spin, dpo, ssb, wdjt_only, wdds_only, wmss_frozen, wmss_annealed),
    )
}

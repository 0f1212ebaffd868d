"""What WMSS is compared with: one short function each, whose result is baselines/NAME (of SPIN's second
iteration baselines/spin-2, and so on).

What starts from the base trains with the settings of `sft` for all the epochs that WMSS has; what goes on from M1
trains with those of `joint`, in as many rounds, each with a fresh optimizer and schedule.
"""

from collections.abc import Callable
from typing import Any

from weakdriven.config.recipe import JointSettings
from weakdriven.methods.control_stages import uniform_draw, wmss_budget
from weakdriven.methods.dpo_spin.stage import dpo, spin
from weakdriven.methods.neftune import EmbeddingNoise
from weakdriven.methods.ssb.stage import ssb
from weakdriven.methods.token_loss import PLAIN, AdjustedLogits, NoisedLogits, ScaledLogits, Variant
from weakdriven.methods.wmss import first_strong, pair_of, select, train_round, wmss
from weakdriven.runs.directory import Stage
from weakdriven.stages.stages import Model, Stages

Choose = Callable[[int, Model, Model], Stage | None]
"""Number of a round, its weak and its strong model -> its active set; None: all rows."""


def sft(stages: Stages, data: Stage) -> Model:
    """Supervised fine-tuning of the base for as many epochs as WMSS sees in all."""
    return from_base(stages, data, "sft", PLAIN)


def sft_restart(stages: Stages, data: Stage) -> Model:
    """M1 trained further as WMSS does it, without a weak model and on all rows: what WMSS has to beat."""
    return rounds(stages, data, "sft_restart", lambda *_: None, plain(stages))


def sft_active(stages: Stages, data: Stage) -> Model:
    """M1 trained on the very rows of WMSS, in their order and for as many steps, on its own logits alone."""
    return rounds(stages, data, "sft_active", lambda turn, *_: of_wmss(stages, data, turn), plain(stages))


def sft_compute(stages: Stages, data: Stage) -> Model:
    """SFT of the base, with one schedule, for as much compute as the whole of WMSS (`controls.wmss_budget`).

    Where M1 is given it starts from that, for what WMSS computes after it.
    """
    recipe = stages.recipe
    actives = [of_wmss(stages, data, turn) for turn in range(1, recipe.joint.rounds + 1)]
    budget = wmss_budget(stages, "baselines/sft_compute-budget", data, actives)
    start = stages.given_strong or stages.base
    return stages.supervised("baselines/sft_compute", start, data, recipe.sft, epochs=1, budget=budget)


def uniform_active(stages: Stages, data: Stage) -> Model:
    """WMSS on as many rows drawn uniformly: the same joint training, so that the selection alone differs."""

    def choose(turn: int, *_: Model) -> Stage:
        active = of_wmss(stages, data, turn)
        assert active is not None  # a recipe that selects nothing is refused
        return uniform_draw(stages, f"baselines/uniform_active-active-{turn}", turn, data, active)

    return rounds(stages, data, "uniform_active", choose, stages.recipe.joint)


def scaled_ce(stages: Stages, data: Stage) -> Model:
    """M1 trained on the rows of WMSS, on its own logits times `joint.strong_weight`: mixing without a weak model."""
    weight = stages.recipe.joint.strong_weight
    variant = Variant({"strong_weight": weight}, loss=ScaledLogits(weight)) if weight != 1 else PLAIN
    return rounds(stages, data, "scaled_ce", lambda turn, *_: of_wmss(stages, data, turn), plain(stages), variant)


def neftune(stages: Stages, data: Stage) -> Model:
    """SFT with noise on the embeddings (Jain et al., 2023)."""
    settings = stages.recipe.neftune
    words: dict[str, Any] = {"neftune": settings.model_dump(mode="json")}
    if settings.length == "padded":  # the width of a micro-batch decides the noise
        words["micro_batch_size"] = stages.recipe.sft.micro_batch_size
    noise = EmbeddingNoise(settings.alpha, length="padded" if settings.length == "padded" else "true")
    return from_base(stages, data, "neftune", Variant(words, noise=noise))


def undial(stages: Stages, data: Stage) -> Model:
    """M1 distilled into itself with true logits lowered (Dong et al., 2024); or the WMSS paper's noisy SFT."""
    recipe, settings = stages.recipe, stages.recipe.undial
    words = {"undial": settings.variant()}
    if settings.mode == "adjusted_logits":
        variant = Variant(words, loss=AdjustedLogits(settings.strength, settings.ce_weight))
        start, joint = first_strong(stages, data), recipe.joint
        epochs = joint.rounds * joint.epochs
        options = {"epochs": epochs, "turn": 1, "variant": variant, "teacher": start}
        return stages.supervised("baselines/undial", start, data, joint, **options)
    if settings.site == "embedding":
        variant = Variant(words, noise=EmbeddingNoise(settings.sigma, kind="gaussian"))
    elif settings.sigma == 0:  # the trainer of SFT, so that not a bit differs
        variant = Variant(words)
    else:
        loss = NoisedLogits(settings.sigma, settings.site, settings.sign, seed=(recipe.seed, 0))
        variant = Variant(words, loss=loss)
    return from_base(stages, data, "undial", variant)


def wdjt_only(stages: Stages, data: Stage) -> Model:
    """Joint training on all rows."""
    settings = stages.recipe.joint.model_copy(update={"enabled": True})
    return rounds(stages, data, "wdjt_only", lambda *_: None, settings)


def wdds_only(stages: Stages, data: Stage) -> Model:
    """SFT on active sets that its own models choose; in one round the same as `sft_active`."""
    return rounds(stages, data, "wdds_only", own_choice(stages, data, "wdds_only"), plain(stages))


def wmss_frozen(stages: Stages, data: Stage) -> Model:
    """WMSS whose weak model only runs forward; on all rows where the recipe selects none."""
    frozen = {"enabled": True, "weak": "frozen", "weak_learning_rate": None}
    settings = stages.recipe.joint.model_copy(update=frozen)
    choose = own_choice(stages, data, "wmss_frozen") if stages.recipe.selection.enabled else lambda *_: None
    return rounds(stages, data, "wmss_frozen", choose, settings)


def from_base(stages: Stages, data: Stage, name: str, variant: Variant) -> Model:
    recipe = stages.recipe
    options = {"epochs": recipe.budget_epochs, "variant": variant}
    return stages.supervised(f"baselines/{name}", stages.base, data, recipe.sft, **options)


def rounds(
    stages: Stages, data: Stage, name: str, choose: Choose, settings: JointSettings, variant: Variant = PLAIN
) -> Model:
    """M1 trained on in rounds; that of the last is the result."""
    models, last = [stages.base, first_strong(stages, data)], settings.rounds
    for turn in range(1, last + 1):
        weak, strong = pair_of(stages, models, turn)
        stage = f"baselines/{name}" if turn == last else f"baselines/{name}-round-{turn}"
        models.append(
            train_round(stages, stage, turn, weak, strong, data, choose(turn, weak, strong), settings, variant)
        )
    return models[-1]


def plain(stages: Stages) -> JointSettings:
    return stages.recipe.joint.model_copy(update={"enabled": False})


def of_wmss(stages: Stages, data: Stage, turn: int) -> Stage | None:
    """The active set of WMSS, whose own earlier rounds have to be trained first."""
    if not stages.recipe.selection.enabled:
        return None
    weak, strong = pair_of(stages, wmss(stages, data, rounds=turn - 1), turn)
    return select(stages, turn, weak, strong, data)


def own_choice(stages: Stages, data: Stage, name: str) -> Choose:
    """Active sets by the entropies of the baseline's own models; the first is that of WMSS."""

    def choose(turn: int, weak: Model, strong: Model) -> Stage:
        stage = f"baselines/{name}-active-{turn}" if turn > 1 else None
        return select(stages, turn, weak, strong, data, stage)

    return choose


BASELINES: dict[str, Callable[[Stages, Stage], Model]] = {
    baseline.__name__: baseline
    for baseline in (
        *(sft, sft_restart, sft_active, sft_compute, uniform_active, scaled_ce),
        *(neftune, undial, spin, dpo, ssb, wdjt_only, wdds_only, wmss_frozen),
    )
}

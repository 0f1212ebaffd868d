"""Settings of the baselines: one block of a recipe for each baseline that has any."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from weakdriven.config.settings import Settings, TrainSettings


class NeftuneSettings(Settings):
    """`neftune`: SFT with uniform noise on the input embeddings (Jain et al., 2023)."""

    alpha: float = Field(default=5.0, ge=0)
    """The noise is alpha / sqrt(length * width) times a number from -1 to 1; 0 is plain SFT."""
    length: Literal[True, "padded"] = True
    """`true`: the length of each sequence, no noise on padding. `padded`: the padded length, noise on padding too."""


OF_UNDIAL_MODE = {"adjusted_logits": ("strength", "ce_weight"), "paper_noise": ("sigma", "site", "sign")}
"""The settings that only one mode has."""


class UndialSettings(Settings):
    """`undial`: the published method, or what the WMSS paper describes under its name (docs/concepts/choices.md)."""

    mode: Literal["adjusted_logits", "paper_noise"] = "adjusted_logits"
    """`adjusted_logits` (Dong et al., 2024) distils M1 into itself with the true token's logit lowered; `paper_noise`
    is SFT from the base with noise of size sigma / sqrt(length)."""
    strength: float = Field(default=1.0, ge=0)
    """For `adjusted_logits`: how far the teacher's logit of the true token is lowered."""
    ce_weight: float = Field(default=0.0, ge=0)
    """For `adjusted_logits`: weight of the cross-entropy with the true token, added to the loss."""
    sigma: float = Field(default=1.0, ge=0)
    """For `paper_noise`: size of the noise; 0 is plain SFT."""
    site: Literal["target_logit", "logits", "embedding"] = "target_logit"
    """For `paper_noise`: noise on the true token's logit, on every logit, or on the input embeddings."""
    sign: Literal["signed", "abs"] = "signed"
    """For `paper_noise`: `abs` only lowers logits."""

    @model_validator(mode="after")
    def _of_one_mode(self) -> "UndialSettings":
        other = "paper_noise" if self.mode == "adjusted_logits" else "adjusted_logits"
        for name in OF_UNDIAL_MODE[other]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is of mode {other}, but mode is {self.mode}; remove one of them")
        if self.site == "embedding" and self.sign == "abs":
            raise ValueError("sign abs lowers logits, but site is embedding; use sign: signed, or another site")
        return self

    def variant(self) -> dict[str, Any]:
        """The mode with the settings that it has, for manifests."""
        return self.model_dump(mode="json", include={"mode", *OF_UNDIAL_MODE[self.mode]})


class RolloutSettings(Settings):
    """Completions of the training prompts, sampled from the model that a baseline starts from, by `eval.engine`."""

    samples: int = Field(default=4, ge=1)
    """Completions of each prompt."""
    temperature: float = Field(default=0.8, ge=0)
    """0 takes the most probable token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the most probable tokens that together have this probability."""
    top_k: int | None = Field(default=None, ge=1)
    """Keep only this many most probable tokens, before top-p; unset: all."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a completion; unset: what the shortest prompt leaves of `data.max_length`. A completion longer
    than its own prompt leaves counts as truncated: wrong if its answer is wrong, and in no pair if it is right."""
    subsample: int | None = Field(default=None, ge=1)
    """Use only this many prompts, drawn at random by the seed; the paper took 20000 for math. Unset: all."""

    @model_validator(mode="after")
    def _samples_can_differ(self) -> "RolloutSettings":
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"temperature is 0, so all {self.samples} samples would be the same; raise it")
        return self


class RftSettings(Settings):
    """`rft`: M1 trained further, by the settings of `joint`, on the data and on its own verified completions."""

    rollouts: RolloutSettings = RolloutSettings()


class SpinRolloutSettings(RolloutSettings):
    """SPIN's rollouts: one completion at temperature 1."""

    samples: int = Field(default=1, ge=1)
    """Completions of each prompt; each is paired with the data's."""
    temperature: float = Field(default=1.0, ge=0)
    """0 takes the most probable token."""


class SsbRolloutSettings(RolloutSettings):
    """SSB's rollouts: those of DPO, from the 50 most probable tokens."""

    top_k: int | None = Field(default=50, ge=1)
    """Before top-p, leave only so many most probable tokens; null: all."""


class PreferenceSettings(TrainSettings):
    """Training of DPO and SPIN; the paper gives these numbers for SPIN only."""

    learning_rate: float = Field(default=5e-7, gt=0)
    """Peak learning rate of AdamW."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Gradients are clipped to this global norm."""
    beta: float = Field(default=0.1, gt=0)
    """DPO's beta: how strongly the model is kept near the one it starts from."""

    def loss(self) -> dict[str, float]:
        """What decides the loss; a term without weight is left out, so that older runs stay valid."""
        return {"beta": self.beta}


class DpoSettings(PreferenceSettings):
    """DPO from M1 on its own completions: the first right one of a prompt is preferred to the first wrong one."""

    sft_weight: float = Field(default=0.0, ge=0)
    """Weight of the cross-entropy of the preferred completions, a mean over the tokens of a micro-batch, which is added
    to the loss."""
    rollouts: RolloutSettings = RolloutSettings()

    def loss(self) -> dict[str, float]:
        return super().loss() | ({"sft_weight": self.sft_weight} if self.sft_weight else {})


class SpinSettings(PreferenceSettings):
    """SPIN from M1: the data's completion is preferred to the model's own."""

    iterations: int = Field(default=1, ge=1)
    """Each iteration samples from the model of the one before, which is also its reference."""
    mix_previous: bool = False
    """From the second iteration on, also train on the pairs of the one before, as the authors' code does."""
    rollouts: SpinRolloutSettings = SpinRolloutSettings()


HINT_FIELDS = ("problem", "right", "wrong", "ending")
HINT_FIELD = re.compile(r"(?P<latex>\\[A-Za-z]+(?:\{\w*\})*|[\^_])?\{(?P<name>[A-Za-z]\w+)\}")
"""A word in braces; after a LaTeX command it is a field only if it has a field's name."""


class SsbTeacherSettings(Settings):
    """How SSB's teacher, the model itself with a hint in its prompt, generates the reply to learn from."""

    temperature: float = Field(default=0.4, ge=0)
    """0 takes the most probable token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the most probable tokens that together have this probability."""
    top_k: int | None = Field(default=50, ge=1)
    """Before that, leave only so many most probable tokens; null: all."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a reply; unset: `data.max_length`, or what the model's positions leave of it."""
    max_prompt_tokens: int = Field(default=12288, ge=1)
    """Longer hinted prompts are left out and counted, never cut."""


class SsbSettings(TrainSettings):
    """SSB: the model learns to reply without a hint as it does with a right and a wrong attempt in its prompt."""

    start: Literal["base", "sft"] = "base"
    """The model that attempts, teaches and learns: M0, or M1 as in the paper for Gemma."""
    epochs: int = Field(default=2, ge=1)
    """Epochs over the replies."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Peak learning rate of AdamW, of an adapter."""
    batch_size: int = Field(default=256, ge=1)
    """Replies per optimizer step."""
    rank: int = Field(default=32, ge=1)
    """Rank of the adapter; without `lora` it is merged into the model at the end. M1's own adapter keeps its rank."""
    alpha: int = Field(default=32, ge=1)
    """The adapter's update is scaled by alpha / rank."""
    top_k: int = Field(default=20, ge=1)
    """Largest logits of the teacher that are stored for each token."""
    temperature: float = Field(default=1.5, gt=0)
    """Distillation temperature."""
    kd_weight: float = Field(default=0.5, ge=0)
    """Weight of the KL divergence from the teacher, which is scaled by the squared temperature."""
    ce_weight: float = Field(default=0.5, ge=0)
    """Weight of the cross-entropy with the reply itself."""
    renormalize: bool = True
    """Renormalize the teacher's stored probabilities to sum to 1; false: the sum over them is partial."""
    student_support: Literal["full", "topk"] = "full"
    """`topk` restricts the student to the stored tokens too."""
    hint: str | None = None
    """A prompt of your own for the teacher, for example a shorter one for models with few positions: {problem}, at
    least one of {right} and {wrong} (the attempts), and perhaps {ending} (how the domain's answers end). Other braces
    are kept."""
    rollouts: SsbRolloutSettings = SsbRolloutSettings()
    teacher: SsbTeacherSettings = SsbTeacherSettings()

    @field_validator("hint")
    @classmethod
    def _hint_shows_an_attempt(cls, value: str | None) -> str | None:
        matches = list(HINT_FIELD.finditer(value or ""))
        found = {match["name"] for match in matches}
        if unknown := sorted({match["name"] for match in matches if match["latex"] is None} - {*HINT_FIELDS}):
            known = ", ".join(f"{{{name}}}" for name in HINT_FIELDS)
            raise ValueError(f"{{{unknown[0]}}} is no field of a hint; there are {known}")
        if value is not None and not ("problem" in found and found & {"right", "wrong"}):
            raise ValueError(
                f"a hint needs {{problem}} and at least one of {{right}} and {{wrong}}, found {value!r:.80}"
            )
        return value

    @model_validator(mode="after")
    def _some_loss(self) -> "SsbSettings":
        if self.kd_weight + self.ce_weight == 0:
            raise ValueError("kd_weight and ce_weight are both 0, so nothing could be learned; raise one")
        return self

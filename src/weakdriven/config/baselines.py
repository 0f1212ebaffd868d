"""Settings of the baselines: a block of a recipe for each that has any."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from weakdriven.config.settings import Settings, TrainSettings


class NeftuneSettings(Settings):
    """`neftune`: SFT with uniform noise on the input embeddings (Jain et al., 2023)."""

    alpha: float = Field(default=5.0, ge=0)
    """The noise is alpha / sqrt(length * width) times a number from -1 to 1; 0 is plain SFT."""
    length: Literal[True, "padded"] = True
    """`true`: each sequence's own, with no noise on padding. `padded`: the batch's width, noise on all of it."""


class UndialSettings(Settings):
    """`undial`: the published method, or what the WMSS paper describes under its name (docs/methods.md)."""

    mode: Literal["adjusted_logits", "paper_noise"] = "adjusted_logits"
    """`adjusted_logits` (Dong et al., 2024) distils M1 into itself with the true token's logit lowered; `paper_noise`
    is SFT from the base with noise of size sigma / sqrt(length)."""
    strength: float = Field(default=1.0, ge=0)
    """Of `adjusted_logits`: how far the teacher's logit of the true token is lowered."""
    ce_weight: float = Field(default=0.0, ge=0)
    """Of `adjusted_logits`: weight of the cross-entropy with the true token, added to the loss."""
    sigma: float = Field(default=1.0, ge=0)
    """Of `paper_noise`: how much noise; 0 is plain SFT."""
    site: Literal["target_logit", "logits", "embedding"] = "target_logit"
    """Of `paper_noise`: noise on the true token's logit, on every logit, or on the input embeddings."""
    sign: Literal["signed", "abs"] = "signed"
    """Of `paper_noise`: `abs` only ever lowers a logit."""

    @model_validator(mode="after")
    def _of_one_mode(self) -> "UndialSettings":
        for name, default in self.defaults(other := OTHER_MODE[self.mode]).items():
            if getattr(self, name) != default:
                raise ValueError(f"{name} is of mode {other}, but mode is {self.mode}; remove one of them")
        if self.site == "embedding" and self.sign == "abs":
            raise ValueError("sign abs lowers logits, but site is embedding; use sign: signed, or another site")
        return self

    @staticmethod
    def defaults(mode: str) -> dict[str, Any]:
        """The settings that only this mode has."""
        own = ("strength", "ce_weight") if mode == "adjusted_logits" else ("sigma", "site", "sign")
        return {name: UndialSettings.model_fields[name].default for name in own}

    def variant(self) -> dict[str, Any]:
        """What ran: the mode and its own settings."""
        return self.model_dump(mode="json", include={"mode", *self.defaults(self.mode)})


OTHER_MODE = {"adjusted_logits": "paper_noise", "paper_noise": "adjusted_logits"}


class RolloutSettings(Settings):
    """Completions of the training prompts that a baseline samples from its own start; `eval` names the engine."""

    samples: int = Field(default=4, ge=1)
    """Completions of each prompt."""
    temperature: float = Field(default=0.8, ge=0)
    """0 takes the most probable token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the most probable tokens that together have this probability."""
    top_k: int | None = Field(default=None, ge=1)
    """Before that, leave only so many most probable tokens; unset: all."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a completion; unset, what the shortest prompt leaves of `data.max_length`. A completion that is
    longer than its own prompt leaves counts as cut: wrong if its answer is, in no pair if that is right."""
    subsample: int | None = Field(default=None, ge=1)
    """Use only so many prompts, drawn at random by the seed; the paper took 20000. Unset: all."""

    @model_validator(mode="after")
    def _samples_can_differ(self) -> "RolloutSettings":
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"temperature is 0, so all {self.samples} samples would be the same; raise it")
        return self


class SpinRolloutSettings(RolloutSettings):
    """SPIN's own: one completion at the model's own temperature."""

    samples: int = Field(default=1, ge=1)
    """Completions of each prompt; each of them is a pair with the data's."""
    temperature: float = Field(default=1.0, ge=0)
    """0 takes the most probable token."""


class SsbRolloutSettings(RolloutSettings):
    """SSB's own: those of DPO, from the 50 most probable tokens."""

    top_k: int | None = Field(default=50, ge=1)
    """Before top-p, leave only so many most probable tokens; null: all."""


class PreferenceSettings(TrainSettings):
    """What DPO and SPIN train with: the paper gives it for SPIN alone."""

    learning_rate: float = Field(default=5e-7, gt=0)
    """Peak learning rate of AdamW."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Gradients are clipped to this global norm."""
    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is held to the one it starts from."""


class DpoSettings(PreferenceSettings):
    """DPO from M1 on its own completions: the first right one of a prompt against the first wrong one."""

    rollouts: RolloutSettings = RolloutSettings()


class SpinSettings(PreferenceSettings):
    """SPIN from M1: the data's completion against the model's own."""

    iterations: int = Field(default=1, ge=1)
    """Each samples anew from the model that the last one gave, which is also its reference."""
    mix_previous: bool = False
    """From the second iteration on, train on the pairs of the one before as well, as the authors' code does."""
    rollouts: SpinRolloutSettings = SpinRolloutSettings()


HINT_FIELDS = ("problem", "right", "wrong", "ending")
HINT_NAMES = ", ".join(f"{{{name}}}" for name in HINT_FIELDS)
HINT_FIELD = re.compile(r"(?P<latex>\\[A-Za-z]+(?:\{\w*\})*|[\^_])?\{(?P<name>[A-Za-z]\w+)\}")
"""A word in braces; after a command, as in LaTeX, it is one of ours only if it has its name."""


def is_unknown(field: re.Match[str]) -> bool:
    return field["latex"] is None and field["name"] not in HINT_FIELDS


class SsbTeacherSettings(Settings):
    """How SSB's teacher, which is the model itself with a hint in its prompt, writes the reply to learn from."""

    temperature: float = Field(default=0.4, ge=0)
    """0 takes the most probable token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the most probable tokens that together have this probability."""
    top_k: int | None = Field(default=50, ge=1)
    """Before that, leave only so many most probable tokens; null: all."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a reply; unset, `data.max_length`, or what the model's positions leave of it."""
    max_prompt_tokens: int = Field(default=12288, ge=1)
    """Hinted prompts that are longer are left out and counted, never cut."""


class SsbSettings(TrainSettings):
    """SSB: the model learns, without the hint, what it answers with a right and a wrong attempt before its eyes."""

    start: Literal["base", "sft"] = "base"
    """Which model attempts, teaches and learns: M0, or M1, as the paper has it for Gemma."""
    epochs: int = Field(default=2, ge=1)
    """Passes over the replies."""
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
    """At which teacher and student are compared."""
    kd_weight: float = Field(default=0.5, ge=0)
    """Weight of the divergence from the teacher, which is scaled by the square of the temperature."""
    ce_weight: float = Field(default=0.5, ge=0)
    """Weight of the cross-entropy with the reply itself."""
    renormalize: bool = True
    """The stored probabilities are made to add up to 1; false: they stay as they are, and the sum is partial."""
    student_support: Literal["full", "topk"] = "full"
    """`topk` compares over the stored tokens alone, also on the student's side."""
    hint: str | None = None
    """What the teacher is asked, in words of your own: {problem} and {right} or {wrong} (the attempts), perhaps
    {ending} (how the domain's answers end). Other braces stay as they are. For models with too few positions for our
    wording, for instance."""
    rollouts: SsbRolloutSettings = SsbRolloutSettings()
    teacher: SsbTeacherSettings = SsbTeacherSettings()

    @field_validator("hint")
    @classmethod
    def _hint_shows_an_attempt(cls, value: str | None) -> str | None:
        found = {match["name"] for match in HINT_FIELD.finditer(value or "")}
        if unknown := sorted(match["name"] for match in HINT_FIELD.finditer(value or "") if is_unknown(match)):
            raise ValueError(f"{{{unknown[0]}}} is no field of a hint; there are {HINT_NAMES}")
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

"""Settings of the baselines: one group in a recipe for each baseline that has settings."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from weakdriven.config.settings import Settings, TrainSettings


class NeftuneSettings(Settings):
    """`neftune`: SFT with uniform noise on the input embeddings (Jain et al., 2023)."""

    alpha: float = Field(default=5.0, ge=0)
    """Scale of the noise, which is uniform in [-1, 1] times alpha / sqrt(length * width); 0 is plain SFT."""
    length: Literal[True, "padded"] = True
    """`true` uses the length of each sequence, without noise on padding; `padded` the padded length, with noise on
    it."""


OF_UNDIAL_MODE = {"adjusted_logits": ("strength", "ce_weight"), "paper_noise": ("sigma", "site", "sign")}
"""Settings that belong to one mode only."""


class UndialSettings(Settings):
    """`undial`: the published method, or the one that the WMSS paper describes under this name
    (docs/concepts/choices.md)."""

    mode: Literal["adjusted_logits", "paper_noise"] = "adjusted_logits"
    """`adjusted_logits` (Dong et al., 2024) distils M1 into itself with the true token's logit lowered; `paper_noise`
    is SFT of the base with noise of scale sigma / sqrt(length)."""
    strength: float = Field(default=1.0, ge=0)
    """For `adjusted_logits`: amount by which the teacher's logit of the true token is lowered."""
    ce_weight: float = Field(default=0.0, ge=0)
    """For `adjusted_logits`: weight of the cross-entropy with the true token, added to the loss."""
    sigma: float = Field(default=1.0, ge=0)
    """For `paper_noise`: scale of the noise; 0 is plain SFT."""
    site: Literal["target_logit", "logits", "embedding"] = "target_logit"
    """For `paper_noise`: add the noise to the true token's logit, to every logit, or to the input embeddings."""
    sign: Literal["signed", "abs"] = "signed"
    """For `paper_noise`: with `abs` the noise only lowers logits."""

    @model_validator(mode="after")
    def _of_one_mode(self) -> "UndialSettings":
        other = "paper_noise" if self.mode == "adjusted_logits" else "adjusted_logits"
        for name in OF_UNDIAL_MODE[other]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} belongs to mode {other}, but mode is {self.mode}; remove one of them")
        if self.site == "embedding" and self.sign == "abs":
            raise ValueError("sign abs lowers logits, but site is embedding; use sign: signed, or another site")
        return self

    def variant(self) -> dict[str, Any]:
        """Return the mode and its settings, for manifests."""
        return self.model_dump(mode="json", include={"mode", *OF_UNDIAL_MODE[self.mode]})


class RolloutSettings(Settings):
    """Rollouts: completions of the training prompts, sampled with `eval.engine` from the model a baseline starts
    from."""

    samples: int = Field(default=4, ge=1)
    """Completions per prompt."""
    temperature: float = Field(default=0.8, ge=0)
    """Sampling temperature; 0 is greedy decoding."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the most probable tokens that together have this probability."""
    top_k: int | None = Field(default=None, ge=1)
    """Sample from this many most probable tokens, before top-p (default: all)."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a completion (default: what `data.max_length` leaves after the shortest prompt). A completion
    that does not fit after its own prompt counts as truncated: with a wrong answer it is wrong, with a right answer it
    is in no pair."""
    subsample: int | None = Field(default=None, ge=1)
    """Use only this many prompts, drawn at random with the seed (default: all). The paper used 20000 for math."""

    @model_validator(mode="after")
    def _samples_can_differ(self) -> "RolloutSettings":
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"temperature is 0, so all {self.samples} samples would be the same; raise it")
        return self


class RftSettings(Settings):
    """`rft`: train M1 further, with the settings of `joint`, on the data and on its own verified completions."""

    rollouts: RolloutSettings = RolloutSettings()


class SpinRolloutSettings(RolloutSettings):
    """SPIN's rollouts: one completion at temperature 1."""

    samples: int = Field(default=1, ge=1)
    """Completions per prompt; each is paired with the completion in the data."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy decoding."""


class SsbRolloutSettings(RolloutSettings):
    """SSB's rollouts: like those of DPO, but from the 50 most probable tokens."""

    top_k: int | None = Field(default=50, ge=1)
    """Sample from this many most probable tokens, before top-p; null: all."""


class PreferenceSettings(TrainSettings):
    """Training of DPO and SPIN; the paper gives these values for SPIN only."""

    learning_rate: float = Field(default=5e-7, gt=0)
    """Peak learning rate of AdamW."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Maximum global norm of the gradients; larger gradients are clipped to it."""
    beta: float = Field(default=0.1, gt=0)
    """DPO's beta: how strongly the model is kept close to its reference."""

    def loss(self) -> dict[str, float]:
        """Return the settings of the loss, without terms of weight 0, so that finished older runs stay valid."""
        return {"beta": self.beta}


class DpoSettings(PreferenceSettings):
    """DPO of M1 on its own completions: the first right completion of a prompt is preferred to the first wrong one."""

    sft_weight: float = Field(default=0.0, ge=0)
    """Weight of the preferred completions' cross-entropy (mean over the tokens of a micro-batch), which is added to the
    loss."""
    rollouts: RolloutSettings = RolloutSettings()

    def loss(self) -> dict[str, float]:
        return super().loss() | ({"sft_weight": self.sft_weight} if self.sft_weight else {})


class SpinSettings(PreferenceSettings):
    """SPIN of M1: the completion in the data is preferred to the model's own."""

    iterations: int = Field(default=1, ge=1)
    """Number of iterations; each samples from the model of the previous one, which is also its reference."""
    mix_previous: bool = False
    """From the second iteration on, also train on the pairs of the previous one, as the authors' code does."""
    rollouts: SpinRolloutSettings = SpinRolloutSettings()


HINT_FIELDS = ("problem", "right", "wrong", "ending")
HINT_FIELD = re.compile(r"(?P<latex>\\[A-Za-z]+(?:\{\w*\})*|[\^_])?\{(?P<name>[A-Za-z]\w+)\}")
"""A word in braces; after a LaTeX command it counts as a field only if its name is in HINT_FIELDS."""


class SsbTeacherSettings(Settings):
    """How SSB's teacher generates replies to learn from; the teacher is the same model with a hint in its prompt."""

    temperature: float = Field(default=0.4, ge=0)
    """Sampling temperature; 0 is greedy decoding."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the most probable tokens that together have this probability."""
    top_k: int | None = Field(default=50, ge=1)
    """Sample from this many most probable tokens, before top-p; null: all."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a reply (default: `data.max_length`, or fewer if the model has fewer positions left)."""
    max_prompt_tokens: int = Field(default=12288, ge=1)
    """Longer prompts with hints are left out and counted, never truncated."""


class SsbSettings(TrainSettings):
    """SSB: the model learns to reply without a hint as it does with a right and a wrong attempt in its prompt."""

    start: Literal["base", "sft"] = "base"
    """The model that samples attempts, teaches and learns: M0, or M1 as in the paper for Gemma."""
    epochs: int = Field(default=2, ge=1)
    """Passes over the teacher's replies."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Peak learning rate of the adapter."""
    batch_size: int = Field(default=256, ge=1)
    """Replies per optimizer step."""
    rank: int = Field(default=32, ge=1)
    """Rank of the adapter, which is merged into the model at the end unless `lora` is set. If M1 has an adapter, that
    keeps its rank."""
    alpha: int = Field(default=32, ge=1)
    """The adapter's update is scaled by alpha / rank."""
    top_k: int = Field(default=20, ge=1)
    """Number of the teacher's largest logits that are stored per token."""
    temperature: float = Field(default=1.5, gt=0)
    """Distillation temperature."""
    kd_weight: float = Field(default=0.5, ge=0)
    """Weight of the KL divergence from the teacher, which is multiplied by the squared temperature."""
    ce_weight: float = Field(default=0.5, ge=0)
    """Weight of the cross-entropy on the reply itself."""
    renormalize: bool = True
    """Renormalize the teacher's stored probabilities to sum to 1; if false, the loss is a partial sum over them."""
    student_support: Literal["full", "topk"] = "full"
    """`topk` restricts the student's distribution to the stored tokens too."""
    hint: str | None = None
    """Your own prompt for the teacher, such as a shorter one for models with few positions. It must contain {problem}
    and at least one of {right} and {wrong} (the attempts); {ending} (how answers of the domain end) is optional. Other
    braces are kept."""
    rollouts: SsbRolloutSettings = SsbRolloutSettings()
    teacher: SsbTeacherSettings = SsbTeacherSettings()

    @field_validator("hint")
    @classmethod
    def _hint_shows_an_attempt(cls, value: str | None) -> str | None:
        matches = list(HINT_FIELD.finditer(value or ""))
        found = {match["name"] for match in matches}
        if unknown := sorted({match["name"] for match in matches if match["latex"] is None} - {*HINT_FIELDS}):
            known = ", ".join(f"{{{name}}}" for name in HINT_FIELDS)
            raise ValueError(f"{{{unknown[0]}}} is not a field of a hint; expected {known}")
        if value is not None and not ("problem" in found and found & {"right", "wrong"}):
            raise ValueError(
                f"a hint needs {{problem}} and at least one of {{right}} and {{wrong}}, found {value!r:.80}"
            )
        return value

    @model_validator(mode="after")
    def _some_loss(self) -> "SsbSettings":
        if self.kd_weight + self.ce_weight == 0:
            raise ValueError("kd_weight and ce_weight are both 0, so nothing can be learned; raise one")
        return self

"""The recipe: all settings of a run as pydantic models that reject unknown keys."""

from typing import Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from weakdriven.config.baselines import (
    DpoSettings,
    NeftuneSettings,
    RftSettings,
    SpinSettings,
    SsbSettings,
    UndialSettings,
)
from weakdriven.config.data import DataSettings
from weakdriven.config.evaluation import EvalSettings
from weakdriven.config.settings import Settings, SupervisedSettings, refuse_repeats

# fmt: off
Baseline = Literal[
    "sft", "sft_restart", "sft_active", "sft_compute", "uniform_active", "scaled_ce",
    "neftune", "undial", "rft", "spin", "dpo", "ssb",
    "wdjt_only", "wdds_only", "wmss_frozen", "wmss_annealed",
]
# fmt: on
METHODS: tuple[str, ...] = ("wmss", *get_args(Baseline))


class SftSettings(SupervisedSettings):
    """Phase 1: supervised fine-tuning of the base model into M1."""

    model: str | None = None
    """Skip phase 1 and use this model as M1 (folder or Hub id); it must have the base model's tokenizer."""
    keep: Literal["last", "best"] = "last"
    """`best` keeps the weights with the lowest validation loss of all evaluations (`eval_steps`), for M1 and for
    baselines that start from the base."""
    patience: int | None = Field(default=None, ge=1)
    """With `keep: best`: stop training after this many evaluations in a row without a lower validation loss."""

    @model_validator(mode="after")
    def _best_of_evaluations(self) -> "SftSettings":
        if self.patience is not None and self.keep != "best":
            raise ValueError("patience is set, but keep is last, so no best model is tracked; set keep: best")
        if self.patience is not None and self.snapshots:
            raise ValueError("patience may end training before one of the snapshots; remove patience or snapshots")
        return self


class SelectionSettings(Settings):
    """WD-DS: draw the active set from the entropies of the weak and the strong model (paper Sec. 4.2)."""

    enabled: bool = True
    """If false, joint training uses every example (the paper's "WD-JT only")."""
    consolidation: float = Field(default=0.1, ge=0)
    """Weight on entropy that fell from weak to strong. Paper: alpha."""
    difficulty: float = Field(default=0.8, ge=0)
    """Weight on the strong model's entropy. Paper: beta."""
    repair: float = Field(default=0.1, ge=0)
    """Weight on entropy that rose from weak to strong. Paper: gamma."""
    formula: Literal["paper", "official"] = "paper"
    """`paper`: the printed equation. `official`: what the authors' code computes (docs/concepts/choices.md)."""
    multiplier: float = Field(default=1.0, gt=0)
    """Number of draws as a multiple of the number of examples; draws are with replacement."""
    dedup: bool = True
    """Drop repeated draws, as the paper does; the authors' code keeps them."""
    match_steps: bool = False
    """Matched steps: repeat the active set until its epoch has the steps of an epoch over all examples."""
    batch_tokens: int = Field(default=32768, ge=1)
    """Maximum tokens, with padding, in one forward pass of the entropy scan."""
    strong_scores: Literal["scan", "training"] = "scan"
    """Where M1's entropies come from. `scan` runs M1 over all examples. `training` records them during M1's last epoch
    at no extra cost; each example then has its entropy under the weights of its own step. Needs trl 1.15."""
    reuse: list[str] = Field(default=[])
    """Other run directories, or their score files: scores of the same model on the same tokens are reused."""

    _no_repeats = field_validator("reuse")(refuse_repeats)

    @field_validator("reuse", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _some_weight(self) -> "SelectionSettings":
        if self.consolidation + self.difficulty + self.repair == 0:
            raise ValueError("consolidation, difficulty and repair are all 0, so nothing can be drawn; raise one")
        return self


SAVED: dict[str, Literal["bf16", "fp16", "fp32"]] = {
    "bf16-mixed": "bf16",
    "bf16": "bf16",
    "fp16-mixed": "fp16",
    "fp32": "fp32",
}


class JointSettings(SupervisedSettings):
    """WD-JT: train the weak and the strong model together on their mixed logits (paper Sec. 4.1)."""

    enabled: bool = True
    """If false, the strong model is trained by plain SFT on the active set (the paper's "WD-DS only")."""
    rounds: int = Field(default=1, ge=1)
    """Number of rounds of selection and joint training; round t pairs M_{t-1} with M_t. Paper: K."""
    strong_weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the strong model's logits in the mixture. Paper: lambda."""
    strong_weight_end: float | None = Field(default=None, ge=0, le=1)
    """`strong_weight` at the end of the round, such as 1.0 (default: constant, as in the paper)."""
    strong_weight_schedule: Literal["linear", "cosine"] = "linear"
    """How `strong_weight` changes to `strong_weight_end`."""
    strong_anchor: float = Field(default=0.0, ge=0)
    """Weight of the strong model's own cross-entropy, which is added to the mixed loss; 0 in the paper."""
    weak_learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate of the weak model (default: `learning_rate`)."""
    weak: Literal["joint", "frozen"] = "joint"
    """`joint` trains the weak model together with the strong one; `frozen` only runs it forward."""
    weak_snapshot: float | None = None
    """In round 1, use an earlier snapshot of M1 as the weak model: a fraction of its training that is in
    `sft.snapshots` (default: M0). Later rounds use M_{t-1}."""
    save_weak: bool = False
    """Also save the trained weak model, in round-N/strong/weak."""

    @property
    def mixes(self) -> bool:
        """Whether a round trains on mixed logits: not if all weight is on the strong model, which is plain SFT."""
        return self.enabled and (self.strong_weight < 1 or self.strong_weight_end not in (None, 1))

    def mixing(self) -> dict[str, Any]:
        """Return the mixing settings under their names in `WDJTConfig`, with defaults for those without effect."""
        end = None if self.strong_weight_end == self.strong_weight else self.strong_weight_end
        weak_rate = None if self.weak_learning_rate == self.learning_rate else self.weak_learning_rate
        return {
            "strong_weight": self.strong_weight,
            "strong_weight_end": end,
            "strong_weight_schedule": "linear" if end is None else self.strong_weight_schedule,
            "strong_anchor": self.strong_anchor,
            "weak_learning_rate": weak_rate,
        }


class LoraSettings(Settings):
    """LoRA adapters over the frozen base, which all models of the run share."""

    rank: int = Field(default=16, ge=1)
    """Rank of each adapted layer's update."""
    alpha: int = Field(default=32, ge=1)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the inputs of adapters."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Layers to adapt: `all-linear` (all but the output head), or a list of names such as [q_proj, v_proj]."""
    quantize: Literal["4bit"] | None = None
    """`4bit` keeps the frozen base in 4 bits (QLoRA: NF4, computing in bf16); needs CUDA and bitsandbytes."""
    output: Literal["adapter", "merged"] = "adapter"
    """`adapter`: model folders contain adapters. `merged`: also write <run>/merged, the final model with its adapter
    merged. Changing this setting retrains nothing."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        names = value if isinstance(value, list) else []
        if value != "all-linear" and not (names and all(isinstance(name, str) and name for name in names)):
            raise ValueError(f"expected all-linear or a list of names, such as [q_proj, v_proj], found {value}")
        return value if value == "all-linear" else refuse_repeats(names)


class Recipe(Settings):
    """All settings of a run."""

    name: str = Field(default="recipe", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run (default: the recipe's file name). Using a run directory of another name is an error."""
    method: Literal["wmss", Baseline] = "wmss"
    """`wmss` is the paper's method; the name of a baseline trains that baseline alone."""
    model: str
    """The base model M0: a folder, a Hub id, or `embedded:base`."""
    data: DataSettings
    sft: SftSettings = SftSettings()
    selection: SelectionSettings = SelectionSettings()
    joint: JointSettings = JointSettings()
    rft: RftSettings = RftSettings()
    dpo: DpoSettings = DpoSettings()
    spin: SpinSettings = SpinSettings()
    ssb: SsbSettings = SsbSettings()
    eval: EvalSettings = EvalSettings()
    neftune: NeftuneSettings = NeftuneSettings()
    undial: UndialSettings = UndialSettings()
    lora: LoraSettings | None = None
    """Train LoRA adapters instead of all weights, in every phase and baseline; `lora: {}` uses the defaults."""
    baselines: list[Baseline] = Field(default=[])
    """Baselines to train on the same data and evaluate next to the method.

    `sft`: SFT of the base for all epochs of WMSS. `sft_restart`: SFT of M1 with a fresh optimizer, as in WMSS.
    `sft_active`: SFT of M1 on the active set. `sft_compute`: SFT at matched compute. `uniform_active`: WMSS on an
    active set of the same size, drawn uniformly. `scaled_ce`: M1 on its own logits times `joint.strong_weight`.
    `wdjt_only`: WMSS without selection. `wdds_only`: WMSS without joint training. `wmss_frozen`: WMSS with a frozen
    weak model. `wmss_annealed`: WMSS with `joint.strong_weight_end: 1`. `neftune`, `undial`, `rft`, `spin`, `dpo` and
    `ssb` are described in their own groups."""
    precision: Literal["bf16-mixed", "bf16", "fp16-mixed", "fp32"] = "bf16-mixed"
    """`bf16-mixed` computes in bf16 with fp32 master weights; `bf16` keeps weights and optimizer state in bf16.
    `fp16-mixed`, or `fp16`, is for GPUs without bf16 (T4, V100); it scales the loss so that small gradients do not
    underflow.

    With `lora`, both bf16 settings keep the frozen base in bf16 and the adapters in fp32. The adapters' products are
    computed in bf16 with `bf16-mixed` and in fp32 with `bf16`."""
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"] | None = None
    """Attention implementation (default: transformers chooses)."""
    fast_layers: Literal["auto", "liger", "off"] = "auto"
    """Train with Liger's fused norms, rotary embedding and MLP activation. `auto` uses them on CUDA if liger-kernel is
    installed and supports the model type. Results differ by rounding."""
    chat_template: str | None = None
    """Chat template: a file, or the shipped `chatml`, `llama3`, `gemma` or `plain` (default: the tokenizer's own, or
    `plain` if it has none)."""
    trust_remote_code: bool = False
    """Run model code that comes with the checkpoint."""
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Seed of all randomness, such as the order of the data and the draw of the active set."""
    report_to: list[str] = Field(default=[])
    """Experiment trackers, as in transformers' TrainingArguments, such as wandb or tensorboard."""

    _no_repeats = field_validator("baselines", "report_to")(refuse_repeats)

    @field_validator("fast_layers", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false

    @model_validator(mode="after")
    def _switches_leave_something_to_do(self) -> "Recipe":
        if not self.selection.enabled and not self.joint.enabled:
            raise ValueError(
                "selection.enabled and joint.enabled are both false, which leaves only SFT; use method: sft instead"
            )
        joint = self.joint
        if joint.weak == "frozen" and not (joint.strong_weight or joint.strong_weight_end or joint.strong_anchor):
            raise ValueError("joint.strong_weight is 0 and joint.weak is frozen, so nothing is trained; change one")
        if joint.weak == "frozen" and joint.weak_learning_rate is not None:
            raise ValueError("joint.weak_learning_rate is set, but joint.weak is frozen; remove one of them")
        mixing = joint.mixing()
        for name in ("strong_weight_end", "strong_anchor", "weak_learning_rate"):
            if not joint.mixes and mixing[name] != JointSettings.model_fields[name].default:
                why = "strong_weight is 1" if joint.enabled else "enabled is false"
                raise ValueError(f"joint.{name} is set, but joint.{why}, so no logits are mixed; remove one of them")
        if self.selection.match_steps and not self.selection.enabled:
            raise ValueError(
                "selection.match_steps is set, but selection.enabled is false, so every example is used; remove one"
            )
        return self

    @model_validator(mode="after")
    def _training_gives_scores_of_m1(self) -> "Recipe":
        if self.selection.strong_scores == "training" and (self.sft.model or self.sft.keep == "best"):
            why = "sft.model gives a ready M1" if self.sft.model else "sft.keep is best, so M1 is not the last model"
            raise ValueError(f"selection.strong_scores is training, but {why}; set selection.strong_scores: scan")
        return self

    @model_validator(mode="after")
    def _snapshots_are_kept(self) -> "Recipe":
        share, kept = self.joint.weak_snapshot, self.sft.snapshots
        if share is not None and self.sft.model:
            raise ValueError("joint.weak_snapshot is a snapshot of phase 1, which sft.model skips; remove one of them")
        if share is not None and share not in kept:
            raise ValueError(f"joint.weak_snapshot is {share}, which is not in sft.snapshots {kept}; add it there")
        phases = (self.sft, self.joint, self.dpo, self.spin, self.ssb)
        if self.eval.snapshots and not any(phase.snapshots for phase in phases):
            raise ValueError("eval.snapshots is set, but no phase saves any; set sft.snapshots or joint.snapshots")
        return self

    @model_validator(mode="after")
    def _evaluations_have_rows(self) -> "Recipe":
        rows = "data.validation (a source of rows) or data.validation_share (such as 0.05)"
        if self.sft.keep == "best" and (self.sft.eval_steps is None or not self.data.validates):
            missing = [] if self.sft.eval_steps is not None else ["sft.eval_steps (such as 0.1)"]
            missing += [] if self.data.validates else [rows]
            raise ValueError(
                f"sft.keep is best, which needs evaluations on validation rows; set {' and '.join(missing)}"
            )
        for name in ("sft", "joint"):
            if getattr(self, name).eval_steps is not None and not self.data.validates:
                raise ValueError(f"{name}.eval_steps is set, but there are no validation rows; set {rows}")
        if self.sft.patience is not None and "sft_compute" in (self.method, *self.baselines):
            raise ValueError(
                "sft_compute is SFT at matched compute, but sft.patience may stop training early; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _baselines_can_be_compared(self) -> "Recipe":
        if self.method in self.baselines:
            raise ValueError(f"method {self.method} is also in baselines; remove it there")
        from_base = {"sft", "neftune"} | ({"undial"} if self.undial.mode == "paper_noise" else set())
        if self.method in from_base and self.sft.model:
            raise ValueError(
                f"sft.model gives a ready M1, but method {self.method} trains from the base; remove one of them"
            )
        asked = [self.method, *self.baselines]
        for name in ("sft_active", "uniform_active", "wdds_only"):
            if name in asked and not self.selection.enabled:
                raise ValueError(f"{name} needs the active set, but selection.enabled is false; remove one of them")
        joint = self.joint
        if "wmss_frozen" in asked and not (joint.strong_weight or joint.strong_weight_end or joint.strong_anchor):
            raise ValueError("wmss_frozen with joint.strong_weight 0 trains nothing; remove one of them")
        if "scaled_ce" in asked:
            if joint.strong_weight == 0:
                raise ValueError("scaled_ce multiplies logits by joint.strong_weight, which is 0; raise it")
            for name in ("strong_weight_end", "strong_anchor"):
                if joint.mixing()[name]:
                    raise ValueError(
                        f"scaled_ce needs a constant joint.strong_weight, but joint.{name} is set; remove one of them"
                    )
        for name in ("rft", "spin", "dpo", "ssb"):
            sampled = getattr(self, name).rollouts.temperature > 0
            if self.eval.batching == "continuous" and sampled and name in asked:
                raise ValueError(
                    f"eval.batching is continuous, which cannot seed the samples that {name} draws; use auto"
                )
        return self

    @field_validator("precision", mode="before")
    @classmethod
    def _fp16_is_mixed(cls, value: Any) -> Any:
        return "fp16-mixed" if value == "fp16" else value

    @model_validator(mode="after")
    def _precisions_fit(self) -> "Recipe":
        for name in ("sft", "joint", "dpo", "spin", "ssb"):
            if getattr(self, name).optimizer != "adamw_bf16":
                continue
            if self.lora or name == "ssb":
                raise ValueError(
                    f"{name}.optimizer adamw_bf16 is for weights in bf16, but {'lora' if self.lora else name} trains "
                    "fp32 adapters; set optimizer: adamw or adamw_8bit"
                )
            if self.precision != "bf16":
                raise ValueError(
                    f"{name}.optimizer adamw_bf16 is for weights in bf16, but precision is {self.precision}; set "
                    "precision: bf16, or optimizer: adamw or adamw_8bit"
                )
        if self.lora and self.lora.quantize and self.precision in ("fp32", "fp16-mixed"):
            raise ValueError(
                f"lora.quantize 4bit computes in bf16, but precision is {self.precision}; set precision: bf16-mixed"
            )
        return self

    @property
    def saved_precision(self) -> Literal["bf16", "fp16", "fp32"]:
        """Precision of saved and frozen models, of evaluation and of scans."""
        return SAVED[self.precision]

    @property
    def samples_rollouts(self) -> bool:
        """Whether a method of the run generates completions of training prompts."""
        return not {"rft", "dpo", "spin", "ssb"}.isdisjoint([self.method, *self.baselines])

    @property
    def budget_epochs(self) -> int:
        """Epochs of SFT that match all epochs of WMSS."""
        return self.sft.epochs + self.joint.rounds * self.joint.epochs

    @property
    def student_lora(self) -> LoraSettings:
        """The adapter of SSB's student."""
        size = self.ssb.model_dump(include={"rank", "alpha"})
        return self.lora.model_copy(update=size) if self.lora else LoraSettings(**size)

"""A recipe: strict settings for a whole run."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# fmt: off
Benchmark = Literal[
    "arithmetic",
    "aime2025", "math500", "amc23", "aqua", "gsm8k", "mawps", "svamp",
    "humaneval_plus", "mbpp_plus", "bigcodebench", "livecodebench",
    "logiqa2", "reclor",
]
# fmt: on
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"samples": 1, "temperature": 0.0, "top_p": 1.0, "k": [1]},
    "passk": {"samples": 64, "temperature": 0.7, "top_p": 0.95, "k": [1, 4, 8, 16, 32, 64]},
}
"""The paper's two ways of asking: one greedy answer, and many samples for pass@k."""


class Settings(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def refuse_repeats(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError(f"names a thing twice: {', '.join(values)}")
    return values


class DataSettings(Settings):
    """What the models learn from, and how a row becomes tokens."""

    path: str
    """JSONL, JSON (both also .gz or .zst) or Parquet file, `embedded:arithmetic`, or a Hub dataset: `owner/name`, or
    `owner/name:configuration`."""
    split: str = "train"
    """Split of a Hub dataset."""
    domain: Literal["math", "code", "logic"] = "math"
    """Chooses the system prompt, together with `style`, for rows that name no domain of their own."""
    style: Literal["tagged", "tag-free", "plain"] = "tagged"
    """`tagged` asks for <think> and <answer>, `tag-free` does not (Gemma), `plain` adds no system prompt."""
    max_length: int = Field(default=4096, ge=8)
    """Tokens of prompt and completion together; longer completions are cut on the right and counted."""
    long_prompts: Literal["error", "drop"] = "error"
    """What to do with rows whose prompt leaves no room for a supervised token."""
    empty_completions: Literal["error", "drop"] = "error"
    """What to do with rows whose completion is missing or blank; `drop` leaves them out and counts them."""
    held_out: Literal["error", "drop", "allow"] = "error"
    """What to do with rows that ask a question of a benchmark in `eval.benchmarks`, in the same words.

    `drop` leaves them out and counts them; `allow` trains on them."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first rows."""


class TrainSettings(Settings):
    """One training phase, with its own optimizer and schedule."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the data of this phase."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate of AdamW."""
    batch_size: int = Field(default=512, ge=1)
    """Examples per optimizer step, over all devices and accumulated micro-batches."""
    micro_batch_size: int = Field(default=1, ge=1)
    """Examples per device in one forward pass."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this global norm."""
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    """What the learning rate does after warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's two running means."""
    optimizer: Literal["adamw", "adamw_bf16", "adamw_8bit", "adamw_fp8"] = "adamw"
    """AdamW with its state in the precision of the weights, in bf16, in 8 bits, or in fp8 (all but the first: torchao).

    Under `precision: bf16` an update of 1e-5 is smaller than the spacing of most weights, so `adamw` loses it. The
    others round it up or down by chance, so that it is kept on average."""
    gradient_checkpointing: Literal[True, False, "keep_attention", "keep_products"] = True
    """Recompute activations in the backward pass: a fifth more time, far less memory. `keep_attention` keeps what
    attention gave; `keep_products` what every matrix product gave too: hardly more time, less of a saving."""
    activation_offloading: bool = False
    """Move saved activations to the CPU's memory until the backward pass needs them; slower, for long sequences."""
    save_steps: int = Field(default=50, ge=1)
    """Optimizer steps between checkpoints; a killed run goes on from the last one."""
    logging_steps: int = Field(default=1, ge=1)
    """Optimizer steps between lines in metrics.jsonl."""

    @field_validator("adam_betas", mode="before")
    @classmethod
    def _two_shares(cls, value: Any) -> Any:
        pair = list(value) if isinstance(value, list | tuple) else []
        if len(pair) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in pair):
            raise ValueError(f"expected two numbers from 0 to below 1, such as [0.9, 0.999], found {value}")
        return float(pair[0]), float(pair[1])

    @model_validator(mode="after")
    def _batch_is_whole_micro_batches(self) -> "TrainSettings":
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}; "
                "choose a micro_batch_size that divides it"
            )
        return self


class SftSettings(TrainSettings):
    """Phase 1: supervised fine-tuning of the base model into M1."""

    model: str | None = None
    """A ready M1 (folder or Hub id) with the base model's tokenizer; phase 1 is then skipped."""


class SelectionSettings(Settings):
    """WD-DS: how two entropy columns become an active dataset (paper Sec. 4.2)."""

    enabled: bool = True
    """Off: joint training uses every example (the paper's "WD-JT only")."""
    consolidation: float = Field(default=0.1, ge=0)
    """Weight on entropy that fell from weak to strong. Paper: alpha."""
    difficulty: float = Field(default=0.8, ge=0)
    """Weight on the strong model's entropy. Paper: beta."""
    repair: float = Field(default=0.1, ge=0)
    """Weight on entropy that rose from weak to strong. Paper: gamma."""
    formula: Literal["paper", "official"] = "paper"
    """`paper` is the printed equation; `official` what the authors' code computes (docs/methods.md)."""
    multiplier: float = Field(default=1.0, gt=0)
    """Draws per example, with replacement."""
    dedup: bool = True
    """Drop repeated draws, as the paper does; the authors' code keeps them."""
    match_steps: bool = False
    """Train as many steps as an epoch over all examples has, by going through the active set again and again."""
    batch_tokens: int = Field(default=32768, ge=1)
    """Padded tokens in one forward pass of the entropy scan."""
    reuse: list[str] = []
    """Other run directories, or score files of theirs: scores of the same model on the same tokens are taken over."""

    _no_repeats = field_validator("reuse")(refuse_repeats)

    @field_validator("reuse", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _some_weight(self) -> "SelectionSettings":
        if self.consolidation + self.difficulty + self.repair == 0:
            raise ValueError("consolidation, difficulty and repair are all 0, so nothing could be drawn; raise one")
        return self


class JointSettings(TrainSettings):
    """WD-JT: training weak and strong together on their mixed logits (paper Sec. 4.1)."""

    enabled: bool = True
    """Off: plain SFT of the strong model on the active set (the paper's "WD-DS only")."""
    rounds: int = Field(default=1, ge=1)
    """Rounds of selection and joint training; round t pairs M_{t-1} with M_t. Paper: K."""
    strong_weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the strong model's logits in the mixture. Paper: lambda."""
    strong_weight_end: float | None = Field(default=None, ge=0, le=1)
    """What `strong_weight` moves to over the round, such as 1.0; unset, as in the paper: it stays."""
    strong_weight_schedule: Literal["linear", "cosine"] = "linear"
    """How `strong_weight` moves to `strong_weight_end`."""
    strong_anchor: float = Field(default=0.0, ge=0)
    """Weight of the strong model's own cross-entropy, added to the mixed one; 0 in the paper."""
    weak_learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate of the weak model; unset: `learning_rate`."""
    weak: Literal["joint", "frozen"] = "joint"
    """Whether the weak model is trained beside the strong one or only runs forward."""
    save_weak: bool = False
    """Keep the trained weak model too, in round-N/strong/weak."""

    def mixing(self) -> dict[str, Any]:
        """How the logits are mixed, under the names of `WDJTConfig`; what has no effect is left at its default."""
        end = None if self.strong_weight_end == self.strong_weight else self.strong_weight_end
        weak_rate = None if self.weak_learning_rate == self.learning_rate else self.weak_learning_rate
        return {
            "strong_weight": self.strong_weight,
            "strong_weight_end": end,
            "strong_weight_schedule": "linear" if end is None else self.strong_weight_schedule,
            "strong_anchor": self.strong_anchor,
            "weak_learning_rate": weak_rate,
        }


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
    longer than its own prompt leaves counts as cut."""
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
    rollouts: SpinRolloutSettings = SpinRolloutSettings()


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
    rollouts: SsbRolloutSettings = SsbRolloutSettings()
    teacher: SsbTeacherSettings = SsbTeacherSettings()

    @model_validator(mode="after")
    def _some_loss(self) -> "SsbSettings":
        if self.kd_weight + self.ce_weight == 0:
            raise ValueError("kd_weight and ce_weight are both 0, so nothing could be learned; raise one")
        return self


class LoraSettings(Settings):
    """Low-rank adapters over the frozen base, which every model of the run then shares."""

    rank: int = Field(default=16, ge=1)
    """Rank of each adapted layer's update."""
    alpha: int = Field(default=32, ge=1)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that is dropped while training."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Layers to adapt: `all-linear` is all but the output head, or names such as [q_proj, v_proj]."""
    quantize: Literal["4bit"] | None = None
    """`4bit` holds the frozen base in 4 bits (QLoRA: NF4, computing in bf16); needs CUDA and bitsandbytes."""
    output: Literal["adapter", "merged"] = "adapter"
    """Model folders hold adapters; `merged` adds <run>/merged, the last model as an ordinary one. Retrains nothing."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        names = value if isinstance(value, list) else []
        if value != "all-linear" and not (names and all(isinstance(name, str) and name for name in names)):
            raise ValueError(f"expected all-linear or a list of names, such as [q_proj, v_proj], found {value}")
        return value if value == "all-linear" else refuse_repeats(names)


class EngineSettings(Settings):
    """What writes completions; none of it changes what is asked."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """`transformers` generates in this process; `vllm` starts a server for each model."""
    vllm_python: str | None = None
    """Python of an environment with vLLM; needed for `engine: vllm`."""
    batch_size: int | None = Field(default=None, ge=1)
    """Answers written together by `transformers`; unset, as many as memory holds, up to 512 (64 on a CPU)."""
    batching: Literal["auto", "static", "continuous"] = "auto"
    """`continuous` is transformers' paged batching, greedy only; `auto` takes it under flash attention."""


class EvalSettings(EngineSettings):
    """Evaluation of every model that the run makes."""

    benchmarks: list[Benchmark] = []
    """Which benchmarks to run, each on every model."""
    data_dir: str | None = None
    """Folder with a file for each benchmark (docs/benchmarks.md); unset, they come from the Hub."""
    preset: Literal["paper", "passk"] = "paper"
    """`paper` takes one greedy answer, `passk` 64 samples at temperature 0.7 and top-p 0.95."""
    samples: int | None = Field(default=None, ge=1)
    """Answers to each item; overrides the preset, as the next three do."""
    temperature: float | None = Field(default=None, ge=0)
    """0 takes the most probable token."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the most probable tokens that together have this probability."""
    k: list[int] | None = None
    """Report pass@k for these; none may be above `samples`."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first items of each benchmark."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Overrides the benchmark's own token budget."""
    max_prompt_tokens: int = Field(default=4096, ge=1)
    """A longer prompt is an error, because a cut one would be another question."""
    code_python: str | None = None
    """Python whose packages generated code may import; unset, this one."""
    unsafe: bool = False
    """Run generated code without isolation where none is available: it may then do all that you may do."""

    _no_repeats = field_validator("benchmarks")(refuse_repeats)

    @model_validator(mode="after")
    def _can_be_reported(self) -> "EvalSettings":
        asked = self.asking()
        if too_many := [k for k in asked["k"] if not 1 <= k <= asked["samples"]]:
            raise ValueError(f"k is {too_many[0]}, but each item has {asked['samples']} samples; raise samples")
        if self.batching == "continuous" and asked["temperature"] > 0:
            raise ValueError("batching is continuous, which cannot seed each sample; use static, or temperature 0")
        if asked["samples"] > 1 and asked["temperature"] == 0:
            raise ValueError(f"temperature is 0, so all {asked['samples']} samples would be the same; raise it")
        return self

    def asking(self) -> dict[str, Any]:
        """Samples, temperature, top-p and k: the preset's, and what overrides it."""
        own = {name: getattr(self, name) for name in PRESETS["paper"] if getattr(self, name) is not None}
        asked = PRESETS[self.preset] | own
        if self.k is None:
            asked["k"] = sorted({1, *(k for k in PRESETS["passk"]["k"] if k <= asked["samples"])})
        return asked


class Recipe(Settings):
    """Everything that decides what a run computes."""

    name: str = Field(default="recipe", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run; the file name unless given. A run directory belongs to one name."""
    method: Literal["wmss", "sft", "dpo", "spin", "ssb"] = "wmss"
    """`wmss` is the paper's method; `sft` trains the same total number of epochs without a weak model. `dpo` and `spin`
    go on from M1 with completions of its own, `ssb` from the base."""
    model: str
    """The base model M0: a folder, a Hub id, or `embedded:base`."""
    data: DataSettings
    sft: SftSettings = SftSettings()
    selection: SelectionSettings = SelectionSettings()
    joint: JointSettings = JointSettings()
    dpo: DpoSettings = DpoSettings()
    spin: SpinSettings = SpinSettings()
    ssb: SsbSettings = SsbSettings()
    eval: EvalSettings = EvalSettings()
    lora: LoraSettings | None = None
    """Train adapters instead of all weights, in every phase and baseline; `lora: {}` takes the defaults."""
    baselines: list[Literal["sft", "dpo", "spin", "ssb"]] = []
    """Controls trained from the same base on the same number of epochs, and evaluated beside the method."""
    precision: Literal["bf16-mixed", "bf16", "fp32"] = "bf16-mixed"
    """`bf16-mixed` computes in bf16 over fp32 master weights; `bf16` keeps weights and optimizer state in bf16.

    With `lora` both hold the frozen base in bf16 and the adapters in fp32; `bf16-mixed` computes the adapters' products
    in bf16, `bf16` in fp32."""
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"] | None = None
    """Attention implementation; unset leaves the choice to transformers."""
    fast_layers: Literal["auto", "liger", "off"] = "auto"
    """Train with Liger's fused norms, rotary embedding and MLP activation. `auto`: on CUDA, where liger-kernel is
    installed and knows the model type. Results differ by rounding."""
    chat_template: str | None = None
    """A chat template for base models whose tokenizer has none: a file, or the shipped `gemma`."""
    trust_remote_code: bool = False
    """Run model code that comes with the checkpoint."""
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Seeds the order of the data, the draw and every random number."""
    report_to: list[str] = []
    """Trackers of transformers' Trainer, such as wandb or tensorboard."""

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
            raise ValueError("joint.strong_weight 0 with a frozen weak model trains nothing; change one of them")
        if joint.weak == "frozen" and joint.weak_learning_rate is not None:
            raise ValueError("joint.weak_learning_rate is set, but joint.weak is frozen; remove one of them")
        mixing = joint.mixing()
        for name in ("strong_weight_end", "strong_anchor", "weak_learning_rate"):
            if not self.mixes and mixing[name] != JointSettings.model_fields[name].default:
                why = "strong_weight is 1" if joint.enabled else "enabled is false"
                raise ValueError(f"joint.{name} is set, but joint.{why}, so no logits are mixed; remove one of them")
        if self.selection.match_steps and not self.selection.enabled:
            raise ValueError(
                "selection.match_steps is set, but selection.enabled is false, so every example is used; remove one"
            )
        if self.method == "sft" and self.sft.model:
            raise ValueError("sft.model gives a ready M1, but method sft trains from the base; remove one of them")
        if self.method == "sft" and self.baselines:
            raise ValueError("method sft is itself the SFT baseline; remove baselines")
        if self.method in self.baselines:
            raise ValueError(f"method {self.method} is among the baselines too; remove it there")
        return self

    @model_validator(mode="after")
    def _bf16_state_has_bf16_weights(self) -> "Recipe":
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
        return self

    @model_validator(mode="after")
    def _four_bits_compute_in_bf16(self) -> "Recipe":
        if self.lora and self.lora.quantize and self.precision == "fp32":
            raise ValueError("lora.quantize 4bit computes in bf16, but precision is fp32; set precision: bf16-mixed")
        return self

    @property
    def mixes(self) -> bool:
        """Whether a round trains on mixed logits: all weight on the strong ones throughout is plain SFT."""
        joint = self.joint
        return joint.enabled and (joint.strong_weight < 1 or joint.strong_weight_end not in (None, 1))

    @property
    def samples_rollouts(self) -> bool:
        """Whether a model of the run is asked for completions of training prompts."""
        return not {"dpo", "spin", "ssb"}.isdisjoint([self.method, *self.baselines])

    @property
    def budget_epochs(self) -> int:
        """Epochs that SFT gets so that it sees as many passes as the whole of WMSS."""
        return self.sft.epochs + self.joint.rounds * self.joint.epochs

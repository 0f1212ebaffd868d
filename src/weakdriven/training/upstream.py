"""Lists every private name of our libraries that this package overrides, calls or reads, and why.

A release may rename or drop them without notice. `tests/training/test_upstream.py` compares this list with the
installed releases and with our source; `require_hooks` and `require_call` stop a training if one is missing.
"""

from importlib.metadata import version
from typing import Any, NamedTuple

from weakdriven.errors import UserError

LIBRARIES = ("transformers", "trl", "accelerate", "peft", "torch")


class Private(NamedTuple):
    """A private name: of a class or module, with its parameters if we override or call it."""

    owner: str
    name: str
    """`name(parameters)` for a method, `name` for an attribute of a class, `.name` for one of its instances."""
    used: str
    """The module of `weakdriven` that uses it."""
    why: str


TRAINER, SFT, DPO = "transformers.Trainer", "trl.SFTTrainer", "trl.DPOTrainer"
CONFIG, MODEL = "transformers.PreTrainedConfig", "transformers.PreTrainedModel"
ATTENTION = "attention's outputs are kept, not recomputed; torch has no public name for its operators"
CHECKPOINT = "checkpoints hold two models, and no callback can replace how they are written and read"
CARD = "what TRL writes into the model card"
PRIVATE = (
    Private(TRAINER, "_save(output_dir, state_dict)", "wmss.pair_checkpoints", CHECKPOINT),
    Private(TRAINER, "_load_best_model()", "training.fsdp", CHECKPOINT),
    Private(
        TRAINER,
        "_push_from_checkpoint(checkpoint_folder)",
        "wmss.pair_checkpoints",
        "it copies the model from the checkpoint, which does not hold a sharded or merged model",
    ),
    Private(TRAINER, "_load_from_checkpoint(resume_from_checkpoint, model)", "training.fsdp", CHECKPOINT),
    Private(TRAINER, "_load_optimizer_and_scheduler(checkpoint)", "training.fsdp", "sharded and whole states load"),
    Private(SFT, "_tag_names", "wmss.trainer", CARD),
    Private(SFT, "_name", "wmss.trainer", CARD),
    Private(SFT, "_paper", "wmss.trainer", CARD),
    Private(SFT, "._total_train_tokens", "training.phase", "TRL counts from 0 when training resumes"),
    Private(DPO, "_prepare_dataset(dataset)", "methods.dpo_spin.trainer", "our pairs have the tokens of SFT"),
    Private(
        DPO,
        "_precompute_ref_logps(dataset, name, batch_size)",
        "methods.dpo_spin.trainer",
        "TRL writes all of its cache at the end; ours survives a kill",
    ),
    Private(CONFIG, "_attn_implementation", "models.head", "which attention is in use; the public name only sets it"),
    Private(CONFIG, "._name_or_path", "wmss.checks", "the source of a loaded model, to find its tokenizer"),
    Private(MODEL, "_no_split_modules", "wmss.pair", "accelerate reads which layers FSDP2 shards as one"),
    Private(MODEL, "_supports_sdpa", "wmss.mixture", "read when a model is loaded with that attention"),
    Private(MODEL, "_supports_flash_attn", "wmss.mixture", "likewise"),
    Private(MODEL, "_supports_flex_attn", "wmss.mixture", "likewise"),
    Private(MODEL, "_supports_attention_backend", "wmss.mixture", "likewise"),
    Private(MODEL, "_can_set_attn_implementation()", "models.row_attention", "whether a model supports our attention"),
    Private(MODEL, "_can_compile_fullgraph", "eval.generate.decode", "whether a CUDA graph can capture a step"),
    Private(
        "transformers.GenerationMixin", "_supports_default_dynamic_cache()", "wmss.mixture", "whether both can cache"
    ),
    Private(
        "transformers.GenerationMixin",
        "_prepare_cache_for_generation(generation_config, model_kwargs)",
        "wmss.mixture",
        "generate would make a single cache",
    ),
    Private("torchao.optim", "_AdamW", "training.optimizer", "AdamW8bit without the 8 bits; exported, private by name"),
    Private("torch._C", "_cuda_endAllocateToPool", "eval.generate.graphs", "torch before 2.12 leaves the pool open"),
    Private("torch.ops.aten", "_grouped_mm", "models.recompute", ATTENTION),
    Private("torch.ops.aten", "_scaled_dot_product_flash_attention", "models.recompute", ATTENTION),
    Private("torch.ops.aten", "_scaled_dot_product_flash_attention_for_cpu", "models.recompute", ATTENTION),
    Private("torch.ops.aten", "_scaled_dot_product_efficient_attention", "models.recompute", ATTENTION),
    Private("torch.ops.aten", "_scaled_dot_product_cudnn_attention", "models.recompute", ATTENTION),
    Private("torch.ops.aten", "_scaled_dot_product_fused_attention_overrideable", "models.recompute", ATTENTION),
    Private("latex2sympy2_extended.latex2sympy2", "_Latex2Sympy", "eval.graders.judge", "math-verify's LaTeX parser"),
    Private("antlr4.Parser", "._interp", "eval.graders.judge", "ANTLR's only switch to its fast first stage"),
)


def require_hooks(trainer: type) -> None:
    """Raise an error if a method that we override is gone: upstream would silently do without our version."""
    for owner in trainer.__mro__:
        for private in PRIVATE:
            method, _, called = private.name.partition("(")
            if called and private.owner.rpartition(".")[2] == owner.__name__ and not hasattr(owner, method):
                refuse_release(f"there is no {private.owner}.{method}")


def require_call(hook: str, called: Any) -> None:
    """Raise an error if a step did not call a hook that carries its NaN check, token count, mixture or loss scale."""
    if not called:
        refuse_release(f"a training step did not call {hook}, on which this trainer relies")


def refuse_release(found: str) -> None:
    installed = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    raise UserError(
        f"In the installed releases, {found} ({installed}). Install the older releases that this version of weakdriven "
        "was tested with, or a newer weakdriven. If a callback or subclass of yours suppressed the call, let it call "
        "the original."
    )

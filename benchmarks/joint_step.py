"""One optimizer step of a weak-strong pair against plain SFT: forward, backward, clipping, AdamW; random weights.

    python benchmarks/joint_step.py                      # Qwen3-4B, 4 x 4096 tokens, bf16 weights and optimizer state
    python benchmarks/joint_step.py --model 8b --variants "pair, all recomputed, fp8 AdamW"

Each variant runs in its own process. Memory is the total peak: weights, gradients, optimizer state, activations.
Utilisation counts the operations of the method (6 per weight and token, and causal attention) without recomputation,
relative to 790 TFLOP/s, the rate of a large bf16 product on an H200.
"""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from common import append, in_own_process, measure
from peft import LoraConfig
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config

from weakdriven.models.adapters import add_adapter, share_frozen, twin
from weakdriven.models.head import causal_lm
from weakdriven.models.liger import use_liger
from weakdriven.models.recompute import keep
from weakdriven.wmss.pair import WeakStrongPair

PEAK = 790e12
SIZES: dict[str, dict[str, Any]] = {
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "tie_word_embeddings": False},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "tie_word_embeddings": True},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "SFT, stock layers, all recomputed": {"pair": False, "liger": False, "keep": "nothing"},
    "SFT, all recomputed": {"pair": False, "keep": "nothing"},
    "SFT, attention kept": {"pair": False, "keep": "attention"},
    "SFT, products kept": {"pair": False, "keep": "products"},
    "SFT, nothing recomputed": {"pair": False, "keep": "all"},
    "pair, stock layers, all recomputed": {"liger": False, "keep": "nothing"},
    "pair, all recomputed": {"keep": "nothing"},
    "pair, all recomputed, fp8 AdamW": {"keep": "nothing", "optimizer": "AdamWFp8"},
    "pair, all recomputed, 8-bit AdamW": {"keep": "nothing", "optimizer": "AdamW8bit"},
    "pair, attention kept, fp8 AdamW": {"keep": "attention", "optimizer": "AdamWFp8"},
    "pair, products kept": {"keep": "products"},
    "pair, products kept, weak frozen": {"keep": "products", "weak_trainable": False},
    "LoRA SFT, all recomputed": {"pair": False, "keep": "nothing", "lora": True},
    "LoRA pair, all recomputed": {"keep": "nothing", "lora": True},
}


class FusedSFT(nn.Module):
    """One model with Liger's fused head and loss, the fastest SFT that we know."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        inner: Any = causal_lm(self.model)
        hidden = inner.model(input_ids=input_ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
        target = labels[:, 1:].flatten()
        return liger_fused_linear_cross_entropy(hidden, inner.lm_head.weight, target, reduction="mean")


def build(size: str, *, liger: bool, keep_what: str) -> Any:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config = Qwen3Config(vocab_size=151936, max_position_embeddings=40960, **heads, **SIZES[size])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if liger:
        use_liger(model)
    if keep_what in ("attention", "products"):
        keep(model, f"keep_{keep_what}")
    if keep_what != "all":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def adapted(base: Any, count: int) -> list[Any]:
    """Make models with a LoRA adapter of rank 16 on every projection, over one base."""
    bases = [base, *(twin(base) for _ in range(count - 1))]
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    models = [add_adapter(model, config, seed=number) for number, model in enumerate(bases)]
    for model in models[1:]:
        share_frozen(models[0], model)
    for model in models:
        model.enable_input_require_grads()
    return models


def flops(model: Any, batch: int, length: int) -> float:
    """Count the operations of one model, forward and backward: products with weights and head, and causal attention."""
    config = model.config
    weights = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed_tokens" not in name)
    if config.tie_word_embeddings:
        weights += config.vocab_size * config.hidden_size
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = config.num_hidden_layers * 2 * length * config.num_attention_heads * width
    return 3.0 * batch * length * (2 * weights + attention)


def run_variant(name: str, size: str, batch: int, length: int, repeats: int) -> dict[str, Any]:
    options = {"pair": True, "liger": True, "lora": False, "optimizer": "bf16", "weak_trainable": True}
    options |= VARIANTS[name]
    count = 2 if options["pair"] else 1
    copies = 1 if options["lora"] else count
    bases = [build(size, liger=options["liger"], keep_what=options["keep"]) for _ in range(copies)]
    work = flops(bases[0], batch, length) * (count if options["weak_trainable"] else 4 / 3)
    models = adapted(bases[0], count) if options["lora"] else bases
    if options["pair"]:
        module: nn.Module = WeakStrongPair(strong=models[0], weak=models[1], weak_trainable=options["weak_trainable"])
    else:
        module = FusedSFT(models[0])
    trained = [p for p in module.parameters() if p.requires_grad]
    if options["optimizer"] == "bf16":
        optimizer: Any = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    else:
        optimizer = getattr(import_module("torchao.optim"), options["optimizer"])(
            trained, lr=1e-5, bf16_stochastic_round=True
        )
    ids = torch.randint(151936, (batch, length), device="cuda")

    def step() -> None:
        output = module(input_ids=ids, labels=ids)
        (output.loss if options["pair"] else output).backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    row = measure(step, repeats=repeats, warmup=3)
    held = torch.cuda.memory_allocated() / 2**30
    row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    if options["lora"]:  # frozen weights get no gradient, so the count above is too high
        row["note"] = f"weights, adapters and optimizer {held:.2f} GiB"
    else:
        row["note"] = f"MFU {work / row['median_ms'] * 1000 / PEAK:.1%}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="4b")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    about = {"benchmark": "joint_step", "shape": f"qwen3-{options.model} {options.batch}x{options.length}"}
    for name in options.variants:
        row = in_own_process(run_variant, name, options.model, options.batch, options.length, options.repeats)
        if isinstance(row, str):
            print(f"{name:40} not measured: {row}", flush=True)
        else:
            append(options.output, **about, dtype="bfloat16", variant=name, **row)


if __name__ == "__main__":
    main()

"""A small WDJTTrainer for several tests, with its training and its logs."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, MixtralConfig, PrinterCallback

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.models.load import EMBEDDED, locate_model

HERE = Path(__file__).parent
EMBEDDED_MODEL = str(locate_model(EMBEDDED))
CHAT = Dataset.from_list(
    [
        {"messages": [{"role": "user", "content": f"What is {i} + 1?"}, {"role": "assistant", "content": f"{i + 1}"}]}
        for i in range(4)
    ]
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def arguments(folder, kind=WDJTConfig, **options):
    settled = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "per_device_train_batch_size": 4,
        "train_sampling_strategy": "sequential",
        "max_steps": 2,
        "logging_steps": 1,
        "learning_rate": 2e-3,
        "save_strategy": "no",
        "gradient_checkpointing": False,
    }
    return kind(**{**settled, **options})


def make(folder, *, model=None, weak_model=None, data=None, trainer=None, **options):
    kept = {"processing_class": embedded_tokenizer(), "train_dataset": data or token_rows(8), **(trainer or {})}
    strong, weak = model or tiny_model(seed=1), weak_model or tiny_model(seed=2)
    made = WDJTTrainer(strong, weak_model=weak, args=arguments(folder, **options), **kept)
    made.remove_callback(PrinterCallback)
    return made


def trained(folder, **options):
    trainer = make(folder, **options)
    trainer.train()
    return trainer


def logs(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def experts(seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2, "num_experts_per_tok": 1}
    return AutoModelForCausalLM.from_config(MixtralConfig(**sizes, **heads), dtype=torch.float32)


def close(one, other, atol=1e-5):
    assert [e["loss"] for e in logs(one)] == pytest.approx([e["loss"] for e in logs(other)], abs=atol)
    torch.testing.assert_close(weights(one.pair), weights(other.pair), rtol=0, atol=atol)

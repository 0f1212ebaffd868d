"""Trains a tiny pair; test_joint_options.py calls it, and starts it in two processes that save their result."""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import PrinterCallback

from helpers import embedded_tokenizer, tiny_model, token_rows
from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.runs.processes import leave


def run(out, *, lora=False, unsupervised=0, **options):
    """Return the trained weights and the whole log; the first examples may have no supervised token."""
    rows = token_rows(16).to_list()
    for row in rows[:unsupervised]:
        row["labels"] = [-100] * len(row["labels"])
    args = WDJTConfig(
        output_dir=str(out),
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=4 // int(os.environ.get("WORLD_SIZE", "1")),
        per_device_eval_batch_size=2,
        train_sampling_strategy="sequential",
        max_steps=4,
        logging_steps=1,
        learning_rate=2e-3,
        save_strategy="no",
        **options,
    )
    trainer = WDJTTrainer(
        tiny_model(seed=1),
        weak_model=tiny_model(seed=2),
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=token_rows(5, seed=9),
        processing_class=embedded_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if lora else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    metrics = trainer.evaluate()
    weights = {name: weight.detach() for name, weight in trainer.pair.named_parameters()}
    searches = getattr(trainer.model_wrapped, "find_unused_parameters", None)  # a setting of DDP
    return {"weights": weights, "logs": trainer.state.log_history, "metrics": metrics, "searches": searches}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    results = [run(folder, **options) for options in json.loads(sys.argv[2])]
    if os.environ["RANK"] == "0":
        torch.save(results, folder / "results.pt")
    leave()

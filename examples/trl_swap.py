"""A TRL script in two phases: SFTTrainer trains the strong model, then WDJTTrainer improves it with its base.

It runs in half a minute on a CPU with the base model that ships with weakdriven:

    python examples/trl_swap.py --output_dir out --max_steps 8

To use your own model and data, set --weak Qwen/Qwen3-4B-Base and change the dataset below. With --strong, the first
phase is skipped.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from datasets import Dataset
from transformers import HfArgumentParser
from trl import SFTConfig, SFTTrainer

from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.models.load import EMBEDDED, locate_model


@dataclass
class Models:
    weak: str = str(locate_model(EMBEDDED))
    """The base model."""
    strong: str | None = None
    """The fine-tuned base, which is the model to improve (default: the script fine-tunes it)."""


def conversations() -> Dataset:
    """Make a dataset for SFTTrainer, here a few sums as chats; use any other instead."""
    rows = []
    for first in range(10, 26):
        for second in (3, 7):
            answer = f"{first} + {second} = \\boxed{{{first + second}}}"
            rows.append(
                {
                    "messages": [
                        {"role": "user", "content": f"What is {first} + {second}?"},
                        {"role": "assistant", "content": answer},
                    ]
                }
            )
    return Dataset.from_list(rows)


def main() -> None:
    parser = HfArgumentParser([Models, WDJTConfig])
    on_a_gpu = torch.cuda.is_available()
    parser.set_defaults(learning_rate=1e-4, logging_steps=1, strong_weight_end=1.0, bf16=on_a_gpu, use_cpu=not on_a_gpu)
    models, args = parser.parse_args_into_dataclasses()
    trainer = WDJTTrainer(  # was: SFTTrainer
        model=models.strong or fine_tuned(models.weak, args),
        weak_model=models.weak,  # the one new argument
        args=args,
        train_dataset=conversations(),
    )
    trainer.train()
    trainer.save_model()  # the strong model alone, as an ordinary checkpoint


def fine_tuned(base: str, args: WDJTConfig) -> str:
    """Fine-tune the base with the same arguments; return the folder of the model."""
    known = {field.name: getattr(args, field.name) for field in fields(SFTConfig) if field.init}
    folder = str(Path(args.output_dir) / "sft")
    trainer = SFTTrainer(model=base, args=SFTConfig(**known | {"output_dir": folder}), train_dataset=conversations())
    trainer.train()
    trainer.save_model()
    return folder


if __name__ == "__main__":
    main()

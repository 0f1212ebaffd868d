"""TRL's supervised fine-tuning script with WDJTTrainer in place of SFTTrainer: two imports and one argument change.

It runs in seconds on a CPU with the models that ship with weakdriven:

    python examples/trl_swap.py --output_dir out --max_steps 8

With your own: --strong Qwen/Qwen3-4B --weak Qwen/Qwen3-4B-Base, and your dataset below.
"""

from dataclasses import dataclass

from datasets import Dataset
from transformers import HfArgumentParser

from weakdriven import WDJTConfig, WDJTTrainer  # was: from trl import SFTConfig, SFTTrainer
from weakdriven.models.load import EMBEDDED, locate_model


@dataclass
class Models:
    strong: str = str(locate_model(EMBEDDED))
    """The model to improve: normally one that was fine-tuned already."""
    weak: str = str(locate_model(EMBEDDED))
    """An earlier checkpoint of it: normally the base that it was fine-tuned from."""


def conversations() -> Dataset:
    """Any dataset that SFTTrainer takes; here a few sums as chats."""
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
    parser.set_defaults(learning_rate=1e-4, logging_steps=1, strong_weight_end=1.0)
    models, args = parser.parse_args_into_dataclasses()
    trainer = WDJTTrainer(
        model=models.strong,
        weak_model=models.weak,  # the one new argument
        args=args,
        train_dataset=conversations(),
    )
    trainer.train()
    trainer.save_model()  # the strong model alone, as an ordinary checkpoint


if __name__ == "__main__":
    main()

"""Trains a tiny pair or model; called by the tests of sharded training, and run by them in several processes."""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from transformers import PrinterCallback, TrainerCallback

from helpers import embedded_tokenizer, tiny_model, token_rows
from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.models.sharded import gathered_weights, is_sharded
from weakdriven.runs.processes import gathered, leave
from weakdriven.training.fsdp import ShardedCheckpoints

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
FSDP |= {"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}
BATCH = 8


class Watch(TrainerCallback):
    """Keeps the weights of the trainer's model after each step; `stop` ends training after one."""

    def __init__(self, trainer: Any, stop: int | None):
        self.trainer, self.stop, self.weights = trainer, stop, dict[int, dict[str, torch.Tensor]]()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights[state.global_step] = gathered_weights(self.trainer.model)
        control.should_training_stop |= state.global_step == self.stop


def watch_precision(trainer: Any) -> dict[str, Any]:
    """The losses of each micro-batch as the trainer gets them, and the precision of a layer's weights as it runs."""
    found, compute_loss = {"losses": [], "layers": set()}, trainer.compute_loss

    def note(*args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        found["losses"].append(loss.detach().cpu())
        return loss

    trainer.compute_loss = note
    layer = trainer.accelerator.unwrap_model(trainer.model).get_submodule(trainer.watched_layer)
    layer.register_forward_pre_hook(lambda module, _: found["layers"].add(next(module.parameters()).dtype))
    return found


def run(
    out: Path,
    *,
    pair: bool,
    tied: bool = True,
    steps: int = 4,
    stop: int | None = None,
    resume: str | None = None,
    push: bool = False,
    **more,
) -> dict[str, Any]:
    """Trained weights, what was logged, and what was saved; `stop` ends after a step that leaves a checkpoint."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    options = {
        "output_dir": str(out),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "disable_tqdm": True,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": BATCH // (2 * processes),
        "train_sampling_strategy": "sequential",
        "max_steps": steps,
        "logging_steps": 1,
        "learning_rate": 2e-3,
        "max_grad_norm": 0.5,
        "save_strategy": "steps" if stop else "no",
        "save_steps": stop or 500,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    common = {
        "args": WDJTConfig(**options | more),
        "train_dataset": token_rows(BATCH * steps),
        "eval_dataset": token_rows(BATCH, seed=9),
        "processing_class": embedded_tokenizer(),
    }
    if pair:
        models = {"model": tiny_model(seed=1, tied=tied), "weak_model": tiny_model(seed=2, tied=tied, width=24)}
        trainer: Any = WDJTTrainer(**models, **common)
    else:
        trainer = ShardedCheckpoints(model=tiny_model(seed=1, tied=tied), **common)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch := Watch(trainer, stop))
    trainer.watched_layer = "strong.model.layers.0" if pair else "model.layers.0"
    precision = watch_precision(trainer)
    trainer.train(resume_from_checkpoint=resume)
    trained = trainer.accelerator.unwrap_model(trainer.model)
    if push:
        trainer.push_to_hub()
    elif not stop:
        trainer.save_model(str(out / "saved"))
    best = gathered([(trainer.state.best_model_checkpoint, trainer.state.best_global_step)])
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    return {
        "sharded": is_sharded(trained),
        "weights": gathered_weights(trained),
        "after": watch.weights,
        "logs": trainer.state.log_history,
        "best": best,
        "policy": plugin and plugin.mixed_precision_policy,
        **precision,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    results = []
    for number, options in enumerate(json.loads(sys.argv[2])):
        place = Path(options.pop("out", folder / str(number)))
        results.append(run(place, **options))
    if os.environ["RANK"] == "0":
        torch.save(results, folder / "results.pt")
    leave()

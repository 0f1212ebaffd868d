"""Checks of single features of SFTTrainer, for the table that test_drop_in.py runs."""

import ast
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, ParallelismConfig
from datasets import Dataset
from peft import LoraConfig, PeftModel, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig, PrinterCallback, TrainerCallback, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from trl import BEMACallback, LogCompletionsCallback, RichProgressCallback, SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from helpers import embedded_tokenizer, tiny_model, token_rows
from joint_cases import CHAT, MARKED, arguments, make
from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.errors import UserError
from weakdriven.wmss.checks import refuse_sharding

ROOT = Path(__file__).parents[1]
SUMS = [(f"{i} + 1 =", f" {i + 1}") for i in range(8)]
TEXT = Dataset.from_list([{"text": prompt + completion} for prompt, completion in SUMS])
PAIRS = Dataset.from_list([{"prompt": prompt, "completion": completion} for prompt, completion in SUMS])
CHAT_PAIRS = Dataset.from_list([{"prompt": row["messages"][:1], "completion": row["messages"][1:]} for row in CHAT])
SHAREGPT = Dataset.from_list(
    [{"conversations": [{"from": turn["role"], "value": turn["content"]} for turn in row["messages"]]} for row in CHAT]
)
MASKED = Dataset.from_list([{"input_ids": [5, 6, 7, 8], "assistant_masks": [0, 0, 1, 1]}] * 8)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add"}}]}
TOOLS = Dataset.from_list(
    [{"messages": [row["messages"][0], CALL, row["messages"][1]], "tools": [TOOL]} for row in CHAT]
)
TOOL_TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
)
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
Check = Callable[[Path, pytest.MonkeyPatch], None]


def text_model(seed: int, **changes: Any) -> Any:
    return tiny_model(seed=seed, vocab_size=448, max_position_embeddings=256, **changes)


def templated(template: str) -> dict[str, Any]:
    tokenizer = embedded_tokenizer()
    tokenizer.chat_template = template
    return {"processing_class": tokenizer}


def run(kind: Any, folder: Path, model: Any, data: Any, extras: dict[str, Any], **options: Any) -> Any:
    args = arguments(folder, WDJTConfig if kind is WDJTTrainer else SFTConfig, **options)
    tokenizer = None if isinstance(model, str) else embedded_tokenizer()
    given = {"args": args, "train_dataset": data, "processing_class": tokenizer, **extras}
    trainer = kind(model, **given)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def logged(trainer: Any) -> list[dict[str, float]]:
    """Return from each log line what both trainers measure."""
    names = ("loss", "grad_norm", "num_tokens", "learning_rate")
    lines = ({k: v for k, v in e.items() if k in names or k.endswith("_loss")} for e in trainer.state.log_history)
    return [line for line in lines if line and "train_loss" not in line]


def same(
    *,
    data: Any = None,
    model: Any = text_model,
    extras: Any = dict,
    atol: float = 2e-6,
    twins: bool = True,
    **options: Any,
) -> Check:
    """Compare with SFTTrainer's log: all of it for `strong_weight=1`, the first loss for a mixture with a copy."""
    data = token_rows(8) if data is None else data

    def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def trained(kind: Any, mixing: dict[str, Any], weak: int) -> list[dict[str, float]]:
            second = {} if kind is SFTTrainer else {"weak_model": model(weak)}
            return logged(run(kind, folder, model(1), data, extras() | second, **options | mixing))

        theirs = trained(SFTTrainer, {}, 0)
        alone = trained(WDJTTrainer, {"strong_weight": 1.0}, 2)
        assert len(theirs) >= 2 and "loss" in theirs[0]
        for mine, line in zip(alone, theirs, strict=True):
            for name, value in line.items():
                exact = {"abs": atol, "rel": 0} if "loss" in name else {"rel": max(atol, 1e-5)}
                assert mine[name] == pytest.approx(value, **exact), name
        if twins:
            mixed = trained(WDJTTrainer, {"max_steps": 1}, 1)
            assert mixed[0]["loss"] == pytest.approx(theirs[0]["loss"], abs=atol, rel=0)

    return check


def refused(message: str, *, model: Any = text_model, extras: Any = dict, **options: Any) -> Check:
    def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UserError, match=message):
            make(folder, model=model(1), weak_model=text_model(2), trainer=extras(), **options)

    return check


def elsewhere(file: str, name: str) -> Check:
    """Name the test that checks this row."""

    def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

    return check


def saved(folder: Path, seed: int) -> str:
    text_model(seed).save_pretrained(folder / str(seed))
    embedded_tokenizer().save_pretrained(folder / str(seed))
    return str(folder / str(seed))


def paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"model_init_kwargs": {"attn_implementation": "eager"}}
    # no twins: older transformers draws the rows of new tokens, for each model anew
    same(model=lambda seed: saved(folder, seed), twins=False, **options)(folder, monkeypatch)
    pair = make(folder, model=saved(folder, 1), weak_model=saved(folder, 2), **options).pair
    assert {model.config._attn_implementation for model in (pair.strong, pair.weak)} == {"eager"}


def adapted(model: Any = text_model, options: Any = None, **lora: Any) -> Check:
    return same(model=model, extras=lambda: {"peft_config": LoraConfig(**LORA, **lora)}, **(options or {}))


def adapted_model(seed: int) -> Any:
    torch.manual_seed(0)
    return get_peft_model(text_model(seed), LoraConfig(**LORA, init_lora_weights=False))


def template_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "template.jinja").write_text(MARKED, encoding="utf-8")
    same(data=CHAT, chat_template_path=str(folder / "template.jinja"))(folder, monkeypatch)


def template_of_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = embedded_tokenizer()
    source.add_tokens(["<turn>"], special_tokens=True)
    source.chat_template = "<turn>" + MARKED
    source.save_pretrained(folder / "source")
    options: dict[str, Any] = {"data": CHAT, "chat_template_path": str(folder / "source")}
    # no twins: older transformers draws the rows of new tokens, for each model anew
    same(model=lambda seed: saved(folder, seed), twins=False, **options)(folder, monkeypatch)


def other_eos(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same(data=TEXT, eos_token="<|im_start|>")(folder, monkeypatch)
    trainer = make(folder, model=text_model(1), weak_model=text_model(2), data=TEXT, eos_token="<|im_start|>")
    options = arguments(folder, SFTConfig, eos_token="<|im_start|>")
    theirs = SFTTrainer(text_model(1), options, train_dataset=TEXT, processing_class=embedded_tokenizer())
    assert trainer.processing_class.eos_token == theirs.processing_class.eos_token == "<|im_start|>"
    assert trainer.pair.strong.config.eos_token_id == theirs.model.config.eos_token_id  # older TRL leaves it alone


def fresh_evaluation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"model": text_model(1), "weak_model": text_model(2), "strong_weight": 1.0}
    theirs = SFTTrainer(
        text_model(1), arguments(folder, SFTConfig), train_dataset=TEXT, processing_class=embedded_tokenizer()
    )
    mine = make(folder, **models, data=TEXT)
    for rows in (TEXT, TEXT.to_iterable_dataset(), {"one": TEXT, "two": PAIRS}):
        found = {name: value for name, value in theirs.evaluate(rows).items() if name.endswith("_loss")}
        assert {name: mine.evaluate(rows)[name] for name in found} == pytest.approx(found, abs=2e-6) and found


def prediction(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, rows = make(folder), token_rows(5, seed=9)
    found = trainer.predict(rows)
    assert found.metrics["test_loss"] == pytest.approx(trainer.evaluate(rows)["eval_loss"])


def predicted_logits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="never builds"):
        assert make(folder).predict(token_rows(2)).predictions is None


def checkpointed(**how: Any) -> Check:
    return same(gradient_checkpointing=True, gradient_checkpointing_kwargs=how or None)


def selective(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl.models.selective_activation_checkpointing", reason="TRL has it from 1.15 on")
    checkpointed(selective=True)(folder, monkeypatch)


def offloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.accelerator.is_available():
        same(activation_offloading=True, use_cpu=False)(folder, monkeypatch)
    else:
        refused("activation_offloading moves activations off the GPU", activation_offloading=True)(folder, monkeypatch)


def plain_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (SFTConfig, TrainingArguments):
        args = arguments(folder, kind)
        given = {"train_dataset": token_rows(8), "processing_class": embedded_tokenizer()}
        trainer = WDJTTrainer(tiny_model(seed=1), args, weak_model=tiny_model(seed=2), **given)
        assert isinstance(trainer.args, WDJTConfig) and trainer.pair.strong_weight == 0.5
        assert trainer.args.learning_rate == 2e-3 and trainer.args.max_length == 1024


def asked_of_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(folder, model=adapted_model(1), weak_model=text_model(2))
    trainer.train()
    model, strong, ids = trainer.model, trainer.pair.strong.eval(), torch.arange(3, 8)[None]
    assert torch.equal(model.generate(ids, max_new_tokens=3), strong.generate(ids, max_new_tokens=3))
    model.save_pretrained(folder / "adapter")
    loaded = PeftModel.from_pretrained(text_model(1), folder / "adapter")
    for other in (loaded, model.merge_and_unload()):
        torch.testing.assert_close(other.eval()(ids).logits, strong(ids).logits, rtol=1e-4, atol=1e-4)


class Crowded(DataCollatorForLanguageModeling):
    """A collator that runs out of memory above two rows."""

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        if len(examples) > 2:
            raise RuntimeError("CUDA out of memory.")
        return super().torch_call(examples)


class Seen(TrainerCallback):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("log")

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("step")


def with_callbacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [Seen(), Seen()]
    for kind, callback, more in zip((SFTTrainer, WDJTTrainer), seen, ({}, {"weak_model": text_model(2)}), strict=True):
        extras = {"callbacks": [callback, RichProgressCallback()], **more}
        run(kind, folder, text_model(1), token_rows(8), extras, disable_tqdm=False)
    assert seen[0].events == seen[1].events != []


def tracked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "tensorboard", Seen)
    trainer = run(WDJTTrainer, folder, text_model(1), TEXT, {"weak_model": text_model(2)}, report_to=["tensorboard"])
    found = [one.events for one in trainer.callback_handler.callbacks if isinstance(one, Seen)]
    assert found == [["step", "log"] * 2 + ["log"]]


def completions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(folder, model=text_model(1), weak_model=text_model(2), data=PAIRS, trainer={"eval_dataset": PAIRS})
    callback = LogCompletionsCallback(trainer, GenerationConfig(max_new_tokens=2), num_prompts=3, freq=1)
    trainer.add_callback(callback)
    trainer.train()
    assert [row[1] for row in callback.table] == [prompt for prompt, _ in SUMS[:3]] * 2


def averaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks, trainers = [BEMACallback(update_freq=1), BEMACallback(update_freq=1)], []
    for kind, callback in zip((SFTTrainer, WDJTTrainer), callbacks, strict=True):
        more = {} if kind is SFTTrainer else {"weak_model": text_model(2)}
        mixing = {} if kind is SFTTrainer else {"strong_weight": 1.0}
        extras = {"callbacks": [callback], **more}
        trainers.append(run(kind, folder / kind.__name__, text_model(1), token_rows(8), extras, **mixing))
    models: list[Any] = [AutoModelForCausalLM.from_pretrained(Path(one.args.output_dir) / "bema") for one in trainers]
    torch.testing.assert_close(*(dict(model.named_parameters()) for model in models), rtol=0, atol=1e-5)


def weights_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"save_strategy": "steps", "save_steps": 1, "save_only_model": True}
    trainer = make(folder, **options)
    trainer.train()
    assert not list(folder.glob("checkpoint-*/optimizer.pt"))
    found = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-2")
    torch.testing.assert_close(dict(found.named_parameters()), dict(trainer.pair.strong.named_parameters()))


def pushed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[set[str]] = []

    class Hub:
        def create_repo(self, name: str, **_: Any) -> Any:
            return type("Repo", (), {"repo_id": name})

        def upload_folder(self, *, folder_path: Any, **_: Any) -> Any:
            uploads.append({file.name for file in Path(folder_path).iterdir()})

    monkeypatch.setattr("transformers.trainer.hf_api", Hub)
    trainer = make(folder / "out", push_to_hub=True, hub_model_id="me/model")
    trainer.push_to_hub()
    assert {"model.safetensors", "config.json", "README.md", "tokenizer.json"} <= uploads[-1]


def card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(folder).create_model_card(model_name="mine")
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "WD-JT" in text and "2602.08222" in text


def split_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(folder)
    for kind in ("cp", "sp", "tp"):
        split = ParallelismConfig(**{f"{kind}_size": 2})
        monkeypatch.setattr(Accelerator, "parallelism_config", property(lambda self, split=split: split))
        with pytest.raises(UserError, match=f"parallelism_config has {kind}_size=2, which splits sequences or weights"):
            refuse_sharding(trainer)


def several_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(WDJTConfig, "n_gpu", property(lambda self: 2))
        refused(r"2 GPUs are visible .*accelerate launch.*CUDA_VISIBLE_DEVICES=0")(folder, monkeypatch)

    def on_two(seed: int) -> Any:
        model = text_model(seed)
        model.hf_device_map = {"model": 0, "lm_head": 1}
        return model

    refused("The strong model is on 2 GPUs", model=on_two)(folder, monkeypatch)


def outside_layers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig):
        config = kind(task_type="CAUSAL_LM", num_virtual_tokens=2)
        refused("which the mixed loss", extras=lambda config=config: {"peft_config": config})(folder, monkeypatch)


def needs_logits(*names: str) -> Check:
    def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in names:
            refused(f"{name} is set", extras=lambda name=name: {name: lambda *args, **kwargs: 0})(folder, monkeypatch)

    return check


def remote_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "modules"))
    code = (
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n\n\nclass Config(Qwen3Config):\n    model_type = 'own'"
    )
    code += "\n\n\nclass Model(Qwen3ForCausalLM):\n    config_class = Config\n"
    for seed in (1, 2):
        place = Path(saved(folder, seed))
        (place / "own.py").write_text(code, encoding="utf-8")
        config = (
            (place / "config.json")
            .read_text(encoding="utf-8")
            .replace('"qwen3"', '"own"')
            .replace('"Qwen3ForCausalLM"', '"Model"')
        )
        classes = '{"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},'
        (place / "config.json").write_text(config.replace("{", classes, 1), encoding="utf-8")
    pair = make(folder, model=str(folder / "1"), weak_model=str(folder / "2"), trust_remote_code=True).pair
    assert type(pair.strong).__name__ == type(pair.weak).__name__ == "Model"
    shutil.rmtree(folder / "modules")

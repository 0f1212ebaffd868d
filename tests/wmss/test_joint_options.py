"""WDJTTrainer under the options, datasets and launchers that SFTTrainer knows."""

import json
import math
import os
import runpy
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
)

from helpers import embedded_tokenizer, tiny_model, token_rows
from joint_cases import CHAT, EMBEDDED_MODEL, HERE, arguments, close, logs, make, trained
from two_processes import run
from weakdriven import WDJTTrainer
from weakdriven.errors import UserError


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Two steps of four padded rows each."""
    return trained(tmp_path_factory.mktemp("plain"))


def test_padding_free_batches_train_as_padded_ones(plain, tmp_path):
    free = trained(tmp_path, padding_free=True, max_length=None)
    close(free, plain)
    assert [e["tokens"] for e in logs(free)] == [e["tokens"] for e in logs(plain)]
    assert [e["num_tokens"] for e in logs(free)] == [e["num_tokens"] for e in logs(plain)]


def test_packed_rows_train_as_padded_ones_with_eager_attention(tmp_path):
    def models():
        names = {"model": 1, "weak_model": 2}
        return {name: tiny_model(seed=seed, attn_implementation="eager") for name, seed in names.items()}

    options = {"max_steps": 1, "per_device_train_batch_size": 8}
    padded = trained(tmp_path / "padded", **models(), **options)
    packed = trained(tmp_path / "packed", **models(), **options, packing=True, max_length=32)
    assert len(packed.train_dataset) < len(padded.train_dataset)
    close(packed, padded)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True, "neftune_noise_alpha": 0.0},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"selective": True}},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"loss_implementation": "reference"},
    ],
    ids=["checkpointing", "selective", "reentrant", "reference"],
)
def test_options_that_only_change_speed_or_memory_change_no_result(options, plain, tmp_path):
    if options.get("gradient_checkpointing_kwargs", {}).get("selective"):
        pytest.importorskip("trl.models.selective_activation_checkpointing", reason="TRL has it from 1.15 on")
    trainer = trained(tmp_path, **options)
    close(trainer, plain)
    for model in (trainer.pair.strong, trainer.pair.weak):
        layer = model.model.layers[0]
        assert layer.gradient_checkpointing == ("gradient_checkpointing" in options)
        if options.get("gradient_checkpointing_kwargs", {}).get("selective"):
            assert "context_fn" in layer._gradient_checkpointing_func.keywords


def test_neftune_adds_noise_to_the_embeddings_of_both_models_while_they_train(plain, tmp_path):
    noisy = trained(tmp_path, neftune_noise_alpha=5.0)
    for key in ("strong_loss", "weak_loss"):
        assert logs(noisy)[0][key] != pytest.approx(logs(plain)[0][key], abs=1e-3)
    for model in (noisy.pair.strong, noisy.pair.weak):
        assert not model.get_input_embeddings()._forward_hooks


@pytest.mark.slow
def test_compiled_training_gives_the_same_result(plain, tmp_path):
    compiled = trained(tmp_path, torch_compile=True, torch_compile_backend="eager")
    close(compiled, plain)


@pytest.mark.slow
def test_a_schedule_compiles_no_more_graphs_than_a_constant_mixture(tmp_path):
    rows = Dataset.from_list([{"input_ids": list(range(5, 13)), "labels": [-100] * 2 + list(range(7, 13))}] * 16)

    def graphs(**options):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        options |= {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 4}
        trained(tmp_path, data=rows, **options)
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    assert graphs(strong_weight_end=0.9) == graphs() > 0


def test_evaluation_gives_means_over_the_tokens_of_the_whole_set(plain):
    rows = token_rows(5, seed=9)
    metrics = plain.evaluate(rows)
    total, tokens = 0.0, 0
    plain.pair.eval()
    for row in rows:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
        with torch.no_grad():
            output = plain.pair(input_ids=ids, labels=labels)
        total, tokens = total + output.statistics.mixed_loss.item(), tokens + output.num_tokens.item()
    assert metrics["eval_tokens"] == tokens
    assert metrics["eval_mixed_loss"] == metrics["eval_loss"] == pytest.approx(total / tokens, abs=1e-5)
    assert metrics["eval_strong_gap"] == pytest.approx(metrics["eval_strong_loss"] - metrics["eval_mixed_loss"])
    with pytest.warns(UserWarning, match="predictions and label_ids are None"):
        assert plain.predict(rows).metrics["test_loss"] == pytest.approx(metrics["eval_loss"])


def test_evaluation_during_training_changes_nothing_and_the_best_model_is_loaded(plain, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    best = trained(
        tmp_path,
        trainer={"eval_dataset": {"one": token_rows(3, seed=9), "two": token_rows(4, seed=8)}},
        **saving,
        load_best_model_at_end=True,
        metric_for_best_model="eval_one_strong_loss",
        greater_is_better=True,
    )
    assert [e["loss"] for e in logs(best)] == [e["loss"] for e in logs(plain)]
    seen = [entry["eval_one_strong_loss"] for entry in best.state.log_history if "eval_one_strong_loss" in entry]
    assert len(seen) == 2 and best.state.best_metric == max(seen)
    assert best.evaluate()["eval_one_strong_loss"] == pytest.approx(max(seen))


SPLIT = {
    "full": {"strong_weight": 1.0, "strong_weight_end": 0.4, "strong_anchor": 0.1},
    "lora": {"lora": True},
    "free": {"padding_free": True, "max_length": None},
    "packed": {"packing": True, "max_length": 21},
    "alone": {"unsupervised": 2, "dataset_kwargs": {"skip_prepare_dataset": True}},
}


@pytest.mark.slow
@pytest.mark.xdist_group("alone")
def test_two_processes_give_the_result_of_one(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(HERE / "two_processes.py"), str(tmp_path), json.dumps(list(SPLIT.values()))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "results.pt", weights_only=False)
    for (name, options), two in zip(SPLIT.items(), found, strict=True):
        assert two["searches"] == (name == "full"), "there the weak model does not run in the first step"
        one = run(tmp_path / "one", **options)
        torch.testing.assert_close(two["weights"], one["weights"], rtol=0, atol=1e-5)
        for mine, theirs in zip(two["logs"][:4], one["logs"][:4], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4), options
        kept = {key: value for key, value in one["metrics"].items() if not key.endswith(("runtime", "per_second"))}
        assert {key: two["metrics"][key] for key in kept} == pytest.approx(kept, abs=1e-4), options


def test_heads_padded_differently_for_one_tokenizer_are_mixed(tmp_path):
    weak = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
    weak.resize_token_embeddings(len(weak.get_output_embeddings().weight) + 8)
    weak.save_pretrained(tmp_path / "weak")
    with pytest.raises(UserError, match="vocabulary rows"):
        make(tmp_path, model=EMBEDDED_MODEL, weak_model=str(tmp_path / "weak"), data=CHAT)
    embedded_tokenizer().save_pretrained(tmp_path / "weak")
    trainer = trained(tmp_path, model=EMBEDDED_MODEL, weak_model=str(tmp_path / "weak"), data=CHAT, max_steps=1)
    assert math.isfinite(logs(trainer)[0]["loss"])


def test_the_positional_order_is_that_of_trl(plain, tmp_path):
    positional = WDJTTrainer(
        tiny_model(seed=1),
        arguments(tmp_path),
        None,
        token_rows(8),
        None,
        embedded_tokenizer(),
        weak_model=tiny_model(seed=2),
    )
    positional.remove_callback(PrinterCallback)
    positional.train()
    close(positional, plain)


def test_the_callers_arguments_are_not_changed(tmp_path):
    args = arguments(tmp_path, strong_weight=1.0, strong_weight_end=0.5, model_init_kwargs={"revision": "main"})
    before = {item.name: getattr(args, item.name) for item in fields(args)}
    trainer = WDJTTrainer(
        EMBEDDED_MODEL,
        weak_model=EMBEDDED_MODEL,
        args=args,
        train_dataset=CHAT,
        processing_class=embedded_tokenizer(),
    )
    assert {name: getattr(args, name) for name in before} == before
    assert trainer.args.model_init_kwargs == {"revision": "main"}


@pytest.mark.parametrize(
    ("options", "searches"),
    [
        ({}, False),
        ({"trainer": {"peft_config": LoraConfig(target_modules=["q_proj"])}}, False),
        ({"strong_weight": 1.0, "strong_weight_end": 0.5, "ddp_find_unused_parameters": False}, True),
        ({"ddp_find_unused_parameters": True}, True),
    ],
)
def test_ddp_looks_for_unused_weights_only_where_a_model_does_not_run(options, searches, tmp_path):
    assert make(tmp_path, **options).accelerator.ddp_handler.find_unused_parameters is searches


def test_liger_is_applied_once_to_both_models_and_recorded(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr("weakdriven.wmss.trainer.use_liger", given.append)
    monkeypatch.setattr("transformers.trainer.apply_liger_kernel", lambda *args: pytest.fail("given to the pair"))
    trainer = trained(tmp_path, use_liger_kernel=True, max_steps=1)
    assert given == [trainer.pair.strong, trainer.pair.weak]
    trainer.save_model(str(tmp_path / "out"))
    assert torch.load(tmp_path / "out" / "training_args.bin", weights_only=False).use_liger_kernel


def own_optimizer(*models):
    return torch.optim.AdamW([weight for model in models for weight in model.parameters()], lr=2e-3, weight_decay=0.0)


def test_an_optimizer_of_the_caller_must_hold_both_models(plain, tmp_path):
    strong, weak = tiny_model(seed=1), tiny_model(seed=2)
    models = {"model": strong, "weak_model": weak}
    with pytest.raises(UserError, match=r"lacks \d+ trainable weights .*first: weak\..*optimizer_cls_and_kwargs"):
        make(tmp_path, **models, trainer={"optimizers": (own_optimizer(strong), None)})
    both = {"optimizers": (own_optimizer(strong, weak), None)}
    with pytest.raises(UserError, match="sets its own learning rates"):
        make(tmp_path, **models, trainer=both, weak_learning_rate=1e-3)
    close(trained(tmp_path, **models, trainer=both), plain)


def test_sums_of_an_interrupted_step_are_forgotten(plain, tmp_path):
    class Break(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            trainer.remove_callback(self)
            raise KeyboardInterrupt

    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    trainer = make(tmp_path, trainer={"callbacks": [Break()]}, **options)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.pair.zero_grad()
    trainer.train()
    assert [e["tokens"] for e in logs(trainer)] == [e["tokens"] for e in logs(plain)]
    assert [e["num_tokens"] for e in logs(trainer)] == [e["num_tokens"] for e in logs(plain)]


def joined(rows):
    """Rows one after another, as TRL's collator does it, but the first token of each keeps its label."""
    columns = {"input_ids": "input_ids", "labels": "input_ids"}
    batch = {name: torch.tensor([[t for row in rows for t in row[source]]]) for name, source in columns.items()}
    return batch | {"position_ids": torch.tensor([[i for row in rows for i in range(len(row["input_ids"]))]])}


def test_the_loss_is_divided_by_the_tokens_that_it_sums_whatever_the_collator(tmp_path):
    trainer = trained(tmp_path, trainer={"data_collator": joined}, gradient_accumulation_steps=2, max_steps=1)
    assert logs(trainer)[0]["loss"] == pytest.approx(logs(trainer)[0]["mixed_loss"], abs=1e-5)


def test_the_example_of_the_documentation_trains_a_model_that_loads(monkeypatch, capsys, tmp_path):
    words = ["--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--save_strategy", "no"]
    script = HERE.parent / "examples" / "trl_swap.py"
    monkeypatch.setattr(sys, "argv", [script.name, *words])
    runpy.run_path(str(script), run_name="__main__")
    assert "'strong_weight': " in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    phases = [EMBEDDED_MODEL, tmp_path / "out" / "sft"]
    for before in map(AutoModelForCausalLM.from_pretrained, phases):
        assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    chat = tokenizer.apply_chat_template(CHAT[0]["messages"][:1], add_generation_prompt=True, return_tensors="pt")
    assert model.generate(**chat, max_new_tokens=2).shape[1] > chat["input_ids"].shape[1]
    assert not (tmp_path / "out" / "weak").exists()


def test_the_example_takes_two_models_that_have_only_their_tokens_in_common(monkeypatch, tmp_path):
    for name, family, width in (("weak", "llama", 16), ("strong", "qwen3", 32)):
        model = tiny_model(family, width=width, vocab_size=512, max_position_embeddings=256)
        model.save_pretrained(tmp_path / name)
        embedded_tokenizer().save_pretrained(tmp_path / name)
    words = [f"--{name}={tmp_path / name}" for name in ("weak", "strong")]
    words += [f"--output_dir={tmp_path / 'out'}", "--max_steps=1", "--save_strategy=no"]
    monkeypatch.setattr(sys, "argv", ["trl_swap.py", *words])
    runpy.run_path(str(HERE.parent / "examples" / "trl_swap.py"), run_name="__main__")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.model_type == "qwen3"
    assert not (tmp_path / "out" / "sft").exists()

"""SSB through a recipe: attempts, hints, verified replies, stored logits, a student, errors."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

import rollout_cases
from helpers import demo_examples, embedded_tokenizer, tiny_model
from recipe_cases import parse
from small_runs import run_small, small_recipe
from soft_cases import whole_divergence
from weakdriven.config.baselines import SsbSettings
from weakdriven.config.recipe import LoraSettings
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import load_tokens
from weakdriven.errors import UserError
from weakdriven.eval.generate.requests import request_seed
from weakdriven.methods.ssb import trainer as training
from weakdriven.methods.ssb.loss import top_logits
from weakdriven.methods.ssb.targets import from_bits, stored
from weakdriven.methods.ssb.trainer import Collator, StoredLogits
from weakdriven.methods.token_loss import TokenLossTrainer
from weakdriven.models.adapters import add_adapter
from weakdriven.models.head import causal_lm, head, hidden_states
from weakdriven.models.load import load_model, locate_model
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.signals import Stopped
from weakdriven.training.lora import lora_config
from weakdriven.training.phase import Phase

says = rollout_cases.says
SMALL = ["batch_size=4", "micro_batch_size=2", "learning_rate=1e-2", "save_steps=2", "teacher.max_new_tokens=40"]


def run(root, *overrides, siblings=()):
    settings = [f"ssb.{one}" for one in (*SMALL, "start=base", "hint=null")]
    shared = ["method=ssb", "baselines=[]", "eval.benchmarks=[]", "data.limit=8"]
    return run_small(root, *settings, *shared, *overrides, siblings=siblings)


def counters(root, stage):
    return read_json(root / stage / "manifest.json")["counters"]


@pytest.fixture
def talks(says):
    """Attempts 1 and 3 are right; the reply to a hint is the data's own completion, save for the first row."""
    examples = demo_examples(8)
    hinted = request_seed(42, "turn", 1)
    texts = {request_seed(hinted, one.id, 0): one.completion for one in examples[1:]}
    texts |= {request_seed(hinted, examples[0].id, 0): "\\boxed{-1}"}
    for one in examples:
        for sample in range(4):
            texts[request_seed(42, one.id, sample)] = f"\\boxed{{{one.gold if sample % 2 else f'-{sample + 1}'}}}"
    return says(lambda request: texts[request.seed])


@pytest.fixture
def ssb_run(once, talks):
    return once("ssb", run)


def test_ssb_runs_from_attempts_over_hints_and_stored_logits_to_a_student(ssb_run, talks, tmp_path):
    root, recorder = ssb_run
    stages = ["data", "rollouts/base/ssb", "hints/ssb", "rollouts/base/ssb-hinted", "targets/ssb", "baselines/ssb"]
    assert list(recorder.ran) == stages
    assert counters(root, "hints/ssb") | {"prompts": 8, "mixed": 8, "hints": 8} == counters(root, "hints/ssb")
    traces = list(read_jsonl(root / "hints/ssb/pairs.jsonl"))
    assert {(pair["chosen_sample"], pair["rejected_sample"]) for pair in traces} == {(1, 0)}
    assert read_json(root / "targets/ssb/funnel.json")["dropped"]["wrong answer"]["rows"] == 1
    renderer = Renderer(embedded_tokenizer(), "math", "plain")
    targets = load_tokens(root / "targets/ssb/targets.arrow").with_format("numpy")
    assert len(targets) == 7
    base = load_model(locate_model("embedded:base"), precision="fp32").eval()
    hints = {row["id"]: row for row in read_jsonl(root / "hints/ssb/examples.jsonl")}
    for row in (targets[0], targets[6]):
        reply = row["labels"][row["labels"] != -100]
        hint = renderer.tokenizer(renderer.prompt(hints[row["id"]]["prompt"]), add_special_tokens=False)["input_ids"]
        assert row["input_ids"][-len(reply) :].tolist() == reply.tolist() and reply[-1] in renderer.stop_ids
        with torch.no_grad():
            logits = base(input_ids=torch.tensor([[*hint, *reply]])).logits[0, len(hint) - 1 : -1]
        best, ids = logits.topk(20)
        assert row["teacher_ids"].reshape(-1, 20)[:, 0].tolist() == ids[:, 0].tolist()
        torch.testing.assert_close(from_bits(row["teacher_logits"]).view(-1, 20), best.bfloat16(), atol=0.1, rtol=0.01)
        want = (logits / 1.5).logsumexp(-1)
        torch.testing.assert_close(torch.tensor(row["teacher_lse"]), want, atol=1e-3, rtol=1e-3)
    found = counters(root, "targets/ssb")
    assert 0 < found["coverage_at_temperature"] <= found["coverage"] <= 1
    assert found | {"replies": 8, "right": 7, "kept": 7} == found
    assert found["tokens"] == sum(int((row["labels"] != -100).sum()) for row in targets)
    trained = counters(root, "baselines/ssb")
    ours, theirs = load_file(root / "baselines/ssb/model.safetensors"), base.state_dict()
    assert trained["steps"] == 2 and any(not torch.equal(ours[name], theirs[name]) for name in ours)
    rows = list(read_jsonl(root / "baselines/ssb/metrics.jsonl"))
    assert {"kd_loss", "true_loss", "coverage", "tokens"} <= rows[0].keys()
    assert rows[0]["loss"] == pytest.approx(0.5 * 1.5**2 * rows[0]["kd_loss"] + 0.5 * rows[0]["true_loss"], rel=1e-4)
    talks.asked = 0
    assert run(root).ran == {}
    again = run(tmp_path, "ssb.kd_weight=0.25", siblings=[root])
    assert computed(again) == ["baselines/ssb"] and not talks.asked


def computed(recorder):
    return [stage for stage, reason in recorder.ran.items() if not reason.startswith("taken over")]


def test_another_hint_only_asks_the_teacher_again(ssb_run, tmp_path):
    root, hint = tmp_path / "run", "Q: {problem} Good: {right}\nBad: {wrong} Use \\boxed{}."
    assert "hint" not in read_json(ssb_run[0] / "hints/ssb/manifest.json")["settings"]
    recorder = run(root, f"ssb.hint={json.dumps(hint)}", siblings=[ssb_run[0]])
    assert computed(recorder) == ["hints/ssb", "rollouts/base/ssb-hinted", "targets/ssb", "baselines/ssb"]
    one, row = demo_examples(1)[0], next(read_jsonl(root / "hints/ssb/examples.jsonl"))
    problem = one.prompt[-1]["content"]
    asked = f"Q: {problem} Good: \\boxed{{{one.gold}}}\nBad: \\boxed{{-1}} Use \\boxed{{}}."
    assert row["prompt"][-1]["content"] == asked
    assert read_json(root / "hints/ssb/manifest.json")["settings"]["hint"] == hint


@pytest.mark.slow
def test_hints_that_are_too_long_are_counted_and_left_out(says, tmp_path):
    examples = demo_examples(8)
    texts = {request_seed(request_seed(42, "turn", 1), one.id, 0): one.completion for one in examples}
    for one in examples:
        texts[request_seed(42, one.id, 0)] = ("so " * 90 if one in examples[:3] else "") + f"\\boxed{{{one.gold}}}"
    says(lambda request: texts.get(request.seed, "no"))
    renderer = Renderer(embedded_tokenizer(), "math", "plain")
    hint = "{problem} {right}"
    short = [renderer.prompt([{"role": "user", "content": one.prompt[-1]["content"] + " " * 60}]) for one in examples]
    limit = max(len(renderer.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in short)
    root = tmp_path / "run"
    run(root, f"ssb.hint={json.dumps(hint)}", f"ssb.teacher.max_prompt_tokens={limit}")
    found = counters(root, "hints/ssb")
    assert found | {"prompts": 8, "mixed": 8, "hints": 5, "too_long": 3, "no_answer": 24} == found
    kept = [one.id for one in examples[3:]]
    for file in ("examples.jsonl", "pairs.jsonl"):
        assert [row["id"] for row in read_jsonl(root / "hints/ssb" / file)] == kept
    assert read_json(root / "hints/ssb/funnel.json")["dropped"]["hinted prompt too long"]["rows"] == 3


@pytest.mark.slow
def test_with_lora_the_student_is_an_adapter_and_may_continue_from_m1(talks, tmp_path):
    lora = ["lora.rank=2", "lora.alpha=4", "sft.batch_size=8", "sft.micro_batch_size=8"]
    recorder = run(tmp_path / "run", *lora, "ssb.rank=3")
    assert "sft" not in recorder.ran
    assert read_json(tmp_path / "run/baselines/ssb/adapter_config.json")["r"] == 3
    recorder = run(tmp_path / "m1", *lora, "ssb.start=sft")
    assert {"sft", "rollouts/sft/ssb", "rollouts/sft/ssb-hinted"} <= set(recorder.ran)
    assert read_json(tmp_path / "m1/baselines/ssb/adapter_config.json")["r"] == 2


def test_an_interrupted_stage_keeps_the_logits_that_are_written(talks, tmp_path, monkeypatch):
    from weakdriven.methods.ssb import stage, targets

    monkeypatch.setattr(stage, "BLOCK", 2)
    real, calls = targets.with_logits, []

    def dies(network, rows, stages):
        calls.append(len(rows))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(network, rows, stages)

    monkeypatch.setattr(targets, "with_logits", dies)
    with pytest.raises(Stopped):
        run(tmp_path / "run")
    run(tmp_path / "run")
    assert calls == [2, 2, 2, 2, 1]
    ids = list(load_tokens(tmp_path / "run/targets/ssb/targets.arrow")["id"])
    assert ids == [one.id for one in demo_examples(8)[1:]]


def test_no_right_reply_and_no_mixed_prompt_are_errors_with_the_funnel(says, tmp_path):
    hinted = {request_seed(request_seed(42, "turn", 1), one.id, 0) for one in demo_examples(8)}
    golds = {request_seed(42, one.id, 0): one.gold for one in demo_examples(8)}
    says(lambda request: "no" if request.seed in hinted else f"\\boxed{{{golds.get(request.seed, '-9')}}}")
    with pytest.raises(UserError, match=r"Nothing is left of 8 prompts; no answer: 8 .*A reply is kept"):
        run(tmp_path / "replies")
    with pytest.raises(UserError, match=r"hinted prompt too long: 8 .*max_prompt_tokens"):
        run(tmp_path / "replies", "ssb.teacher.max_prompt_tokens=20")
    says(lambda request: "\\boxed{-9}")
    with pytest.raises(UserError, match=r"no right rollout: 8 .*raise the temperature"):
        run(tmp_path / "attempts")
    assert not (tmp_path / "attempts/targets").exists()


def token_rows_with(teacher, k, temperature=1.5):
    rows = []
    for length, prompt in [(9, 4), (6, 2)]:
        ids = torch.randint(3, 60, (length,), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            hidden = hidden_states(teacher, {"input_ids": ids[None], "use_cache": False})[0, prompt - 1 : -1]
        top = top_logits(hidden, head(teacher), k=k, temperature=temperature)
        labels = [-100] * prompt + ids[prompt:].tolist()
        rows.append({"input_ids": ids.tolist(), "labels": labels, **stored(top)})
    return rows


def trainer_of(model, rows, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    folder = tmp_path / "run" / ".work" / "ssb" / "work"
    phase = Phase("ssb", 1, 1, folder, Progress())
    columns = ("input_ids", "labels", *training.STORED)
    made = phase.prepare(Dataset.from_list(rows), settings, small_recipe(), columns)
    made["args"].remove_unused_columns = False
    tokenizer = embedded_tokenizer()
    made |= {"data_collator": Collator(0), "token_loss": StoredLogits(settings)}
    return TokenLossTrainer(model, processing_class=tokenizer, **made)


def test_all_logits_stored_are_the_whole_divergence_and_its_gradient(tmp_path, monkeypatch):
    teacher, student = tiny_model(seed=1), tiny_model(seed=2)
    rows = token_rows_with(teacher, k=64)
    model = add_adapter(student, lora_config(LoraSettings(rank=4, alpha=4)), seed=0)
    settings = SsbSettings(kd_weight=1.0, ce_weight=0.0, top_k=64, batch_size=2, micro_batch_size=2)
    trainer = trainer_of(model, rows, settings, tmp_path, monkeypatch)
    batch = Collator(0)([{name: np.asarray(value) for name, value in row.items()} for row in rows])
    learned = batch["labels"][:, 1:] != -100
    loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=learned.sum())
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    own = causal_lm(trainer.model)(**inputs).logits[:, :-1][learned]
    theirs = torch.full_like(own, 0.0).scatter(1, batch["teacher_ids"], batch["teacher_logits"].float())
    want = 1.5**2 * whole_divergence(own, theirs, temperature=1.5) / len(own)
    torch.testing.assert_close(loss, want)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(loss, weights, allow_unused=True)
    for got, one in zip(ours, torch.autograd.grad(want, weights, allow_unused=True), strict=True):
        torch.testing.assert_close(got, one)
    exact = teacher(**inputs).logits[:, :-1][learned]
    assert torch.allclose(theirs, exact, atol=0.05, rtol=0.01), "and what was stored is the teacher's"


def test_accumulated_micro_batches_give_the_loss_of_one(tmp_path, monkeypatch):
    rows = token_rows_with(tiny_model(seed=1), k=5)
    model = add_adapter(tiny_model(seed=2), lora_config(LoraSettings(rank=4, alpha=4)), seed=0)
    trainer = trainer_of(model, rows, SsbSettings(batch_size=2, micro_batch_size=2), tmp_path, monkeypatch)
    items = torch.tensor(9)
    whole = trainer.compute_loss(trainer.model, Collator(0)(rows), num_items_in_batch=items)
    parts = [trainer.compute_loss(trainer.model, Collator(0)([row]), num_items_in_batch=items) for row in rows]
    torch.testing.assert_close(sum(parts), whole)


def test_defaults_are_those_of_the_paper():
    recipe = parse()
    rolled = {"samples": 4, "temperature": 0.8, "top_p": 1.0, "top_k": 50, "max_new_tokens": None, "subsample": None}
    assert recipe.ssb.rollouts.model_dump() == rolled
    assert (recipe.ssb.teacher.temperature, recipe.ssb.teacher.top_k) == (0.4, 50)
    training = {"epochs": 2, "learning_rate": 1e-4, "batch_size": 256, "max_grad_norm": 1.0, "rank": 32, "alpha": 32}
    distillation = {"start": "base", "top_k": 20, "temperature": 1.5, "kd_weight": 0.5, "ce_weight": 0.5}
    assert recipe.ssb.model_dump(include={*training, *distillation}) == training | distillation


def test_a_reply_longer_than_the_positions_is_an_error_before_anything_is_sampled(tmp_path, says):
    engine = says(lambda request: "4")
    with pytest.raises(UserError, match=r"the model has 512 positions"):
        run(tmp_path / "run", "ssb.teacher.max_new_tokens=512")
    assert not engine.asked and not (tmp_path / "run").exists()

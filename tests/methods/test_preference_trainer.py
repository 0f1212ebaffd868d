"""DPO through TRL on our own tokens: loss and log-probabilities as they should be, and a reference asked once."""

import hashlib
import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from helpers import demo_examples, embedded_tokenizer, tiny_model, weights
from weakdriven.config.recipe import DataSettings, LoraSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.data.funnel import Funnel
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import IGNORE, tokenize
from weakdriven.errors import UserError
from weakdriven.methods.dpo_spin import trainer as preference
from weakdriven.methods.dpo_spin.trainer import (
    COLUMNS,
    REFERENCE,
    PreferenceTrainer,
    preference_arguments,
    train_preference,
)
from weakdriven.methods.rollouts.preference_pairs import Pair, Reply, pair_rows
from weakdriven.models.adapters import add_adapter
from weakdriven.models.load import EMBEDDED, load_model, locate_model
from weakdriven.runs.directory import METRICS, Progress
from weakdriven.runs.files import read_jsonl
from weakdriven.training.checkpoints import checkpoints, last_complete_checkpoint
from weakdriven.training.lora import lora_config
from weakdriven.training.phase import Phase
from weakdriven.wmss.entropy import score_dataset

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
SMALL = {
    "batch_size": 4,
    "micro_batch_size": 2,
    "learning_rate": 1e-4,
    "gradient_checkpointing": False,
    "save_steps": 2,
}
STRONG, WEAK = [4.0, 1.0, 0.0, -1.0], [2.0, 1.5, 0.5, 0.0]


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    folder = tmp_path / "run" / ".work" / "dpo" / "work"
    folder.mkdir(parents=True)
    return folder


def renderer():
    return Renderer(embedded_tokenizer(), "math", "plain")


def demo_pairs(count):
    """The data's completion against a shorter one that was cut."""
    return [
        Pair(one, Reply(one.completion), Reply(f"{one.completion[: 4 + n]} no", n % 2 == 0, 0))
        for n, one in enumerate(demo_examples(count))
    ]


def demo_rows(count):
    return Dataset.from_list(token_pairs(demo_pairs(count))[0])


def token_pairs(pairs, max_length=512):
    funnel = Funnel()
    return [row for _, row in pair_rows(pairs, renderer(), funnel, max_length=max_length)], funnel


def demo_model():
    return load_model(locate_model(EMBEDDED), precision="fp32")


def train(model, rows, work, *, epochs=1, progress=None, beta=0.1, **changes):
    work.mkdir(exist_ok=True)
    settings = TrainSettings(**(SMALL | changes))
    at = Phase("dpo", 1, epochs, work, progress or Progress())
    return train_preference(model, embedded_tokenizer(), rows, settings, RECIPE, at, beta=beta)


def trainer_of(model, rows, work, **loss):
    made = Phase("dpo", 1, 1, work, Progress()).prepare(rows, TrainSettings(**SMALL), RECIPE, COLUMNS)
    del made["optimizer_cls_and_kwargs"]
    made["args"] = preference_arguments(made["args"], beta=0.1, **loss)
    return PreferenceTrainer(model, processing_class=embedded_tokenizer(), reference=work / REFERENCE, **made)


def test_weights_are_not_hashed_for_a_cache_that_is_not_used(work):
    model = add_adapter(demo_model(), lora_config(LoraSettings(rank=2)), seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = trainer_of(model, demo_rows(2), work)
    of_nothing = hashlib.sha256().hexdigest()
    assert getattr(trainer, "_precompute_model_hash", of_nothing) == of_nothing  # TRL 1.9 hashes in what is overridden
    after = trainer.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def logged(work):
    return list(read_jsonl(work / METRICS))


def loss_of(trainer, logps, reference):
    """TRL's loss of one pair with these log-probabilities, each of two tokens."""
    policy = torch.tensor(logps, requires_grad=True)
    halves = torch.stack([policy / 2, policy / 2], dim=1)
    rest = torch.zeros(2, 2)
    logits = torch.stack([halves, torch.log1p(-halves.exp())], dim=-1)  # token 0 has these log-probabilities
    logits = torch.cat([logits, torch.zeros(2, 1, 2)], dim=1)  # which older versions of TRL compute themselves
    output = SimpleNamespace(logits=logits, log_probs=halves, entropy=rest, mean_logits=rest, is_top1=rest.bool())
    inputs = {
        "input_ids": torch.zeros(2, 3, dtype=torch.long),
        "attention_mask": torch.ones(2, 3, dtype=torch.long),
        "completion_mask": torch.tensor([[0, 1, 1]] * 2),
        "ref_chosen_logps": torch.tensor(reference[:1]),
        "ref_rejected_logps": torch.tensor(reference[1:]),
    }
    loss = trainer.compute_loss(lambda **_: output, inputs)
    loss.backward()
    rewards = [trainer._metrics["train"][f"rewards/{side}"][-1] for side in ("chosen", "rejected")]
    return loss.item(), policy.grad.tolist(), rewards


def test_loss_gradient_and_rewards_are_those_of_the_formula(work):
    trainer = trainer_of(tiny_model(vocab_size=4096).train(), demo_rows(4), work)
    loss, gradient, rewards = loss_of(trainer, [-10.0, -12.0], [-11.0, -11.5])
    assert loss == pytest.approx(0.6209570, abs=1e-6)
    assert gradient == pytest.approx([-0.0462570, 0.0462570], abs=1e-6)
    assert rewards == pytest.approx([0.1, -0.05], abs=1e-6)
    loss, gradient, rewards = loss_of(trainer, [-10.0, -12.0], [-10.0, -12.0])
    assert loss == pytest.approx(math.log(2), abs=1e-6)
    assert gradient == pytest.approx([-0.05, 0.05]) and rewards == [0, 0]


def test_a_likelihood_term_is_added_for_the_preferred_completion_alone(work):
    trainer = trainer_of(tiny_model(vocab_size=4096).train(), demo_rows(4), work, sft_weight=0.5)
    loss, gradient, _ = loss_of(trainer, [-10.0, -12.0], [-10.0, -12.0])
    assert loss == pytest.approx(math.log(2) + 0.5 * 10 / 2, abs=1e-6), "two tokens share the log-probability of 10"
    assert gradient == pytest.approx([-0.05 - 0.5 / 2, 0.05])


def test_a_pair_is_as_long_as_its_longer_side(work):
    sides = [(9, 1), (2, 8), (3, 3), (1, 7)]
    rows = [{"prompt_ids": [1, 2], "chosen_ids": [0] * chosen, "rejected_ids": [0] * other} for chosen, other in sides]
    made = Phase("dpo", 1, 1, work, Progress()).prepare(
        Dataset.from_list(rows), TrainSettings(**SMALL | {"batch_size": 4}), RECIPE, COLUMNS
    )
    found = [max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in made["train_dataset"]]
    assert found == [9, 8, 7, 3]


def test_the_demo_model_starts_at_log_2_with_our_own_log_probabilities(work):
    model, rows = demo_model(), demo_rows(12)
    scores = {}
    for side in ("chosen", "rejected"):
        whole = [row["prompt_ids"] + row[f"{side}_ids"] for row in rows]
        labels = [[IGNORE] * len(row["prompt_ids"]) + row[f"{side}_ids"] for row in rows]
        table = score_dataset(model, Dataset.from_dict({"input_ids": whole, "labels": labels}))
        scores[side] = [-row["nll"] * row["tokens"] for row in table.to_pylist()]
    counters = train(model, rows, work)
    assert counters["steps"] == 3 and counters["rows"] == 12
    first, *later = logged(work)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6) and first["rewards/margins"] == pytest.approx(
        0, abs=1e-5
    )
    assert len(later) == 2 and later[-1]["loss"] < first["loss"]
    found = list(read_jsonl(work / REFERENCE))
    for side, expected in scores.items():
        assert sorted(row[side] for row in found) == pytest.approx(sorted(expected), rel=1e-5)
    rewards = {f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins")}
    assert rewards | {"logps/chosen", "logps/rejected"} <= first.keys()


def test_tokens_are_those_of_sft_and_only_what_ended_has_an_end():
    pairs = demo_pairs(4)
    rows, funnel = token_pairs(pairs)
    end = renderer().tokenizer(renderer().end_of_turn, add_special_tokens=False)["input_ids"]
    for row, pair in zip(rows, pairs, strict=True):
        expected = tokenize(pair.example, renderer())
        assert row["prompt_ids"] + row["chosen_ids"] == expected["input_ids"]
        assert [IGNORE] * len(row["prompt_ids"]) + row["chosen_ids"] == expected["labels"]
        assert (row["rejected_ids"][-len(end) :] == end) is pair.rejected.ended
    assert funnel.kept == 4 and not any(row["truncated"] for row in rows)


def test_pairs_that_do_not_fit_or_differ_too_late_are_dropped():
    [pair] = demo_pairs(1)
    [whole], _ = token_pairs([pair])
    prompt = len(whole["prompt_ids"])
    [row], _ = token_pairs([pair], prompt + len(whole["chosen_ids"]) - 1)
    assert row["chosen_ids"] == whole["chosen_ids"][:-1] and row["truncated"]
    with pytest.raises(UserError, match=r"no different tokens: 1 .*max_length"):
        token_pairs([pair], prompt + 1)
    with pytest.raises(UserError, match="prompt too long: 1"):
        token_pairs([pair], prompt)


def test_micro_batches_of_any_size_give_the_same_loss(work):
    rows, losses = demo_rows(8), []
    for micro, checkpointing in ((1, False), (4, "keep_products")):
        options = {"micro_batch_size": micro, "gradient_checkpointing": checkpointing}
        train(demo_model(), rows, at := work.with_name(str(micro)), **options)
        losses.append([row["loss"] for row in logged(at)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_the_reference_runs_in_the_attention_of_training(work, monkeypatch):
    seen, compute = [], PreferenceTrainer.compute_ref_log_probs

    def watched(self, model, inputs):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return compute(self, model, inputs)

    monkeypatch.setattr(PreferenceTrainer, "compute_ref_log_probs", watched)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    trainer_of(demo_model(), demo_rows(4), work)
    assert seen == [False, False] and torch.backends.cuda.cudnn_sdp_enabled()


def test_the_reference_runs_once_per_pair_and_a_resumed_training_equals_an_uninterrupted_one(work, monkeypatch):
    rows, asked = demo_rows(8), []
    compute = PreferenceTrainer.compute_ref_log_probs

    def counted(self, model, inputs):
        asked.append(len(inputs["input_ids"]) // 2)
        return compute(self, model, inputs)

    monkeypatch.setattr(PreferenceTrainer, "compute_ref_log_probs", counted)
    whole = demo_model()
    train(whole, rows, work.with_name("whole"), epochs=2)
    assert asked == [2, 2, 2, 2], "two epochs, one question for each pair"

    class Kill(Progress):
        def update(self, done, total, **values):
            if done == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(demo_model(), rows, work, epochs=2, progress=Kill())
    assert last_complete_checkpoint(work / "checkpoints").name == "checkpoint-2"
    kept = (work / REFERENCE).read_text().splitlines()
    (work / REFERENCE).write_text("\n".join(kept[:4]) + '\n{"key": "half')
    asked.clear()
    again = demo_model()
    train(again, rows, work, epochs=2)
    assert asked == [2, 2], "the same two together as before, so that not a bit differs"
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(whole).items())
    assert [row["loss"] for row in logged(work)] == [row["loss"] for row in logged(work.with_name("whole"))]
    asked.clear()
    trainer_of(demo_model(), rows, work)
    assert asked == []


def test_an_adapter_is_its_own_reference_and_stays_the_only_one(work):
    model = add_adapter(demo_model(), lora_config(LoraSettings(rank=2)), seed=0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # an adapter that has learned something
            torch.nn.init.normal_(weight, std=0.05)
    train(model, demo_rows(12), work, learning_rate=1e-3)
    assert list(model.peft_config) == ["default"]
    losses = [row["loss"] for row in logged(work)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6) and losses[-1] < losses[0]


def test_a_reference_that_is_not_the_adapter_before_training_is_refused(work, monkeypatch):
    model = add_adapter(demo_model(), lora_config(LoraSettings(rank=2)), seed=0)
    # a release that copies the adapter in another way, such as from its state_dict
    own = type(model).get_parameter
    monkeypatch.setattr(type(model), "get_parameter", lambda self, name: own(self, name).detach().clone())
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    with pytest.raises(UserError, match="the reference of DPO is not the adapter before training"):
        trainer_of(model, demo_rows(2), work)


def test_spins_own_optimizer_is_torchs_rmsprop_and_resumes(work, monkeypatch):
    fit, made = preference.fit, []
    monkeypatch.setattr(preference, "fit", lambda trainer, rows: (made.append(trainer), fit(trainer, rows))[1])
    whole, again, rows = demo_model(), demo_model(), demo_rows(8)
    options = {"optimizer": "rmsprop", "epochs": 2, "learning_rate": 1e-5, "weight_decay": 0.1}
    train(whole, rows, work.with_name("whole"), **options)
    [trainer] = made
    optimizer = trainer.optimizer.optimizer
    assert type(optimizer) is torch.optim.RMSprop
    assert {group["alpha"] for group in optimizer.param_groups} == {0.99}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1, 0.0}
    assert len(optimizer.state) == len(list(whole.parameters()))
    train(demo_model(), rows, work, **options)
    assert [path.name for path in checkpoints(work / "checkpoints")] == ["checkpoint-2"]
    train(again, rows, work, **options)
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(whole).items())
    assert not torch.equal(weights(again)["lm_head.weight"], weights(demo_model())["lm_head.weight"])

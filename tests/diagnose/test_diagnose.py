"""`weakdriven diagnose`: of finished, unfinished, damaged and older runs, compared with the models themselves."""

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from small_runs import Recorder, run_small
from weakdriven.commands.app import main
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import load_examples
from weakdriven.data.tokenize import IGNORE, load_tokens, tokenize
from weakdriven.diagnose.diagnose import chosen_round, diagnose_run, read_diagnosis
from weakdriven.diagnose.forward_pass import draw_sample
from weakdriven.diagnose.run_models import find_models
from weakdriven.diagnose.token_view import SCHEMA
from weakdriven.errors import UserError
from weakdriven.models.load import load_tokenizer, locate_model
from weakdriven.report import load_run, write_report
from weakdriven.report.run.diagnosis import print_diagnosis
from weakdriven.report.run.tokens import token_view
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import read_json, write_json, write_jsonl
from weakdriven.runs.manifest import rewriting
from weakdriven.wmss import entropy as scan
from weakdriven.wmss.score_files import read_scores

CHAIN = ["base", "sft", "round-1", "round-2"]


@pytest.fixture
def run(two_round_run, tmp_path) -> Path:
    """A copy of a finished run, to be damaged."""
    return Path(shutil.copytree(two_round_run[0], tmp_path / "run"))


@pytest.fixture(scope="module")
def diagnosed(two_round_run, tmp_path_factory) -> Path:
    """A run whose last round was diagnosed on all of its examples."""
    root = Path(shutil.copytree(two_round_run[0], tmp_path_factory.mktemp("diagnosed") / "run"))
    diagnose_run(root, Progress())
    return root


def diagnose(root: Path, **options):
    recorder = Recorder()
    folder = diagnose_run(root, recorder, **({"examples": 4, "replace": True} | options))
    return read_diagnosis(folder), recorder


def mean(found, model: str, name: str) -> float:
    return found["logits"]["models"][model]["statistics"][name]["mean"]


def test_a_finished_run_is_diagnosed_completely(diagnosed):
    found = read_diagnosis(diagnosed / "diagnostics")
    facts = found["logits"]["facts"]
    assert facts["missing"] == {}
    assert (facts["round"], facts["examples"]) == (2, 48)
    assert list(found["logits"]["models"]) == [*CHAIN, "baseline-sft"]
    roles = {"weak": "sft", "strong_before": "round-1", "strong_after": "round-2", "control": "baseline-sft"}
    assert facts["roles"] == roles
    plan = read_json(diagnosed / "plan.json")
    assert facts["models"]["sft"]["key"] == plan["sft"]
    assert facts["models"]["round-2"]["key"] == plan["round-2/strong"]
    assert [one["model"] for one in found["drift"]["models"]] == CHAIN
    assert {"torch", "weakdriven"} <= facts["versions"].keys()


def test_entropies_equal_those_of_the_selection(diagnosed):
    found = read_diagnosis(diagnosed / "diagnostics")
    for model in ("base", "sft", "round-1"):
        scores = read_scores(diagnosed / f"entropy/{model}/scores.parquet")
        tokens = scores["tokens"].to_numpy()
        for name, column in (("entropy", "entropy"), ("nll", "nll")):
            expected = np.average(scores[column].to_numpy(), weights=tokens)
            assert mean(found, model, name) == pytest.approx(expected, rel=1e-4)
    assert found["logits"]["facts"]["tokens"] == tokens.sum()


def test_tables_and_pairs_follow_from_the_logits_of_the_models(run):
    found, _ = diagnose(run, examples=5, round_number=1, seed=7)
    sample = draw_sample(load_tokens(run / "data/tokens.arrow"), 5, 7)
    folders = {"base": locate_model("embedded:base"), "sft": run / "sft", "round-1": run / "round-1/strong"}
    logits, targets = {}, []
    for name, folder in folders.items():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        rows, targets = [], []
        for row in sample.dataset:
            labels = torch.tensor(row["labels"][1:])
            with torch.no_grad():
                rows.append(model(torch.tensor([row["input_ids"]])).logits[0, :-1][labels != IGNORE].double())
            targets.append(labels[labels != IGNORE])
        logits[name] = torch.cat(rows)
    y = torch.cat(targets)
    for name, z in logits.items():
        target, vocabulary = z.gather(1, y[:, None])[:, 0], z.shape[1]
        background = (z.sum(-1) - target) / (vocabulary - 1)
        expected = {
            "target": target,
            "background": background,
            "gap": target - background,
            "mean": z.mean(-1),
            "std": z.std(-1, correction=0),
            "centered_norm": (z - z.mean(-1, keepdim=True)).norm(dim=-1),
            "l2": z.norm(dim=-1),
            "max_probability": z.softmax(-1).amax(-1),
            "top_right": (z.argmax(-1) == y).double(),
        }
        for key, value_T in expected.items():
            assert mean(found, name, key) == pytest.approx(value_T.mean().item(), rel=1e-3, abs=1e-4), (name, key)
        one = found["logits"]["models"][name]
        assert (one["largest"], one["smallest"]) == pytest.approx((z.max().item(), z.min().item()), rel=1e-3)
    after, before = (mean(found, name, "mean") for name in ("round-1", "sft"))
    change = found["logits"]["changes_to_strong_after"]["strong_before"]["mean"]
    assert change == pytest.approx({"difference": after - before, "relative": (after - before) / before})
    pair = found["gradients"]["pairs"]["before"]
    assert (pair["weak"], pair["strong"], pair["strong_weight"]) == ("base", "sft", 0.5)
    mixed = (logits["base"] + logits["sft"]) / 2
    onehot = torch.nn.functional.one_hot(y, mixed.shape[1])
    norms = {
        name: (z.softmax(-1) - onehot).norm(dim=-1).mean().item() for name, z in (("m", mixed), ("s", logits["sft"]))
    }
    assert pair["gradient_over_sft"]["strong"] == pytest.approx(0.5 * norms["m"] / norms["s"], rel=1e-3)
    difference = logits["base"] - logits["sft"]
    hard = difference > difference.gather(1, y[:, None])
    assert pair["statistics"]["hard_negatives"]["mean"] == pytest.approx(hard.sum(-1).double().mean().item(), abs=0.5)
    ratio = (mean(found, "sft", "centered_norm") / mean(found, "base", "centered_norm")) ** 2
    assert pair["sensitivity_ratio"] == pytest.approx(ratio)
    assert pair["crossover"] == pytest.approx(1 / (1 + math.sqrt(ratio)))
    assert found["gradients"]["pairs"]["after"]["strong"] == "round-1"


def test_every_example_passes_through_each_model_once(run, monkeypatch):
    rows: dict[int, int] = {}
    inner = scan.hidden_states

    def counted(model, inputs):
        rows[id(model)] = rows.get(id(model), 0) + inputs["input_ids"].shape[0]
        return inner(model, inputs)

    monkeypatch.setattr(scan, "hidden_states", counted)
    found, _ = diagnose(run, examples=8)
    assert sum(rows.values()) == 8 * len(found["logits"]["models"]) == 40


def test_a_repeated_diagnosis_is_reused_and_a_changed_one_runs_again(run):
    first, recorder = diagnose(run)
    assert recorder.ran == {"diagnostics": "not run yet"}
    again, recorder = diagnose(run)
    assert again == first and recorder.ran == {} and recorder.skipped == ["diagnostics"]
    before = (run / "diagnostics/logits.json").read_bytes()
    for other in ({"seed": 1}, {"examples": 5}, {"round_number": 1}):
        with pytest.raises(UserError, match=r"(?s)diagnostics .*--replace"):
            diagnose(run, **other, replace=False)
    assert (run / "diagnostics/logits.json").read_bytes() == before
    _, recorder = diagnose(run, seed=1)
    assert recorder.ran == {"diagnostics": "seed 42 -> 1"}
    manifest = read_json(run / "sft/manifest.json")
    write_json(run / "sft/manifest.json", manifest | {"key": "trained-again"})
    found, recorder = diagnose(run, seed=1)
    assert recorder.ran == {"diagnostics": "input sft changed"}
    assert any("From an older recipe or version: sft" in note for note in found["logits"]["facts"]["notes"])


def test_the_seed_decides_which_examples_are_drawn(two_round_run):
    dataset = load_tokens(two_round_run[0] / "data/tokens.arrow")
    draws = [draw_sample(dataset, 8, seed).row_N.tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert draw_sample(dataset, 1000, 1).row_N.tolist() == list(range(48))


def test_tokens_are_listed_with_their_hard_negatives(diagnosed):
    table = pq.read_table(diagnosed / "diagnostics/tokens.parquet")
    assert table.schema.equals(SCHEMA)
    rows = table.to_pylist()
    by_list = {name: {row["id"] for row in rows if name in row["lists"]} for name in ("hardest", "regressed", "random")}
    assert len(by_list["hardest"]) == len(by_list["random"]) == 12
    scores = {name: read_scores(diagnosed / f"entropy/{name}/scores.parquet") for name in ("sft", "round-1")}
    ids, (weak, strong) = scores["sft"]["id"].to_pylist(), (one["entropy"].to_numpy() for one in scores.values())
    assert by_list["hardest"] == {ids[n] for n in np.argsort(-strong)[:12]}
    risen = {ids[n] for n in np.argsort(weak - strong)[:12] if strong[n] > weak[n]}
    assert by_list["regressed"] == risen and 0 < len(risen) < 12, "fewer have risen than the list may hold"
    for row in rows:
        assert row["token"] not in row["negative_tokens"] and len(row["negative_tokens"]) <= 8
        assert row["negative_mixed"] == sorted(row["negative_mixed"], reverse=True)
        assert row["negative_gradient"] == pytest.approx([0.5 * p for p in row["negative_mixed"]], rel=1e-5)
        assert sum(row["negative_mixed"]) <= 1 - row["mixed_probability"] + 1e-5
        assert 0 <= row["disagreement"] <= 1 and 0 <= row["after_probability"] <= 1
    examples = {row["id"]: row for row in map(json.loads, (diagnosed / "data/examples.jsonl").open())}
    one = rows[0]["id"]
    text = "".join(row["text"] for row in rows if row["id"] == one)
    assert str(examples[one]["completion"]).strip()[:20] in text


def test_shielding_per_step_equals_what_training_logged(diagnosed):
    drift = read_diagnosis(diagnosed / "diagnostics")["drift"]
    assert list(drift["steps"]) == ["round-1/strong", "round-2/strong"]
    logged = [json.loads(line) for line in (diagnosed / "round-1/strong/metrics.jsonl").read_text().splitlines()]
    steps = drift["steps"]["round-1/strong"]
    assert [one["step"] for one in steps] == [row["step"] for row in logged]
    assert steps[0]["negative_mass_mixed"] == pytest.approx(1 - logged[0]["mixed_probability"])
    assert 0 < steps[0]["strong_grad_share"] < 1
    assert [one["round"] for one in drift["rounds"]] == [1, 2, 3]
    for name in ("strong_mean_logit", "weak_mean_logit"):
        assert [one[name] for one in steps] == [row[name] for row in logged]
    assert not any("Mean logits" in note for note in drift["facts"]["notes"])


def test_a_log_without_mean_logits_gives_a_note(run):
    path = run / "round-1/strong/metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if "mean_logit" not in name} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    found, _ = diagnose(run)
    drift = found["drift"]
    assert "strong_mean_logit" not in drift["steps"]["round-1/strong"][0]
    said = [note for note in drift["facts"]["notes"] if "Mean logits" in note]
    assert len(said) == 1 and "over the steps of round-1/strong are unknown" in said[0]


def test_a_run_without_rounds_shows_its_first_models_and_lists_the_missing_ones(run):
    for turn in (1, 2):
        shutil.rmtree(run / f"round-{turn}")
    found, _ = diagnose(run)
    facts = found["logits"]["facts"]
    assert facts["missing"] == {"round-1/strong": "not run yet", "round-2/strong": "not run yet"}
    assert facts["roles"] == {"weak": "base", "strong_before": "sft", "control": "baseline-sft"}
    assert list(found["gradients"]["pairs"]) == ["before"]
    assert found["logits"]["changes_to_strong_after"] == {} and found["drift"]["steps"] == {}


def test_a_run_of_another_method_misses_no_round(run):
    for stage in ("sft", "round-1", "round-2"):
        shutil.rmtree(run / stage)
    plan = read_json(run / "plan.json")
    write_json(run / "plan.json", {stage: key for stage, key in plan.items() if stage in ("data", "baselines/sft")})
    recipe = (run / "recipe.yaml").read_text().replace("method: wmss", "method: sft")
    (run / "recipe.yaml").write_text(recipe.replace("baselines:\n- sft", "baselines: []"))
    found, _ = diagnose(run)
    assert found["logits"]["facts"]["missing"] == {"sft": "not asked for"}
    assert list(found["logits"]["models"]) == ["base", "baseline-sft"]
    assert found["gradients"]["pairs"] == {}
    print_diagnosis(found, Console(width=100))


def test_an_unfinished_round_is_listed_with_its_log(run):
    work = run / ".work/round-2--strong/work"
    work.mkdir(parents=True)
    shutil.copy(run / "round-2/strong/metrics.jsonl", work)
    shutil.rmtree(run / "round-2/strong")
    with (work / "metrics.jsonl").open("a") as log:
        log.write('{"step": 9, "mixed_prob')
    found, _ = diagnose(run)
    facts = found["logits"]["facts"]
    assert facts["round"] == 1 and facts["missing"] == {"round-2/strong": "not finished"}
    assert found["drift"]["steps"]["round-2/strong"]


def test_held_out_rows_replace_the_training_rows(run, tmp_path, capsys):
    trained, _ = diagnose(run)
    shutil.rmtree(run / "data")
    examples = load_examples("embedded:arithmetic", "test", 4)
    write_jsonl(tmp_path / "rows.jsonl", [example.as_row() for example in examples])
    held_out, recorder = diagnose(run, rows=str(tmp_path / "rows.jsonl"))
    assert "input rows changed" in recorder.ran["diagnostics"]
    facts = held_out["logits"]["facts"]
    assert facts["examples"] == 4 and facts["rows"].endswith("rows.jsonl")
    data = find_models(run).recipe.data
    renderer = Renderer(load_tokenizer(run / "sft"), data.domain, data.style)
    expected = [tokenize(example, renderer)["labels"][1:] for example in examples]
    assert facts["tokens"] == sum(label != IGNORE for labels in expected for label in labels)
    assert mean(held_out, "sft", "nll") != mean(trained, "sft", "nll") and "data" not in facts["missing"]
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("max_length: ", "max_length: 1"))
    _, recorder = diagnose(run, rows=str(tmp_path / "rows.jsonl"))
    assert "max_length" in recorder.ran["diagnostics"]
    print_diagnosis(held_out, Console(width=200))
    assert "4 examples of" in (shown := capsys.readouterr().out) and "calibration error" in shown


def test_held_out_tokens_have_their_own_questions_and_skipped_rows_are_counted(run, tmp_path):
    texts = [("What is held out?", "Forty two."), ("What else?", ""), ("And what is that?", "Also held out.")]
    rows = [{"question": question, "solution": solution} for question, solution in texts]  # no ids: numbers, as trained
    write_jsonl(tmp_path / "rows.jsonl", rows)
    found, _ = diagnose(run, rows=str(tmp_path / "rows.jsonl"))
    assert any("3 rows of" in note and "1 because the completion" in note for note in found["logits"]["facts"]["notes"])
    shown = token_view(run, [])["examples"]
    assert {one["question"] for one in shown} == {"What is held out?", "And what is that?"}
    diagnose(run)
    assert not (run / "diagnostics/examples.jsonl").exists()


def test_rows_that_cannot_be_read_leave_the_diagnosis_as_it_was(run, tmp_path, monkeypatch, capsys):
    before, _ = diagnose(run)
    write_jsonl(tmp_path / "long.jsonl", [{"question": "word " * 5000, "solution": "1"}])
    for rows, reason in (
        (str(tmp_path / "gone.jsonl"), "there is no such data file"),
        ("~nobody-here/x.jsonl", "there is no such data file"),
        ("", "--rows is empty"),
        (str(tmp_path / "long.jsonl"), r"--rows .*long.jsonl: Nothing is left to train on: 1 prompts"),
    ):
        with pytest.raises(UserError, match=reason):
            diagnose_run(run, Progress(), examples=8, rows=rows, replace=True)
    assert read_diagnosis(run / "diagnostics") == before and not (run / ".work/diagnostics").exists()
    odd = tmp_path / "x[/b]c.jsonl"  # as markup it would end what nothing began
    odd.parent.mkdir()
    write_jsonl(odd, [{"question": "What is held out?", "solution": "Forty two."}])
    monkeypatch.setattr(sys, "argv", ["weakdriven", "diagnose", str(run), "--rows", str(odd), "--replace", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code and "x[/b]c.jsonl, " in capsys.readouterr().out


def test_without_tokenized_rows_only_the_logs_are_shown(run):
    shutil.rmtree(run / "data")
    found, _ = diagnose(run)
    facts = found["logits"]["facts"]
    assert facts["missing"]["data"] == "not run yet" and facts["examples"] == 0
    assert found["logits"]["models"] == {} and found["gradients"]["pairs"] == {}
    assert found["drift"]["steps"]["round-1/strong"]


def test_a_damaged_model_is_left_out_and_tried_again(run):
    file = run / "round-2/strong/model.safetensors"
    whole, manifest = file.read_bytes(), (file.parent / "manifest.json").read_bytes()
    weights = load_file(file)
    broken = {name: torch.full_like(weight, math.nan) for name, weight in weights.items()}
    with rewriting(file.parent, file.name):
        save_file(broken, file, {"format": "pt"})
    found, _ = diagnose(run)
    assert "not finite" in found["logits"]["facts"]["missing"]["round-2"]
    assert "round-2" not in found["logits"]["models"] and "round-1" in found["logits"]["models"]
    file.write_bytes(whole)
    (file.parent / "manifest.json").write_bytes(manifest)
    found, recorder = diagnose(run)
    assert recorder.ran and found["logits"]["facts"]["missing"] == {}


def test_an_unreadable_manifest_is_listed(run):
    (run / "sft/manifest.json").write_text('{"key": ')
    (run / "plan.json").unlink()
    found, _ = diagnose(run, round_number=1)
    facts = found["logits"]["facts"]
    assert facts["missing"] == {"sft": "its manifest.json cannot be read"}
    assert facts["roles"] == {"weak": "base", "strong_after": "round-1", "control": "baseline-sft"}
    assert any(note.startswith("plan.json is missing") for note in facts["notes"])
    assert list(found["gradients"]["pairs"]) == ["after"]


def test_unknown_settings_of_another_version_are_a_note(run):
    text = (run / "recipe.yaml").read_text().replace("selection:", "selection:\n  gone: 3", 1)
    (run / "recipe.yaml").write_text(f"{text}\nolder_setting: true\n")
    found, _ = diagnose(run)
    facts = found["logits"]["facts"]
    assert facts["missing"] == {} and facts["round"] == 2
    [note] = [note for note in facts["notes"] if note.startswith("recipe.yaml")]
    assert "older_setting" in note and "selection.gone" in note


def test_a_saved_weak_model_is_paired_at_the_end_and_the_page_calls_nothing_retrained(run):
    shutil.copytree(run / "sft", run / "round-2/strong/weak", ignore=shutil.ignore_patterns("manifest.json"))
    found, _ = diagnose(run)
    assert found["logits"]["facts"]["roles"]["weak_after"] == "round-2-weak"
    pair = found["gradients"]["pairs"]["after"]
    assert (pair["weak"], pair["strong"]) == ("round-2-weak", "round-2")
    assert not any("save_weak" in note for note in found["logits"]["facts"]["notes"])
    assert mean(found, "round-2-weak", "mean") == mean(found, "sft", "mean")
    assert not [problem for problem in load_run(run)["problems"] if "retrained" in problem]
    manifest = run / "sft/manifest.json"
    write_json(manifest, read_json(manifest) | {"key": "other"})
    assert [problem for problem in load_run(run)["problems"] if "sft has been retrained" in problem]


def test_a_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"is not a run directory: it has no run\.json"):
        diagnose_run(tmp_path, Progress())
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="nothing has run in it yet"):
        diagnose_run(tmp_path, Progress())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    "options, words",
    [({"round_number": 0}, "no round 0"), ({"round_number": 3}, "give --round from 1 to 2"), ({"examples": 0}, "is 0")],
)
def test_a_round_that_the_run_does_not_have_or_no_examples_are_an_error(two_round_run, options, words):
    with pytest.raises(UserError, match=words):
        diagnose_run(two_round_run[0], Progress(), **options)


def test_a_round_of_another_recipe_is_diagnosed_only_on_request(two_round_run):
    found = find_models(two_round_run[0])
    assert chosen_round(found, None) == 2
    del found.plan["round-2/strong"]  # as a recipe with one round leaves it
    assert chosen_round(found, None) == 1 and chosen_round(found, 2) == 2


def test_diagnostics_are_no_leftover_of_an_older_recipe(diagnosed):
    page = write_report(diagnosed).read_text()
    assert "from an older recipe" not in page
    assert run_small(diagnosed, "joint.rounds=2").ran == {}


def test_the_command_prints_both_tables_and_the_pair(diagnosed, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["weakdriven", "diagnose", str(diagnosed), "--quiet"])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.err) == (0, "")
    for words in (
        "Logit dynamics",
        "Extended logit statistics",
        "Mixture of weak and strong",
        "crossover (lambda_cross)",
    ):
        assert words in printed.out
    assert "Round 2: 48 training examples" in printed.out and "nan" not in printed.out

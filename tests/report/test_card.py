"""The model card of whole, unfinished and hostile runs: what it says, what the Hub reads, what is left alone."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from run_files import put
from weakdriven.commands.app import app
from weakdriven.report import load_run
from weakdriven.report.card.card import MARK, escaped, result_stages, write_cards
from weakdriven.report.card.front_matter import hub_id, licence, public_name, without_paths
from weakdriven.report.run.verdict import verdict

EVIL = "<script>alert(1)</script>"
KEY = "ab12"


def recipe(**changes: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "method": "wmss",
        "model": "Qwen/Qwen3-4B-Base",
        "data": {"path": "owner/rows:main", "split": "train"},
        "sft": {"epochs": 1, "model": None},
        "selection": {"enabled": True, "reuse": []},
        "joint": {"rounds": 1, "enabled": True, "strong_weight": 0.5},
        "eval": {"benchmarks": ["arithmetic"], "data_dir": None},
        "baselines": ["sft"],
    } | changes


def put_manifest(run: Path, stage: str, **counters: Any) -> None:
    facts = {"wall_seconds": 90.0, "peak_memory_bytes": 3 * 2**30, "finished": "2026-11-15", "counters": counters}
    facts |= {"versions": {"torch": "2.9.0", "trl": "1.16.0", "bitsandbytes": "not installed"}, "hardware": "1 x H200"}
    facts["inputs"] = {"rows": "owner/rows:main@0a1b/train"} if stage == "data" else {}
    put(run / stage / "manifest.json", {"stage": stage, "key": KEY, **facts})


def put_scores(run: Path, model: str, correct: int, items: int = 80) -> None:
    stage, share = f"eval/{model}/arithmetic", correct / items
    facts = {"benchmark": "arithmetic", "version": 2, "items": items, "samples": 1, "correct": correct}
    facts |= {"accuracy": share, "interval": [share - 0.1, share + 0.1], "pass_at_k": {"1": share, "4": 0.9}}
    put(run / stage / "scores.json", facts)
    put_manifest(run, stage)


def make_run(run: Path, settings: dict[str, Any] | None = None, *, evaluated: bool = True) -> Path:
    facts = {"recipe": "demo", "weakdriven": "0.1.0", "created": "2026-11-15T03:00:00+00:00"}
    put(run / "run.json", facts | {"hub_models": ["Qwen/Qwen3-4B-Base"]})
    put(run / "recipe.yaml", yaml.safe_dump(settings or recipe()))
    models = {"base": 8, "sft": 41, "baseline-sft": 44, "round-1": 60}
    stages = ["data", "sft", "round-1/active", "round-1/strong", "baselines/sft"]
    put(run / "plan.json", dict.fromkeys([*stages, *(f"eval/{model}/arithmetic" for model in models)], KEY))
    put_manifest(run, "data", rows_read=100, examples=96, dropped_long_prompts=4, supervised_tokens=4729)
    put_manifest(run, "sft", steps=10, rows=160)
    put_manifest(run, "round-1/active", active=58)
    put_manifest(run, "round-1/strong", steps=5, rows=80)
    put_manifest(run, "baselines/sft", steps=20, rows=320)
    for model, correct in models.items() if evaluated else ():
        put_scores(run, model, correct)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path)


def card(run: Path, stage: str = "round-1/strong") -> str:
    assert write_cards(run)[run / stage / "README.md"]
    return (run / stage / "README.md").read_text(encoding="utf-8")


def test_the_hub_reads_base_data_library_and_the_scores_of_the_result(run):
    card(run)
    read = ModelCard.load(run / "round-1/strong/README.md").data
    assert read.base_model == "Qwen/Qwen3-4B-Base" and read["base_model_relation"] == "finetune"
    assert read.datasets == ["owner/rows"] and read.library_name == "transformers"
    assert read.pipeline_tag == "text-generation" and read.tags == ["weakdriven", "wmss", "trl"]
    scores = json.loads((run / "eval/round-1/arithmetic/scores.json").read_text())
    found = {one.metric_type: one for one in read.eval_results}
    assert set(found) == {"accuracy", "pass@4"} and found["accuracy"].dataset_name == "arithmetic"
    assert found["accuracy"].metric_value == scores["accuracy"] and found["pass@4"].metric_value == 0.9
    assert found["accuracy"].metric_args == {"interval_95": scores["interval"]}


def test_the_card_tells_what_was_run_with_scores_data_versions_and_cost(run):
    text = card(run)
    assert "Qwen/Qwen3-4B-Base (M0) was fine-tuned into M1" in text and "after round 1 of 1" in text
    for row in (
        "| arithmetic | M0, base model | 8 / 80 | 10.0% | 0.0 to 20.0 | 90.0% |",
        "| arithmetic | M1, after phase-1 SFT | 41 / 80 | 51.2% |",
        "| arithmetic | SFT, same epochs | 44 / 80 | 55.0% |",
        "| arithmetic | **WMSS, round 1** | 60 / 80 | 75.0% | 65.0 to 85.0 |",
        "| round-1/strong | 1 min 30 s | 5 | 3.00 GiB |",
    ):
        assert row in text
    assert escaped(" ".join(verdict(load_run(run)))) in text
    assert "100 read, 96 trained on (4 left out because the prompt was too long)" in text and "drew 58" in text
    assert "torch 2.9.0, trl 1.16.0. Trained on 1 x H200." in text and "arXiv:2602.08222" in text
    block = re.search(r"```yaml\n(.*?)\n```", text, re.DOTALL)
    assert block and yaml.safe_load(block[1]) == {
        "name": "demo",
        "model": "Qwen/Qwen3-4B-Base",
        "data": {"path": "owner/rows:main"},
        "sft": {"epochs": 1},
        "joint": {"rounds": 1, "strong_weight": 0.5},
        "eval": {"benchmarks": ["arithmetic"]},
        "baselines": ["sft"],
    }


def test_an_unfinished_run_has_a_card_that_names_what_is_missing(tmp_path):
    run = make_run(tmp_path, recipe(joint={"rounds": 2, "strong_weight": 0.5}), evaluated=False)
    put(run / "plan.json", dict.fromkeys(["data", "sft", "round-1/strong", "round-2/strong"], KEY))
    text = card(run)
    assert "after round 1 of 2" in text and "Nothing has been evaluated yet." in text
    assert "results are still missing for: round-2/strong." in text
    assert ModelCard(text).data.eval_results is None and "model_name" not in text
    (run / "round-1/strong/manifest.json").unlink()
    assert write_cards(run) == {}


@pytest.mark.parametrize(
    ("method", "stages", "expected"),
    [
        ("sft", ["baselines/sft"], ["baselines/sft"]),
        ("spin", ["baselines/spin", "baselines/spin-2", "baselines/spin-10"], ["baselines/spin-10"]),
        ("wmss", ["round-9/strong", "round-10/strong", "merged"], ["round-10/strong", "merged"]),
        ("dpo", ["round-1/strong"], []),
    ],
)
def test_the_result_is_what_the_method_ends_with(tmp_path, method, stages, expected):
    put(tmp_path / "recipe.yaml", yaml.safe_dump({"method": method}))
    put(tmp_path / "plan.json", dict.fromkeys(stages, KEY))
    for stage in stages:
        put_manifest(tmp_path, stage)
    assert result_stages(load_run(tmp_path)) == expected
    assert set(write_cards(tmp_path)) == {tmp_path / stage / "README.md" for stage in expected}


def test_an_adapter_is_called_one_and_the_empty_form_of_peft_is_replaced(run):
    put(run / "round-1/strong/adapter_config.json", {})
    put(run / "round-1/strong/README.md", "---\nbase_model: /home/me/x\n---\n\n# Model Card for Model ID\n\nmore\n")
    text = card(run)
    data = ModelCard(text).data
    assert data.library_name == "peft" and data["base_model_relation"] == "adapter"
    assert "the LoRA adapter after round 1" in text and "/home/me" not in text
    put(run / "plan.json", {"round-1/strong": KEY, "merged": KEY})
    put_manifest(run, "merged")
    merged = card(run, "merged")
    assert "before it was merged" in merged and ModelCard(merged).data["base_model_relation"] == "finetune"


def test_no_path_of_this_machine_is_in_the_card(tmp_path):
    base = tmp_path / "home/someone/models/tiny-base"
    put(base / "README.md", "---\nlicense: other\nlicense_name: gemma\nlicense_link: LICENSE\n---\n")
    settings = recipe(
        model=str(base),
        data={"path": str(tmp_path / "home/someone/rows/train.jsonl")},
        eval={"data_dir": "/home/someone/benchmarks", "code_python": "~/envs/code/bin/python"},
        selection={"reuse": ["../someone/runs/old", "C:\\Users\\someone\\old"]},
    )
    run = make_run(tmp_path / "runs/demo", settings)
    text = card(run)
    assert "someone" not in text and str(tmp_path) not in text
    assert "tiny-base (M0)" in text and "Rows from train.jsonl" in text
    data = ModelCard(text).data
    assert data.base_model is None and data.license == "other" and data.license_name == "gemma"
    assert data.license_link is None, "the file it names is not in this folder"


def test_text_of_a_run_is_never_markup(tmp_path):
    run = make_run(tmp_path, recipe(model=EVIL, data={"path": f"x|{EVIL}\n# title"}, name="```\n<script>"))
    put(run / "run.json", {"recipe": f"{EVIL} [x](javascript:1) *a*", "hub_models": [EVIL]})
    put(run / "data/funnel.json", {"in": 4, "kept": 3, "dropped": {EVIL: {"rows": 1, "first": []}}})
    text = card(run)
    matter, body = text[4:].split("\n---\n", 1)
    fence = re.search(r"^(`{4,})yaml\n(.*?)\n\1$", body, re.DOTALL | re.MULTILINE)
    assert fence and "```" in fence[2], "the block ends at a fence that its own text does not hold"
    assert "<script" not in body.replace(fence[0], "") and r"\[x\](javascript:1) \*a\*" in body
    assert "dropped: &lt;script&gt;alert(1)" in body and "| kept | 3 |" in body
    assert yaml.safe_load(matter)["model-index"][0]["results"]


def test_the_licence_of_the_base_is_that_of_its_own_card_or_said_to_be_unknown(tmp_path):
    put(tmp_path / "base/README.md", "---\nlicense: apache-2.0\n---\n# Base\n")
    assert licence(str(tmp_path / "base")) == {"license": "apache-2.0"} == licence("embedded:base")
    for text in ("no front matter", "---\nlicense: [a, b]\n---\n", "---\n: : :\n---\n", "---\nlicense: <b>\n---\n"):
        put(tmp_path / "base/README.md", text)
        assert licence(str(tmp_path / "base")) == {}
    run = make_run(tmp_path / "run", recipe(model=str(tmp_path / "base")))
    text = card(run)
    assert "was not found when this card was written" in text and ModelCard(text).data.license is None
    snapshot = tmp_path / "hub/models--owner--name/snapshots/ab12"
    put(snapshot / "README.md", "---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---\n")
    link = "https://huggingface.co/owner/name/blob/main/LICENSE"
    assert licence(str(snapshot)) == {"license": "other", "license_name": "own", "license_link": link}


def test_a_base_whose_name_no_repository_can_have_has_no_known_licence():
    assert licence("/gone/models--my--own--base/snapshots/ab12") == {}
    assert licence("my--models/base", ["my--models/base"]) == {}


def test_a_card_that_someone_edited_stays_and_an_own_one_is_written_again(run):
    first, path = card(run), run / "round-1/strong/README.md"
    assert first.rstrip().splitlines()[-1].startswith(MARK.split("{}")[0])
    put_scores(run, "round-1", 20)
    assert card(run) != first and "25.0%" in path.read_text()
    edited = path.read_text().replace("# demo", "# My model")
    path.write_text(edited)
    output = CliRunner().invoke(app, ["report", str(run)]).output
    assert "README.md was edited" in output and path.read_text() == edited
    path.write_text("# Mine\n")
    assert write_cards(run) == {path: False} and path.read_text() == "# Mine\n"


def test_the_card_of_a_run_that_shares_the_file_is_left_alone(tmp_path):
    run, sibling = make_run(tmp_path / "run"), tmp_path / "sibling.md"
    first = card(run)
    os.link(run / "round-1/strong/README.md", sibling)
    put_scores(run, "round-1", 20)
    assert card(run) != first and sibling.read_text() == first


def test_a_broken_recipe_or_none_still_gives_a_card(run):
    put(run / "recipe.yaml", "a: [")
    assert "a base model that was not recorded" in card(run)
    (run / "recipe.yaml").unlink()
    assert ModelCard(card(run)).data.base_model is None


def test_names_are_hub_ids_or_the_last_part_of_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {"owner/name", "owner/name:main"}
    assert hub_id("owner/name", known) == "owner/name" and public_name("owner/name:main", known) == "owner/name:main"
    put(tmp_path / "owner/name/config.json", {})
    assert hub_id("owner/name", known) == "owner/name", "what lies here now says nothing of what was read then"
    assert hub_id("models/tiny", known) is None and public_name("models/tiny", known) == "tiny"
    assert without_paths({"a": ["/x/y", 1, None], "b": "plain"}) == {"a": ["y", 1, None], "b": "plain"}


def test_a_folder_that_looks_like_a_hub_id_is_none_wherever_the_card_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", recipe(model="models/tiny", data={"path": "data/train"}))
    put(run / "data/funnel.json", {"in": 4, "kept": 4, "sources": ["raw/rows"], "dropped": {}})
    for facts in ({"recipe": "demo", "hub_models": []}, {"recipe": "demo"}):  # of a run, and of an older one
        put(run / "run.json", facts)
        text = card(run)
        read = ModelCard(text).data
        assert read.base_model is None and read.datasets is None and "base_model_relation" not in text
        assert "models/tiny" not in text and "data/train" not in text and "tiny (M0)" in text
    key = "raw/rows@0a1b/train"
    facts = {"in": 4, "kept": 4, "sources": ["raw/rows", "x/y"], "dropped": {}}
    put(run / "data/funnel.json", facts | {"settings": {"sources": [["rows", key], ["y", "0123abcd"]]}})
    card(run)
    assert ModelCard.load(run / "round-1/strong/README.md").data.datasets == ["raw/rows"], "the build tells which"


def test_what_another_run_computed_is_no_cost_of_this_one(tmp_path):
    run = make_run(tmp_path, evaluated=False)
    assert "| **all** | 7 min 30 s |" in card(run)
    manifest = json.loads((run / "sft/manifest.json").read_text())
    put(run / "sft/manifest.json", manifest | {"taken_from": "/home/someone/other/sft"})
    text = card(run)
    assert "| sft | taken over from another run, not counted | 10 |" in text and "| **all** | 6 min" in text
    assert "/home/someone" not in text

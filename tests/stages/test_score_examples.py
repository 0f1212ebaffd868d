"""The entropy stages: exact, each example once, the same after an interruption, and taken over from other runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from small_runs import Recorder, small_recipe
from weakdriven.data.tokenize import IGNORE, load_tokens
from weakdriven.errors import UserError
from weakdriven.models.load import load_model, locate_model
from weakdriven.pipeline.run import select_recipe
from weakdriven.runs.directory import work_folder
from weakdriven.stages import entropy as scoring
from weakdriven.stages.model_loader import Loader
from weakdriven.wmss import score_files as scores
from weakdriven.wmss.score_files import read_scores

BASE = locate_model("embedded:base")
ROWS = 32
FEW = [f"data.limit={ROWS}", "selection.batch_tokens=384"]
MODELS = ("base", "sft")


def select(root: Path, *overrides: str) -> Recorder:
    recorder = Recorder()
    assert select_recipe(small_recipe(*FEW, *overrides), root, recorder, replace=True)
    return recorder


def counters(root: Path, stage: str) -> dict:
    return json.loads((root / stage / "manifest.json").read_text())["counters"]


def files(root: Path) -> dict[str, bytes]:
    names = [f"entropy/{model}/scores.parquet" for model in MODELS] + ["round-1/active/active.parquet"]
    return {name: (root / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def ready(two_round_run) -> str:
    """An override that gives a trained M1."""
    return f"sft.model={two_round_run[0] / 'sft'}"


@pytest.fixture(scope="module")
def whole(ready, tmp_path_factory) -> Path:
    """A selection that nothing interrupted."""
    root = tmp_path_factory.mktemp("whole") / "run"
    select(root, ready)
    return root


@pytest.fixture
def scanned(monkeypatch):
    """Rows of each batch that was scored; made to fail after some with `stop_after`."""
    real, seen = scoring.scan, []

    def watch(model, dataset, batches):
        for batch in real(model, dataset, batches):
            if len(seen) == watch.stop_after:
                raise RuntimeError("killed")
            seen.append(batch["row"].to_pylist())
            yield batch

    watch.stop_after = None
    monkeypatch.setattr(scoring, "scan", watch)
    monkeypatch.setattr(scores, "FLUSH_SECONDS", 0)
    return watch, seen


@pytest.fixture
def no_scan(monkeypatch):
    """No model may be asked; training may load its own."""
    real = Loader.load

    def load(self, model, *, train=True, scan=False):
        assert not scan, f"{model.name} is loaded to be scanned"
        return real(self, model, train=train)

    monkeypatch.setattr(Loader, "load", load)


@pytest.fixture
def no_model(monkeypatch):
    def load(self, model, **how):
        raise AssertionError(f"{model.name} is loaded")

    monkeypatch.setattr(Loader, "load", load)


@torch.no_grad()
def dense_entropies(folder: Path, tokens: Path) -> list[float]:
    """One unpadded row at a time in float64; logits row t - 1 predicts token t."""
    model, found = load_model(folder, precision="fp32").double().eval(), []
    for row in load_tokens(tokens):
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
        places = (torch.tensor(row["labels"]) != IGNORE).nonzero()[:, 0]
        log_p = logits[places - 1].double().log_softmax(-1)
        found.append(-(log_p.exp() * log_p).sum(-1).mean().item())
    return found


def test_every_entropy_of_a_run_is_that_of_dense_logits_in_float64(whole, two_round_run):
    for model, folder in zip(MODELS, (BASE, two_round_run[0] / "sft"), strict=True):
        table = read_scores(whole / f"entropy/{model}/scores.parquet")
        exact = dense_entropies(folder, whole / "data/tokens.arrow")
        assert table["entropy"].to_pylist() == pytest.approx(exact, abs=1e-5)
        assert len(exact) == ROWS and max(exact) - min(exact) > 0.05  # rows that were swapped would show


def test_the_counters_of_a_scan_are_the_sums_and_means_of_its_file(whole):
    table, record = read_scores(whole / "entropy/sft/scores.parquet"), counters(whole, "entropy/sft")
    assert (record["examples"], record["processes"], record["truncated"]) == (ROWS, 1, 0)
    assert record["tokens"] == sum(table["tokens"].to_pylist())
    assert record["entropy"] == pytest.approx(np.mean(table["entropy"].to_pylist()))
    assert 0 < record["padding"] < 0.5 and record["tokens_read"] > record["tokens"]


def test_a_resumed_scan_equals_an_uninterrupted_one(scanned, ready, whole, tmp_path):
    watch, seen = scanned
    watch.stop_after = 3
    with pytest.raises(RuntimeError, match="killed"):
        select(tmp_path, ready)
    parts = sorted((work_folder(tmp_path, "entropy/base") / "work" / "parts").iterdir())
    assert [path.name.rsplit("-", 1)[0] for path in parts] == sorted(f"rows-{rows[0]:010d}" for rows in seen)
    watch.stop_after = 5
    with pytest.raises(RuntimeError, match="killed"):
        select(tmp_path, ready)
    watch.stop_after = None
    select(tmp_path, ready)
    assert files(tmp_path) == files(whole)
    batches = sum(counters(whole, f"entropy/{model}")["batches"] for model in MODELS)
    assert len(seen) == batches, "a batch that was finished is not scored again"
    assert json.loads((tmp_path / "entropy/base/manifest.json").read_text())["resumed"] == 2
    assert not list((tmp_path / ".work").glob("*--*"))


def test_only_a_torn_part_is_scored_again(scanned, ready, whole, tmp_path):
    watch, seen = scanned
    watch.stop_after = 4
    with pytest.raises(RuntimeError, match="killed"):
        select(tmp_path, ready)
    (torn,) = (work_folder(tmp_path, "entropy/base") / "work" / "parts").glob(f"rows-{seen[1][0]:010d}-*.parquet")
    torn.write_bytes(torn.read_bytes()[:100])
    watch.stop_after = None
    select(tmp_path, ready)
    assert seen.count(seen[1]) == 3  # twice under the base, once under M1
    assert all(seen.count(rows) == 2 for rows in (seen[0], seen[2], seen[3]))
    assert files(tmp_path) == files(whole)


def test_a_scan_resumed_with_other_batches_scores_every_row_once_and_the_same_up_to_rounding(
    scanned, ready, whole, tmp_path
):
    watch, seen = scanned
    watch.stop_after = 3
    with pytest.raises(RuntimeError, match="killed"):
        select(tmp_path, ready)
    before = [row for rows in seen for row in rows]
    watch.stop_after = None
    select(tmp_path, ready, "selection.batch_tokens=4096")
    later = [row for rows in seen for row in rows][len(before) :]
    assert sorted(before + later) == sorted([*range(ROWS), *range(ROWS)]), "each row once under each model"
    mine, theirs = (read_scores(root / "entropy/base/scores.parquet") for root in (tmp_path, whole))
    assert mine["id"] == theirs["id"]
    assert mine["entropy"].to_pylist() == pytest.approx(theirs["entropy"].to_pylist(), abs=1e-5)


def test_a_score_that_is_not_finite_is_an_error_naming_its_example(monkeypatch, ready, tmp_path):
    def broken(self, model, **how):
        network = load_model(BASE, precision="fp32")
        network.model.norm.weight.data[0] = float("nan")
        return network

    monkeypatch.setattr(Loader, "load", broken)
    with pytest.raises(UserError, match=r"not a finite number .*'arithmetic-train-"):
        select(tmp_path, ready)
    assert not (tmp_path / "entropy").exists()


def test_scores_of_another_run_are_taken_over_without_loading_a_model(no_model, ready, whole, tmp_path):
    select(tmp_path, ready, f"selection.reuse=[{whole}]")
    assert files(tmp_path) == files(whole)
    for model in MODELS:
        record, own = counters(tmp_path, f"entropy/{model}"), counters(whole, f"entropy/{model}")
        assert record["reused_from"] == str(whole / f"entropy/{model}/scores.parquet")
        assert {name: record[name] for name in ("examples", "tokens", "entropy", "nll")} == {
            name: own[name] for name in ("examples", "tokens", "entropy", "nll")
        }


@pytest.mark.slow
def test_a_run_that_trains_the_same_models_takes_over_their_scores_too(no_scan, two_round_run, tmp_path):
    source, _ = two_round_run
    recorder = Recorder()
    select_recipe(small_recipe("joint.rounds=2", f"selection.reuse=[{source}]"), tmp_path, recorder, 2)
    assert {"sft", "round-1/strong"} < recorder.ran.keys() and files(tmp_path) == files(source)
    for model in (*MODELS, "round-1"):
        assert counters(tmp_path, f"entropy/{model}")["reused_from"] == str(source / f"entropy/{model}/scores.parquet")


def test_a_model_without_reusable_scores_is_scanned(scanned, ready, whole, tmp_path):
    _, seen = scanned
    select(tmp_path, ready, f"selection.reuse=[{whole / 'entropy/sft'}]")
    assert len(seen) == counters(whole, "entropy/base")["batches"]
    assert "reused_from" not in counters(tmp_path, "entropy/base")
    assert "reused_from" in counters(tmp_path, "entropy/sft")
    assert files(tmp_path) == files(whole)


def other_template(tmp_path: Path) -> str:
    template = tmp_path / "template.jinja"
    template.write_text((BASE / "chat_template.jinja").read_text().replace("assistant\n", "assistant:\n"))
    return f"chat_template={template}"


def other_tokenizer(tmp_path: Path) -> str:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    rules = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**rules, "normalizer": {"type": "Lowercase"}}))
    return f"model={folder}"


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda _: "data.max_length=255", "max_length=256"),
        (other_template, "another tokenizer or chat template"),
        (other_tokenizer, "another tokenizer or chat template"),
    ],
    ids=["max_length", "chat template", "tokenizer"],
)
def test_scores_of_other_tokens_are_an_error_before_anything_is_computed(change, words, whole, tmp_path):
    recorder, root = Recorder(), tmp_path / "new/run"
    recipe = small_recipe(*FEW, change(tmp_path), f"selection.reuse=[{whole}]")
    with pytest.raises(UserError, match=f"selection.reuse: .*{words}"):
        select_recipe(recipe, root, recorder)
    assert recorder.ran == {} and recorder.planned == []
    assert not root.parent.exists()


@pytest.mark.parametrize(
    "override, words",
    [("data.limit=31", "with other rows"), ("precision=bf16", r"with other precision \(fp32, not bf16\)")],
)
def test_scores_on_other_rows_or_in_another_precision_are_an_error(override, words, no_model, ready, whole, tmp_path):
    with pytest.raises(UserError, match=f"selection.reuse: .*same model {words}"):
        select(tmp_path, ready, f"selection.reuse=[{whole}]", override)
    assert not (tmp_path / "entropy").exists()


def test_a_source_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"no score files in .*nowhere"):
        select(tmp_path / "run", f"selection.reuse=[{tmp_path / 'nowhere'}]")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [[], ["lora={rank: 2}"]], ids=["", "lora"])
def test_scores_of_training_are_taken_and_only_the_rest_is_scanned(more, scanned, tmp_path):
    select(tmp_path / "run", "selection.strong_scores=training", "sft.batch_size=12", "sft.micro_batch_size=4", *more)
    kept = read_parts_of_training(tmp_path / "run/sft/scores.parquet")
    found = read_scores(tmp_path / "run/entropy/sft/scores.parquet")
    assert len(kept) == 24 and len(found) == ROWS, "two steps of 12"
    by_id = dict(zip(found["id"].to_pylist(), found["entropy"].to_pylist(), strict=True))
    assert all(by_id[id] == entropy for id, entropy in kept.items())
    assert sum(map(len, scanned[1])) == ROWS + 8, "all rows with M0, and with M1 those that training left out"
    with pytest.raises(ValueError, match="gives a ready M1"):
        small_recipe(*FEW, "selection.strong_scores=training", "sft.model=elsewhere")


def read_parts_of_training(path: Path) -> dict[str, float]:
    table = pq.read_table(path, columns=["id", "entropy"])
    return dict(zip(table["id"].to_pylist(), table["entropy"].to_pylist(), strict=True))

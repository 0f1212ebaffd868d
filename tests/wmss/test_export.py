"""`weakdriven export mix` and `merge`: two folders, a checkpoint or a run saved as one folder; and their errors."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import weakdriven.wmss.export
from helpers import embedded_tokenizer, tiny_model
from small_runs import run_small
from weakdriven.commands.app import app, main
from weakdriven.errors import UserError
from weakdriven.models.load import EMBEDDED, check_model, load_model, locate_model
from weakdriven.runs.files import read_jsonl
from weakdriven.wmss.mixture import MixtureForCausalLM
from weakdriven.wmss.pair import WeakStrongPair, save_pair

IDS = torch.arange(3, 12)[None]
JUST_TRAIN = ["baselines=[]", "eval.benchmarks=[]", "data.limit=8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run that kept its weak model; its second round is a copy of the first."""
    root = tmp_path_factory.mktemp("runs") / "kept"
    run_small(root, *JUST_TRAIN, "joint.save_weak=true", "joint.strong_weight=0.7")
    shutil.copytree(root / "round-1", root / "round-2")
    plan = json.loads((root / "plan.json").read_text())
    (root / "plan.json").write_text(json.dumps(plan | {"round-2/strong": plan["round-1/strong"]}))
    return root


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """Two model folders with the embedded tokenizer: the embedded model, and a wider head on a smaller model."""
    root = tmp_path_factory.mktemp("pair")
    strong, weak = embedded(), tiny_model("llama", vocab_size=512, max_position_embeddings=512)
    for model, name in ((strong, "strong"), (weak, "weak")):
        model.save_pretrained(root / name)
        embedded_tokenizer().save_pretrained(root / name)
    return root / "strong", root / "weak"


def embedded() -> Any:
    return load_model(locate_model(EMBEDDED), precision="fp32")


@pytest.fixture
def export(monkeypatch, capsys):
    """Run the command; returns what it printed."""

    def call(*words: Any, command: str = "mix") -> str:
        monkeypatch.setattr(sys, "argv", ["weakdriven", "export", command, *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, capsys.readouterr().err
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Run the command; returns its error message after checking that nothing was written."""

    def call(*words: Any, command: str = "mix") -> str:
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.setattr(sys, "argv", ["weakdriven", "export", command, *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        errors = capsys.readouterr().err
        assert stop.value.code == 2 and errors.startswith("Error: ") and "Traceback" not in errors
        assert sorted(tmp_path.rglob("*")) == before, "files were left behind"
        return errors

    return call


@torch.no_grad()
def dense(strong: Any, weak: Any, weight: float) -> torch.Tensor:
    models = [
        model if isinstance(model, torch.nn.Module) else AutoModelForCausalLM.from_pretrained(model)
        for model in (strong, weak)
    ]
    one, two = (model.eval()(IDS).logits.float() for model in models)
    rows = min(one.shape[-1], two.shape[-1])
    return weight * one[..., :rows] + (1 - weight) * two[..., :rows]


@torch.no_grad()
def check(folder: Path, want: torch.Tensor) -> MixtureForCausalLM:
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(loaded, MixtureForCausalLM)
    torch.testing.assert_close(loaded(IDS).logits, want)
    return loaded


def test_a_run_gives_its_last_rounds_pair_at_the_weight_it_was_trained_with(run, export, tmp_path):
    said = export(run, "--output", tmp_path / "mix")
    assert "0.7 on the strong logits" in said and str(run / "round-2/strong/weak") in said
    loaded = check(tmp_path / "mix", dense(run / "round-2/strong", run / "round-2/strong/weak", 0.7))
    strong = AutoModelForCausalLM.from_pretrained(run / "round-2/strong")
    assert loaded.generation_config.eos_token_id == strong.generation_config.eos_token_id
    theirs, ours = (AutoTokenizer.from_pretrained(path) for path in (run / "round-2/strong", tmp_path / "mix"))
    assert ours.chat_template == theirs.chat_template is not None and ours.get_vocab() == theirs.get_vocab()
    assert not [path for path in tmp_path.iterdir() if path.name != "mix"]


@pytest.mark.slow
def test_the_python_of_the_docs_runs_in_a_fresh_process(pair, export, tmp_path):
    text = (Path(__file__).parents[2] / "docs/how-to/export.md").read_text(encoding="utf-8")
    export(*pair, "--output", tmp_path / "mixture")
    code = text.split("```python\n")[2].split("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("What is 2 + 3?"), done.stderr


def evaluation(folder: Path) -> list[str]:
    words = ["--benchmarks", "arithmetic", "--limit", "3", "max_new_tokens=8"]
    return ["eval", "run", "--model", str(folder / "mixture"), *words, "--output", str(folder / "answers")]


@pytest.mark.slow
def test_a_fresh_process_can_evaluate_the_mixture(pair, export, tmp_path):
    export(*pair, "--output", tmp_path / "mixture")
    command = [sys.executable, "-m", "weakdriven", *evaluation(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(read_jsonl(tmp_path / "answers/arithmetic/samples.jsonl"))) == 3


def test_other_engines_and_training_do_not_support_the_mixture(pair, export, tmp_path):
    export(*pair, "--output", tmp_path / "mixture")
    for engine in (f"vllm_python={sys.executable}", "batching=continuous", "url=http://localhost:9"):
        refusal = CliRunner().invoke(app, [*evaluation(tmp_path), engine]).exception
        assert isinstance(refusal, UserError) and "only transformers' static batches support" in str(refusal)
    with pytest.raises(UserError, match="is a mixture of two models"):
        check_model(tmp_path / "mixture")


def test_without_out_the_mixture_is_saved_next_to_its_round(run, export):
    export(run / "round-2", "--strong-weight", "0.2")
    check(run / "round-2/mixture", dense(run / "round-2/strong", run / "round-2/strong/weak", 0.2))


def test_the_strong_folder_of_a_round_knows_its_weight(run, export, tmp_path):
    assert "0.7 on the strong logits, from " in export(run / "round-1/strong", "--output", tmp_path / "mix")


def test_a_round_that_the_recipe_no_longer_has_is_skipped(run, export, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    plan = json.loads((copy / "plan.json").read_text())
    (copy / "plan.json").write_text(json.dumps(plan | {"round-2/strong": "another key"}))
    assert str(copy / "round-1/strong/weak") in export(copy, "--output", tmp_path / "mix")


def test_a_scheduled_weight_is_the_one_at_its_end(run, export, tmp_path):
    shutil.copytree(run / "round-1/strong", tmp_path / "strong")
    manifest = json.loads((tmp_path / "strong/manifest.json").read_text())
    manifest["settings"]["strong_weight_end"] = 0.9
    (tmp_path / "strong/manifest.json").write_text(json.dumps(manifest))
    assert "0.9 on the strong logits" in export(tmp_path / "strong", "--output", tmp_path / "mix")


def test_two_folders_with_differently_padded_heads_fill_an_empty_folder(pair, export, tmp_path):
    (tmp_path / "deep/mix").mkdir(parents=True)
    said = export(*pair, "--output", tmp_path / "deep/mix")
    assert "0.5 on the strong logits, from the default" in said
    loaded = check(tmp_path / "deep/mix", dense(*pair, 0.5))
    assert loaded.config.vocab_size == loaded.strong.config.vocab_size < loaded.weak.config.vocab_size


def test_bf16_is_kept_if_both_models_have_it_and_no_other_precision_is_asked_for(pair, export, tmp_path):
    for name, folder in zip(("strong", "weak"), pair, strict=True):
        shutil.copytree(folder, tmp_path / name)
        AutoModelForCausalLM.from_pretrained(folder).to(torch.bfloat16).save_pretrained(tmp_path / name)
    narrow = tmp_path / "strong", tmp_path / "weak"
    cases = [(narrow, [], torch.bfloat16), ((narrow[0], pair[1]), [], torch.float32)]
    cases += [(narrow, ["--dtype", "fp32"], torch.float32), (pair, ["--dtype", "bf16"], torch.bfloat16)]
    for number, (folders, words, expected) in enumerate(cases):
        export(*folders, "--output", tmp_path / f"mix-{number}", *words)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / f"mix-{number}")
        assert {parameter.dtype for parameter in loaded.parameters()} == {expected}


def test_a_training_checkpoint_holds_both(export, tmp_path):
    strong, weak = embedded(), embedded()
    with torch.no_grad():
        weak.get_input_embeddings().weight.mul_(1.5)
    strong.config.use_cache = weak.config.use_cache = False
    save_pair(WeakStrongPair(strong=strong, weak=weak), tmp_path / "checkpoint-8")
    embedded_tokenizer().save_pretrained(tmp_path / "checkpoint-8")
    export(tmp_path / "checkpoint-8", "--output", tmp_path / "mix")
    loaded = check(tmp_path / "mix", dense(strong, weak, 0.5))
    assert loaded.strong.config.use_cache and loaded.generation_config.use_cache is not False


def test_a_training_checkpoint_is_mixed_at_the_weight_that_it_had(export, refused, tmp_path):
    save_pair(WeakStrongPair(strong=embedded(), weak=embedded()), tmp_path / "checkpoint-8")
    embedded_tokenizer().save_pretrained(tmp_path / "checkpoint-8")
    words = tmp_path / "checkpoint-8/pair.json"
    words.write_text('{"strong_weight": 0.8}')
    said = export(tmp_path / "checkpoint-8", "--output", tmp_path / "mix")
    assert f"0.8 on the strong logits, from {words}" in said
    words.write_text('{"strong_weight": 1.0}')
    said = refused(tmp_path / "checkpoint-8", "--output", tmp_path / "other")
    assert f"According to {words}, the mixture ended in the strong model alone; give --strong-weight." in said
    export(tmp_path / "checkpoint-8", "--output", tmp_path / "other", "--strong-weight", "0.5")


def adapter(folder: Path, seed: int, **options: Any) -> Any:
    """A LoRA adapter on the embedded model that changes its answers; returns the merged model."""
    torch.manual_seed(seed)
    model: Any = get_peft_model(embedded(), LoraConfig(r=2, target_modules=["q_proj", "down_proj"], **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    return model.merge_and_unload()


@pytest.mark.parametrize("head", [False, True], ids=["plain", "trained head"])
def test_adapters_are_merged_and_a_head_that_one_trained_is_no_longer_tied(head, export, tmp_path):
    modules = {"modules_to_save": ["lm_head"]} if head else {}
    strong, weak = adapter(tmp_path / "lora", 1, **modules), adapter(tmp_path / "lora/weak", 2)
    want = dense(strong, weak, 0.5)
    assert not torch.allclose(want, dense(embedded(), embedded(), 0.5), atol=0.1)
    export(tmp_path / "lora", "--output", tmp_path / "mix")
    loaded = check(tmp_path / "mix", want)
    tied = [
        one.get_output_embeddings().weight is one.get_input_embeddings().weight for one in (loaded.strong, loaded.weak)
    ]
    assert tied == [not head, True]
    assert AutoTokenizer.from_pretrained(tmp_path / "mix").chat_template


@pytest.mark.parametrize("words, precision", [([], torch.float32), (["--dtype", "bf16"], torch.bfloat16)])
def test_a_merged_adapter_is_an_ordinary_model(words, precision, export, tmp_path):
    model = adapter(tmp_path / "lora", 1).eval()
    export(tmp_path / "lora", "--output", tmp_path / "merged", *words, command="merge")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert loaded.dtype == precision and AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
    torch.testing.assert_close(loaded.state_dict(), model.to(precision).state_dict())


def test_merging_what_is_no_adapter_or_into_a_used_folder_is_an_error(pair, refused, tmp_path):
    assert "nothing to merge" in refused(pair[0], "--output", tmp_path / "merged", command="merge")
    adapter(tmp_path / "lora", 1)
    assert "lora holds files" in refused(tmp_path / "lora", "--output", tmp_path / "lora", command="merge")


def test_an_adapter_and_a_whole_model(export, tmp_path):
    strong = adapter(tmp_path / "lora", 1)
    export(tmp_path / "lora", EMBEDDED, "--output", tmp_path / "mix")
    check(tmp_path / "mix", dense(strong, embedded(), 0.5))


def test_a_source_without_a_pair_is_an_error(run, pair, refused, tmp_path):
    mix, strong = tmp_path / "mix", run / "round-1/strong"
    said = refused(pair[0], "--output", mix)
    assert "strong has no folder weak with its weak model" in said and "joint.save_weak: true" in said
    assert "There is no folder " in refused(tmp_path / "nowhere", "--output", mix)
    assert "There is no model folder " in refused(tmp_path / "nowhere", EMBEDDED, "--output", mix)
    assert "--output" in refused(strong)
    assert "weak holds files" in refused(strong, "--output", strong / "weak")
    (tmp_path / "run.json").write_text("{}")
    assert "has no finished round of joint training" in refused(tmp_path, "--output", mix)


def test_a_folder_that_holds_files_is_an_error(pair, refused, tmp_path):
    (tmp_path / "mix").mkdir()
    (tmp_path / "mix/notes.txt").write_text("mine")
    assert "mix holds files" in refused(*pair, "--output", tmp_path / "mix")
    assert "notes.txt is a file" in refused(*pair, "--output", tmp_path / "mix/notes.txt")


@pytest.mark.parametrize("command, models", [("mix", 2), ("merge", 1), ("vllm", 2)])
def test_a_folder_that_cannot_be_written_is_an_error_before_anything_is_read(command, models, refused, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    if command == "merge":
        adapter(tmp_path / "lora", 1)
    words = [tmp_path / "lora"] if command == "merge" else [EMBEDDED] * models
    said = refused(*words, "--output", tmp_path / "notes.txt/new", command=command)
    assert "notes.txt cannot be written (Not a directory); choose a writable --output" in said


@pytest.mark.parametrize("weight", ["-0.1", "nan"])
def test_a_weight_outside_its_range_is_an_error(pair, refused, tmp_path, weight):
    assert "it must be a number of at least 0" in refused(
        *pair, "--output", tmp_path / "mix", "--strong-weight", weight
    )


def test_different_tokenizers_are_an_error(pair, refused, tmp_path):
    shutil.copytree(pair[1], tmp_path / "weak")
    tokenizer = embedded_tokenizer()
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(tmp_path / "weak")
    assert "differ in 1 entries" in refused(pair[0], tmp_path / "weak", "--output", tmp_path / "mix")


def test_a_head_shorter_than_the_vocabulary_is_an_error(pair, refused, tmp_path):
    tiny_model().save_pretrained(tmp_path / "weak")
    said = refused(pair[0], tmp_path / "weak", "--output", tmp_path / "mix")
    assert "Cannot mix logits: weak has 64 vocabulary rows" in said


def test_a_strong_model_without_a_tokenizer_is_an_error(pair, refused, tmp_path):
    tiny_model().save_pretrained(tmp_path / "strong")
    assert "strong holds no tokenizer" in refused(tmp_path / "strong", pair[1], "--output", tmp_path / "mix")


def test_a_folder_without_weights_is_an_error(pair, refused, tmp_path):
    shutil.copytree(pair[1], tmp_path / "weak", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "holds no .safetensors weights" in refused(pair[0], tmp_path / "weak", "--output", tmp_path / "mix")


@pytest.mark.parametrize(
    "name, message",
    [
        ("./gone", "is an adapter whose base was not found"),
        (None, "does not name the adapter's model"),
        ("weak", "lora does not fit"),
    ],
)
def test_an_adapter_without_its_model_is_an_error(name, message, pair, refused, tmp_path):
    adapter(tmp_path / "lora", 1)
    config = tmp_path / "lora/adapter_config.json"
    base = str(pair[1]) if name == "weak" else name
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": base}))
    assert message in refused(tmp_path / "lora", pair[1], "--output", tmp_path / "mix")


def test_a_saved_mixture_with_other_logits_is_removed(pair, refused, tmp_path, monkeypatch):
    right = weakdriven.wmss.export.mixed_logits
    monkeypatch.setattr(weakdriven.wmss.export, "mixed_logits", lambda *words: right(*words) + 0.1)
    said = refused(*pair, "--output", tmp_path / "mix")
    assert "differ from those of its two models by up to 0.1" in said

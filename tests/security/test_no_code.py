"""Opening what somebody else made runs none of their code: pickled weights, model code, checkpoints, datasets."""

import ast
import json
import logging
import pickle
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from small_runs import Recorder, small_recipe
from weakdriven.data.rows.files import hub_rows
from weakdriven.errors import UserError
from weakdriven.models.adapters import load_adapter, load_merged
from weakdriven.models.load import check_model, load_model, load_tokenizer, locate_model, positions
from weakdriven.pipeline.run import run_recipe
from weakdriven.runs.signals import Stopped

SOURCE = Path(__file__).parents[2] / "src/weakdriven"
CODE = """
import pathlib
pathlib.Path({marker!r}).touch()
from transformers import Qwen3Config, Qwen3ForCausalLM
class Config(Qwen3Config):
    model_type = "strange"
class Model(Qwen3ForCausalLM):
    config_class = Config
"""


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def model(tmp_path) -> Path:
    return Path(shutil.copytree(locate_model("embedded:base"), tmp_path / "model"))


def test_the_bomb_of_these_tests_goes_off(marker):
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()


def pickled(folder: Path, marker: Path, name: str) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.save({"lm_head.weight": Bomb(marker)}, folder / name)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_model_that_has_pickles_only_raises_an_error(model, marker, name):
    pickled(model, marker, name)
    for load in (lambda: check_model(model), lambda: load_model(model, precision="fp32")):
        with pytest.raises(UserError, match=r"no \.safetensors weights"):
            load()
    assert not marker.exists()


def test_a_pickle_next_to_safetensors_is_not_read(model, marker):
    torch.save({"lm_head.weight": Bomb(marker)}, model / "pytorch_model.bin")
    load_model(model, precision="fp32")
    assert not marker.exists()


def test_an_adapter_that_has_pickles_only_raises_an_error(tmp_path, marker):
    base = locate_model("embedded:base")
    folder = tmp_path / "adapter"
    get_peft_model(load_model(base, precision="fp32"), LoraConfig(target_modules=["q_proj"])).save_pretrained(folder)
    pickled(folder, marker, "adapter_model.bin")
    loads = (
        lambda: load_merged(folder, base, precision="fp32"),
        lambda: load_adapter(load_model(base, precision="fp32"), folder),
    )
    for load in loads:
        with pytest.raises(UserError, match=r"no \.safetensors weights"):
            load()
    assert not marker.exists()


@pytest.fixture
def strange(model, marker, monkeypatch, tmp_path) -> Path:
    """A model folder that brings code of its own, for its configuration, weights and tokenizer."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    (model / "code_of_theirs.py").write_text(CODE.format(marker=str(marker)), encoding="utf-8")
    classes = {"AutoConfig": "code_of_theirs.Config", "AutoModelForCausalLM": "code_of_theirs.Model"}
    for name, auto in {
        "config.json": classes,
        "tokenizer_config.json": {"AutoTokenizer": ["code_of_theirs.Config", "code_of_theirs.Config"]},
    }.items():
        values = json.loads((model / name).read_text(encoding="utf-8"))
        values |= {"auto_map": auto} | ({"model_type": "strange"} if name == "config.json" else {})
        values |= {"tokenizer_class": "Strange"} if name != "config.json" else {}
        (model / name).write_text(json.dumps(values), encoding="utf-8")
    return model


def test_code_that_comes_with_a_model_does_not_run_unless_asked(strange, marker):
    for load in (check_model, load_tokenizer, positions, lambda folder: load_model(folder, precision="fp32")):
        with suppress(UserError, ValueError, OSError):
            load(strange)
        assert not marker.exists(), "their code was run"


def test_code_runs_if_asked_and_a_warning_names_where_it_comes_from(strange, marker, caplog):
    with caplog.at_level(logging.WARNING):
        check_model(strange, trust_remote_code=True)
    assert marker.exists()
    assert "trust_remote_code is on" in caplog.text
    assert str(strange) in caplog.text and "code_of_theirs.py" in caplog.text


def test_pickles_in_a_checkpoint_run_no_code_when_training_resumes(tmp_path, marker):
    class Stopping(Recorder):
        def update(self, done, total, **facts):
            if "baselines/sft" in self.ran and done >= 2:
                raise KeyboardInterrupt

    sizes = ["data.limit=8", "sft.batch_size=4", "sft.micro_batch_size=4", "sft.save_steps=1"]
    recipe = small_recipe("method=sft", "baselines=[]", "eval.benchmarks=[]", *sizes)
    with pytest.raises(Stopped):
        run_recipe(recipe, tmp_path / "run", Stopping())
    checkpoints = sorted((tmp_path / "run").glob(".work/*/work/**/checkpoint-*"))
    assert checkpoints, "nothing to resume from"
    planted = 0
    for folder in checkpoints:
        for file in folder.iterdir():
            if file.suffix in (".pt", ".pth", ".bin"):
                torch.save({"state": Bomb(marker), "param_groups": []}, file)
                planted += 1
    assert planted >= 2
    try:
        run_recipe(recipe, tmp_path / "run", Recorder())
    except Exception as error:
        assert "weights_only" in str(error) or isinstance(error, UserError), error
    assert not marker.exists(), "a checkpoint ran code"


def test_pickles_in_a_dataset_run_no_code(tmp_path, marker):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "train.pkl").write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(UserError):
        list(hub_rows(str(folder), "train"))
    assert not marker.exists()


@cache
def calls() -> list[tuple[Path, ast.Call]]:
    files = [path for path in SOURCE.rglob("*.py")]
    trees = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in files)
    return [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func)


def test_no_command_goes_through_a_shell():
    for path, call in calls():
        words = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert words.get("shell", "False") == "False", path
        assert name_of(call) not in ("os.system", "os.popen", "subprocess.getoutput"), path
        sandboxed = path.name in ("watcher.py", "io_tests.py")  # run inside the sandbox
        assert sandboxed or name_of(call) not in ("eval", "exec"), path


def test_every_loader_that_could_run_code_says_whether_it_may():
    """Without a word `transformers` asks on the terminal."""
    autos = ("AutoConfig.from_pretrained", "AutoTokenizer.from_pretrained", "AutoModelForCausalLM.from_pretrained")
    found = [(path, call) for path, call in calls() if name_of(call) in (*autos, "AutoModelForCausalLM.from_config")]
    assert len(found) > 8
    for path, call in found:
        words = {word.arg for word in call.keywords}
        assert "trust_remote_code" in words or None in words, f"{path}:{call.lineno}"


def test_nothing_is_unpickled_but_what_this_process_made():
    """One reads the pipe to our own children; the other, a benchmark's packed tests, by an unpickler without names."""
    allowed = {"parallel.py", "hub_rows.py"}
    for path, call in calls():
        if name_of(call).startswith(("pickle.", "torch.load", "np.load", "numpy.load", "joblib.", "dill.")):
            words = {word.arg: ast.unparse(word.value) for word in call.keywords}
            plain = words.get("weights_only") == "True" or words.get("allow_pickle") == "False"
            assert path.name in allowed or plain, f"{path}:{call.lineno}"

"""Which checkpoints and tokenizers WDJTTrainer loads: revisions, options for one model, tokens that were added."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from helpers import embedded_tokenizer, tiny_model, weights
from joint_cases import CHAT, EMBEDDED_MODEL, logs, make, trained
from weakdriven.errors import UserError
from weakdriven.models.head import head

IDS = torch.arange(12)[None]
MARKER = "<another>"


def other_tokenizer(*tokens):
    tokenizer = embedded_tokenizer()
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def changed_model():
    """The embedded model after some training, as it were."""
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
    model.model.norm.weight.data += 0.1
    return model


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the Hub; `hub(name, main=folder, other=folder)` adds a repository with these revisions."""
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))

    def add(name, **revisions):
        repository = cache / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        for number, (revision, folder) in enumerate(revisions.items()):
            commit = f"{number:040x}"
            (repository / "refs" / revision).write_text(commit)
            shutil.copytree(folder, repository / "snapshots" / commit)
        return name

    return add


@pytest.fixture
def two_checkpoints(tmp_path, hub):
    """A repository that holds the embedded model, and a changed one as its revision `trained`."""
    changed_model().save_pretrained(tmp_path / "trained")
    embedded_tokenizer().save_pretrained(tmp_path / "trained")
    return hub("lab/model", main=EMBEDDED_MODEL, trained=tmp_path / "trained")


def gives(model, other):
    return torch.equal(model.eval()(IDS).logits, other.eval()(IDS).logits)


def test_the_revision_of_the_strong_model_is_not_that_of_the_weak_one(two_checkpoints, caplog, tmp_path):
    options = {"model": two_checkpoints, "weak_model": two_checkpoints, "data": CHAT}
    options["model_init_kwargs"] = {"revision": "trained", "attn_implementation": "eager"}
    base = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, attn_implementation="eager")
    changed = changed_model()
    changed.set_attn_implementation("eager")
    trainer = make(tmp_path, **options)
    assert gives(trainer.pair.strong, changed) and gives(trainer.pair.weak, base)
    assert trainer.pair.weak.config._attn_implementation == "eager"
    assert "same logits" not in caplog.text
    trainer = make(tmp_path, **options, weak_model_init_kwargs={"revision": "trained"})
    assert gives(trainer.pair.weak, changed)
    assert "same logits" in caplog.text


def test_options_of_the_weak_model_are_its_own_alone(two_checkpoints, caplog, tmp_path):
    own = {"weak_model_init_kwargs": {"revision": "trained", "dtype": "bfloat16"}}
    trainer = make(tmp_path, model=EMBEDDED_MODEL, weak_model=two_checkpoints, data=CHAT, **own)
    assert trainer.pair.strong.dtype == torch.float32 and trainer.pair.weak.dtype == torch.bfloat16
    assert torch.equal(trainer.pair.weak.model.norm.weight, changed_model().model.norm.weight.bfloat16())
    assert trainer.args.weak_model_init_kwargs == own["weak_model_init_kwargs"]
    make(tmp_path, data=CHAT, model=EMBEDDED_MODEL, weak_model=changed_model(), **own)
    assert "weak_model_init_kwargs is ignored" in caplog.text


def test_two_adapters_over_one_revision_share_its_weights(two_checkpoints, tmp_path):
    adapters = {"peft_config": LoraConfig(target_modules=["q_proj"], r=2)}
    options = {"model": two_checkpoints, "data": CHAT, "model_init_kwargs": {"revision": "trained"}}
    trainer = make(tmp_path, weak_model=two_checkpoints, trainer=adapters, **options)
    strong, weak = (model.get_base_model() for model in (trainer.pair.strong, trainer.pair.weak))
    assert weak.lm_head.weight is strong.lm_head.weight and gives(weak, changed_model())
    trainer.save_model(str(tmp_path / "adapter"))
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"revision": "trained"}))
    trainer = make(tmp_path, model=str(tmp_path / "adapter"), weak_model=two_checkpoints, data=CHAT)
    strong, weak = trainer.pair.strong.get_base_model(), trainer.pair.weak.get_base_model()
    assert weak.lm_head.weight is strong.lm_head.weight and gives(weak, changed_model())


@pytest.mark.parametrize(
    "models, options, warned",
    [
        (lambda: [tiny_model(seed=1), tiny_model(seed=1)], {}, True),
        (lambda: [tiny_model(seed=1), tiny_model(seed=1)], {"strong_weight": 1.0}, False),
        (lambda: [tiny_model(seed=1), tiny_model(seed=2)], {}, False),
        (lambda: [tiny_model("llama", seed=1), tiny_model(seed=1)], {}, False),
        (lambda: [tiny_model(seed=1), tiny_model(seed=1)], {"peft_config": True}, True),
    ],
    ids=["equal", "plain SFT", "different", "architectures", "fresh adapters"],
)
def test_a_model_mixed_with_itself_gives_a_warning(models, options, warned, caplog, tmp_path):
    lora = options.pop("peft_config", None) and {"peft_config": LoraConfig(target_modules=["q_proj"], r=2)}
    strong, weak = models()
    make(tmp_path, model=strong, weak_model=weak, trainer=lora, **options)
    assert ("give the same logits" in caplog.text) == warned


def resized(tokenizer, model=None):
    model = model or AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
    model.resize_token_embeddings(len(tokenizer))
    return model


def test_models_in_memory_may_have_tokens_that_their_folder_does_not_have(tmp_path):
    tokenizer = other_tokenizer(MARKER)
    given = {"trainer": {"processing_class": tokenizer}, "data": CHAT}
    trainer = make(tmp_path, model=resized(tokenizer), weak_model=resized(tokenizer, changed_model()), **given)
    assert trainer.pair.weak.get_output_embeddings().weight.shape[0] == len(tokenizer)


def test_the_weak_models_tokenizer_can_be_given(tmp_path):
    models = {"model": EMBEDDED_MODEL, "weak_model": changed_model(), "data": CHAT}
    with pytest.raises(UserError, match=r"differ in 1 entries.* weak_processing_class"):
        make(tmp_path, **models, trainer={"weak_processing_class": other_tokenizer(MARKER)})
    changed_model().save_pretrained(tmp_path / "weak")
    other_tokenizer(MARKER).save_pretrained(tmp_path / "weak")
    models["weak_model"] = str(tmp_path / "weak")
    with pytest.raises(UserError, match="differ in 1 entries"):
        make(tmp_path, **models)
    make(tmp_path, **models, trainer={"weak_processing_class": embedded_tokenizer()})
    with pytest.raises(UserError, match="weak_processing_class is str; text-only models need a tokenizer"):
        make(tmp_path, **models, trainer={"weak_processing_class": "the same"})


def test_the_weak_models_tokenizer_is_that_of_its_revision(hub, tmp_path):
    shutil.copytree(EMBEDDED_MODEL, tmp_path / "main")
    other_tokenizer(MARKER).save_pretrained(tmp_path / "main")
    weak = hub("lab/weak", main=tmp_path / "main", fits=EMBEDDED_MODEL)
    options = {"model": EMBEDDED_MODEL, "weak_model": weak, "data": CHAT}
    make(tmp_path, **options, weak_model_init_kwargs={"revision": "fits"})
    with pytest.raises(UserError, match="differ in 1 entries"):
        make(tmp_path, **options)


OWN_CODE = """
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
class Settings(Qwen3Config):
    model_type = "own"
class Model(Qwen3ForCausalLM):
    config_class = Settings
class Tokenizer(PreTrainedTokenizerFast): ...
"""


def test_the_weak_models_tokenizer_has_the_trust_of_the_model(monkeypatch, tmp_path):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on the terminal"))
    weak = shutil.copytree(EMBEDDED_MODEL, tmp_path / "weak")
    other_tokenizer(MARKER).save_pretrained(weak)
    (weak / "own.py").write_text(OWN_CODE)
    model = {"AutoConfig": "own.Settings", "AutoModelForCausalLM": "own.Model"}
    model = {"model_type": "own", "architectures": ["Model"], "auto_map": model}
    tokenizer = {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": [None, "own.Tokenizer"]}}
    for name, changes in (("config.json", model), ("tokenizer_config.json", tokenizer)):
        (weak / name).write_text(json.dumps(json.loads((weak / name).read_text()) | changes))
    with pytest.raises(UserError, match="differ in 1 entries"):
        make(tmp_path, model=EMBEDDED_MODEL, weak_model=str(weak), data=CHAT, trust_remote_code=True)


def untied(model):
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


@pytest.mark.parametrize("kind", ["paths", "models", "adapters", "adapters of tied models"])
def test_a_chat_template_of_another_model_adds_its_tokens_to_both_models(kind, tmp_path):
    source = other_tokenizer(MARKER, "<end>")
    source.eos_token = "<end>"
    source.save_pretrained(tmp_path / "template")
    options = {"model": EMBEDDED_MODEL, "weak_model": EMBEDDED_MODEL, "data": CHAT, "max_steps": 1}
    options["chat_template_path"] = str(tmp_path / "template")
    if kind in ("models", "adapters"):
        base = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
        options |= {"model": untied(changed_model()), "weak_model": untied(base)}
    if "adapters" in kind:
        options["trainer"] = {"peft_config": LoraConfig(target_modules=["q_proj"], r=2)}
    if "tied" in kind:
        with pytest.raises(UserError, match=r"chat_template_path .* tied"):
            make(tmp_path, **options)
        return
    trainer = trained(tmp_path, **options)
    tokenizer = trainer.processing_class
    assert {MARKER, "<end>"} < tokenizer.get_vocab().keys() and tokenizer.eos_token == "<end>"
    rows = [len(head(model).weight_VD) for model in (trainer.pair.strong, trainer.pair.weak)]
    assert rows == [len(tokenizer)] * 2 and logs(trainer)[0]["loss"] > 0


def test_a_chat_template_in_a_file_leaves_the_models_as_they_are(tmp_path):
    (tmp_path / "chat.jinja").write_text(embedded_tokenizer().chat_template)
    models = {"model": EMBEDDED_MODEL, "weak_model": EMBEDDED_MODEL}
    trainer = make(tmp_path, **models, chat_template_path=str(tmp_path / "chat.jinja"), data=CHAT)
    assert weights(trainer.pair.weak).keys() == weights(trainer.pair.strong).keys()
    assert len(trainer.pair.weak.get_output_embeddings().weight) == len(embedded_tokenizer())

"""WDJTTrainer with adapters: which models get one, and what is held, saved and resumed."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from hub_server import TOKEN, hub_of_trainers
from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.errors import UserError
from weakdriven.models.head import head, hidden_states

IDS = torch.arange(12)[None]
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def make(folder, *, model, weak_model, trainer=None, **options):
    settled = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "save_steps": 2,
    }
    made = WDJTTrainer(
        model,
        weak_model=weak_model,
        args=WDJTConfig(**{**settled, **options}),
        train_dataset=token_rows(8),
        processing_class=embedded_tokenizer(),
        **(trainer or {}),
    )
    made.remove_callback(PrinterCallback)
    return made


def held_bytes(model):
    storages = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for w in model.parameters()}
    return sum(storages.values())


def adapter_bytes(*models):
    return sum(w.numel() * w.element_size() for m in models for w in m.parameters() if w.requires_grad)


def one_base(trainer):
    """Whether the pair holds one base and what is trained, and no more."""
    pair = trainer.pair
    return held_bytes(pair) == held_bytes(tiny_model()) + adapter_bytes(pair.strong, pair.weak)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny_model(seed=1).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    """A folder with an adapter of the base that is not at its start."""
    folder = tmp_path_factory.mktemp("adapter")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**LORA))
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    return str(folder)


def loaded(adapter, base, **options):
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter, **options)


@pytest.mark.parametrize("given", ["paths", "model and path", "models"])
def test_a_base_given_twice_gets_two_fresh_adapters_over_one_copy(given, base, tmp_path):
    strong = base if given == "paths" else AutoModelForCausalLM.from_pretrained(base)
    weak = AutoModelForCausalLM.from_pretrained(base) if given == "models" else base
    trainer = make(tmp_path, model=strong, weak_model=weak, trainer={"peft_config": LoraConfig(**LORA)})
    assert isinstance(trainer.pair.strong, PeftModel) and isinstance(trainer.pair.weak, PeftModel)
    assert one_base(trainer)
    trainer.train()
    assert one_base(trainer)
    first = trainer.state.log_history[0]
    assert first["strong_loss"] == pytest.approx(first["weak_loss"], abs=1e-5)
    assert trainer.state.log_history[3]["strong_loss"] != pytest.approx(
        trainer.state.log_history[3]["weak_loss"], abs=1e-5
    )
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert held == {id(w) for name, w in trainer.pair.named_parameters() if "lora_" in name}
    start = weights(tiny_model(seed=1))
    kept = {name: value for name, value in weights(trainer.pair.strong).items() if "lora_" not in name}
    for name, value in kept.items():
        assert torch.equal(value, start[name.removeprefix("base_model.model.").replace(".base_layer", "")])


@pytest.mark.parametrize("given, weak_given", [("model", "base"), ("path", "adapter"), ("model", "model")])
def test_an_adapted_strong_model_trains_with_its_base_or_another_adapter(given, weak_given, base, adapter, tmp_path):
    strong = adapter if given == "path" else loaded(adapter, base, is_trainable=True)
    weak = {"base": base, "adapter": adapter}.get(weak_given) or loaded(adapter, base, is_trainable=True)
    trainer = make(tmp_path, model=strong, weak_model=weak)
    assert one_base(trainer)
    want = loaded(adapter, base)(IDS).logits
    torch.testing.assert_close(trainer.pair.strong.eval()(IDS).logits, want)
    bare = tiny_model(seed=1)(IDS).logits
    torch.testing.assert_close(trainer.pair.weak.eval()(IDS).logits, bare if weak_given == "base" else want)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["strong_grad_norm"] > 0 and logged["weak_grad_norm"] > 0


def test_two_bases_with_different_weights_share_nothing(tmp_path):
    trainer = make(
        tmp_path,
        model=tiny_model(seed=1),
        weak_model=tiny_model(seed=2),
        trainer={"peft_config": LoraConfig(**LORA)},
    )
    pair = trainer.pair
    norms = sum(w.numel() * w.element_size() for n, w in tiny_model().named_parameters() if "norm" in n)  # all ones
    assert held_bytes(pair) == 2 * held_bytes(tiny_model()) - norms + adapter_bytes(pair.strong, pair.weak)


def test_merged_weights_under_the_name_of_their_base_are_not_mistaken_for_it(base, adapter, tmp_path):
    strong = loaded(adapter, base).merge_and_unload()
    assert strong.config._name_or_path == base
    want = tiny_model(seed=1)(IDS).logits
    trainer = make(tmp_path, model=strong, weak_model=base, trainer={"peft_config": LoraConfig(**LORA)})
    torch.testing.assert_close(trainer.pair.weak.eval()(IDS).logits, want)


def test_an_adapter_initialised_from_the_base_leaves_both_models_as_they_were(base, tmp_path):
    config = LoraConfig(**LORA, init_lora_weights="pissa")
    trainer = make(tmp_path, model=base, weak_model=base, trainer={"peft_config": config})
    want = tiny_model(seed=1)(IDS).logits
    for model in (trainer.pair.strong, trainer.pair.weak):
        torch.testing.assert_close(model.eval()(IDS).logits, want, rtol=1e-4, atol=1e-4)


def test_a_frozen_weak_base_needs_no_adapter_and_no_memory(base, adapter, tmp_path):
    trainer = make(tmp_path, model=adapter, weak_model=base, weak_trainable=False)
    trainer.train()
    assert not isinstance(trainer.pair.weak, PeftModel) and one_base(trainer)
    torch.testing.assert_close(trainer.pair.weak(IDS).logits, tiny_model(seed=1)(IDS).logits, rtol=0, atol=0)
    resumed = make(tmp_path, model=adapter, weak_model=base, weak_trainable=False)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    same(trainer, resumed)


def same(one, other):
    mine, theirs = weights(one.pair), weights(other.pair)
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(base, adapter, tmp_path):
    options = {"gradient_checkpointing": True, "strong_weight_end": 1.0, "weak_learning_rate": 1e-3}

    def trainer(folder, **more):
        return make(tmp_path / folder, model=adapter, weak_model=base, **options, **more)

    whole = trainer("whole")
    whole.train()
    killed = trainer("cut", trainer={"callbacks": [StopAt(2)]})
    killed.train()
    resumed = trainer("cut")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    same(resumed, whole)
    folder = tmp_path / "cut" / "out" / "checkpoint-4"
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*.safetensors")} == {
        "adapter_model.safetensors",
        "weak/adapter_model.safetensors",
    }


def test_the_saved_adapter_loads_by_itself(base, adapter, tmp_path):
    trainer = make(tmp_path, model=adapter, weak_model=base)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    want = trainer.pair.strong.eval()(IDS).logits
    torch.testing.assert_close(loaded(tmp_path / "final", base)(IDS).logits, want)
    torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(tmp_path / "final")(IDS).logits, want)
    assert not (tmp_path / "final" / "weak").exists() and not (tmp_path / "final" / "model.safetensors").exists()


def test_a_merged_model_gives_the_logits_of_the_adapted_one_and_training_can_continue(base, adapter, tmp_path):
    trainer = make(tmp_path, model=adapter, weak_model=base, merge_adapter=True)
    trainer.train()
    before = weights(trainer.pair)
    trainer.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final" / "adapter_config.json").exists()
    assert (tmp_path / "out" / "checkpoint-4" / "adapter_config.json").is_file()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    torch.testing.assert_close(plain(IDS).logits, trainer.pair.strong.eval()(IDS).logits, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], after) for name, after in weights(trainer.pair).items())


def test_a_merged_model_is_pushed_without_the_adapter(base, adapter, monkeypatch, tmp_path):
    push = {"merge_adapter": True, "push_to_hub": True, "hub_model_id": "me/merged", "hub_token": TOKEN}
    with hub_of_trainers(monkeypatch) as hub:
        trainer = make(tmp_path, model=adapter, weak_model=base, **push)
        trainer.train()
        assert "model.safetensors" in hub.files and hub.messages[0] == "Training in progress, step 2"
        trainer.push_to_hub()
    assert not any("adapter" in name for name in hub.files)
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    pushed = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(pushed(IDS).logits, trainer.pair.strong.eval()(IDS).logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="merge_adapter is set, but this hub_strategy pushes checkpoints"):
        make(tmp_path, model=adapter, weak_model=base, hub_strategy="checkpoint", **push)


@pytest.mark.parametrize("place", ["model", "weak_model"])
def test_an_adapter_that_was_not_loaded_for_training_is_an_error(place, base, adapter, tmp_path):
    models = {"model": adapter, "weak_model": adapter, place: loaded(adapter, base)}
    with pytest.raises(UserError, match=r"No weight of the (strong|weak) model is trainable.*is_trainable=True"):
        make(tmp_path, **models)


def test_a_model_with_its_own_base_is_an_error(base, adapter, tmp_path):
    strong = loaded(adapter, base, is_trainable=True)
    with pytest.raises(UserError, match="share layers"):
        make(tmp_path, model=strong, weak_model=strong.get_base_model())


def test_several_adapters_in_one_model_are_an_error(base, adapter, tmp_path):
    strong = loaded(adapter, base, is_trainable=True)
    strong.add_adapter("second", LoraConfig(**LORA))
    with pytest.raises(UserError, match="holds the adapters default, second; expected one"):
        make(tmp_path, model=strong, weak_model=base)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["paths", "model and path", "models"])
def test_a_base_in_four_bits_is_held_once(given, tmp_path):
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    tiny_model(seed=1, width=64, head_dim=32).save_pretrained(tmp_path / "base")
    base = str(tmp_path / "base")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32, bnb_4bit_use_double_quant=True)

    def load():
        return AutoModelForCausalLM.from_pretrained(base, quantization_config=config)

    strong, weak = base if given == "paths" else load(), load() if given == "models" else base
    options = {"peft_config": LoraConfig(**LORA)}
    if given == "paths":
        options["quantization_config"] = config
    trainer = make(tmp_path, model=strong, weak_model=weak, trainer=options)
    trainer.train()
    adapters = adapter_bytes(trainer.pair.strong, trainer.pair.weak)
    assert held_bytes(trainer.pair) == held_bytes(load()) + adapters
    states = [
        model.get_base_model().model.layers[0].mlp.up_proj.weight.quant_state
        for model in (trainer.pair.strong, trainer.pair.weak)
    ]
    assert states[0] is states[1]
    with pytest.raises(UserError, match="merge_adapter is set, but the base is quantized"):
        make(tmp_path, model=load(), weak_model=load(), trainer={"peft_config": LoraConfig(**LORA)}, merge_adapter=True)


@pytest.fixture
def two_bases(tmp_path):
    """Folders of two models with different weights, as strong and weak one."""
    folders = {"model": str(tmp_path / "strong"), "weak_model": str(tmp_path / "weak")}
    for seed, folder in enumerate(folders.values(), 1):
        tiny_model(seed=seed).save_pretrained(folder)
    return folders


def test_adapters_over_two_bases_give_no_warning_of_a_renamed_one(two_bases, recwarn, tmp_path):
    make(tmp_path, **two_bases, trainer={"peft_config": LoraConfig(**LORA)})
    assert not [warning for warning in recwarn if "base_model_name_or_path" in str(warning.message)]


def test_trained_rows_of_tied_embeddings_are_those_of_the_head(two_bases, tmp_path):
    rows = [3, 5]
    lora = LoraConfig(r=4, target_modules=["q_proj"], trainable_token_indices=rows)
    options = two_bases | {"weight_decay": 0.1, "merge_adapter": True}
    trainer = make(tmp_path, trainer={"peft_config": lora}, **options)
    trainer.train()
    strong = trainer.pair.strong
    moved = (head(strong).weight_VD - tiny_model(seed=1).lm_head.weight).abs().sum(1).nonzero()[:, 0].tolist()
    assert moved == rows
    torch.testing.assert_close(head(strong).logits(hidden_states(strong, {"input_ids": IDS})), strong(IDS).logits)
    resumed = make(tmp_path, trainer={"peft_config": lora}, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    same(trainer, resumed)
    trainer.save_model(str(tmp_path / "final"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    torch.testing.assert_close(plain(IDS).logits, strong.eval()(IDS).logits, rtol=1e-4, atol=1e-4)

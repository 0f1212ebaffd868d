"""The table of docs/reference/trl-features.md: each of its rows is run here, or by the test it names."""

import pytest
import torch
from peft import LoraConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from drop_in_cases import (
    CHAT_PAIRS,
    EVALUATED,
    MASKED,
    PAIRS,
    ROOT,
    SHAREGPT,
    TEXT,
    TOOL_TEMPLATE,
    TOOLS,
    Check,
    Crowded,
    adapted,
    adapted_model,
    asked_of_the_model,
    averaged,
    card,
    checkpointed,
    completions,
    elsewhere,
    fresh_evaluation,
    needs_logits,
    offloaded,
    other_eos,
    outside_layers,
    paths,
    plain_arguments,
    predicted_logits,
    prediction,
    pushed,
    refused,
    remote_code,
    same,
    selective,
    several_gpus,
    split_rows,
    template_file,
    template_of_a_model,
    templated,
    text_model,
    tracked,
    weights_only,
    with_callbacks,
)
from helpers import token_rows
from joint_cases import CHAT, MARKED, experts
from multimodal_cases import multimodal_model

WORKS: dict[str, Check] = {
    # data
    "`text`": same(data=TEXT),
    "`prompt` and `completion`": same(data=PAIRS),
    "`messages`, through the chat template": same(data=CHAT),
    "conversational `prompt` and `completion`": same(data=CHAT_PAIRS),
    "`conversations` of `from` and `value`": same(data=SHAREGPT),
    "`input_ids` with `labels`": same(),
    "`input_ids` with masks": same(data=MASKED),
    "`IterableDataset`, streaming": same(data=TEXT.to_iterable_dataset()),
    "`completion_only_loss`": same(data=PAIRS, completion_only_loss=False),
    "`assistant_only_loss`": same(data=CHAT, extras=lambda: templated(MARKED), assistant_only_loss=True),
    "`formatting_func`": same(
        data=PAIRS, extras=lambda: {"formatting_func": lambda row: row["completion"]}, completion_only_loss=False
    ),
    "`dataset_text_field`": same(data=TEXT.rename_column("text", "body"), dataset_text_field="body"),
    "`skip_prepare_dataset`": same(dataset_kwargs={"skip_prepare_dataset": True}),
    "`tools` and tool calls": same(data=TOOLS, extras=lambda: templated(TOOL_TEMPLATE)),
    "`chat_template_kwargs`": same(
        data=CHAT.add_column("chat_template_kwargs", [{"shout": i % 2 == 0} for i in range(len(CHAT))]),
        extras=lambda: templated("{% for m in messages %}{{ m.content + ('!' if shout else '') }}{% endfor %}"),
    ),
    "`chat_template_path`: a Jinja file": template_file,
    "`chat_template_path`: a model": template_of_a_model,
    "`eos_token`": other_eos,
    "`dataset_num_proc`": same(data=TEXT, dataset_num_proc=2),
    "`max_length`": same(max_length=6),
    "`shuffle_dataset`": same(shuffle_dataset=True),
    '`packing_strategy="bfd"`': same(packing=True, max_length=16),
    '`packing_strategy="bfd_split"`': same(packing=True, packing_strategy="bfd_split", max_length=8),
    '`packing_strategy="wrapped"`': same(packing=True, packing_strategy="wrapped", max_length=16),
    "`eval_packing`": same(
        packing=True,
        eval_packing=False,
        max_length=16,
        **EVALUATED,
        extras=lambda: {"eval_dataset": token_rows(4, seed=9)},
    ),
    "`padding_free`": same(padding_free=True, max_length=None),
    "`pad_to_multiple_of`": same(pad_to_multiple_of=16),
    "`data_collator`": same(extras=lambda: {"data_collator": DataCollatorForLanguageModeling(pad_token_id=5)}),
    "`eval_dataset`, one or a dict": same(
        **EVALUATED, extras=lambda: {"eval_dataset": {"one": token_rows(3, seed=9), "two": token_rows(4, seed=8)}}
    ),
    "rows given to `evaluate`": fresh_evaluation,
    # models and adapters
    "a path or Hub id, `model_init_kwargs`": paths,
    "`trust_remote_code`": remote_code,
    "a model in bfloat16": same(model=lambda seed: text_model(seed).bfloat16(), atol=3e-2),
    "eager attention": same(model=lambda seed: text_model(seed, attn_implementation="eager")),
    "`peft_config`: LoRA": adapted(),
    "`peft_config`: DoRA": adapted(use_dora=True),
    "`peft_config`: `modules_to_save`": adapted(modules_to_save=["lm_head"]),
    "`peft_config`: `trainable_token_indices`": adapted(
        lambda seed: text_model(seed, tied=False), trainable_token_indices=[5, 6]
    ),
    "`peft_config`: `target_parameters`, weights of experts": adapted(
        experts, {"router_aux_loss_coef": 0.0}, target_parameters=["experts.gate_up_proj", "experts.down_proj"]
    ),
    "`PeftModel`": same(model=adapted_model),
    "`quantization_config`": elsewhere("wmss/test_joint_adapters.py", "test_a_base_in_four_bits_is_held_once"),
    "mixtures of experts": same(model=experts, router_aux_loss_coef=0.0),
    # loss and metrics
    '`loss_type="nll"`': same(loss_type="nll"),
    "`predict`: metrics": prediction,
    # memory and speed
    "`gradient_checkpointing`": checkpointed(),
    '`gradient_checkpointing_kwargs={"use_reentrant": ...}`': checkpointed(use_reentrant=True),
    '`gradient_checkpointing_kwargs={"selective": True}`': selective,
    "`activation_offloading`": offloaded,
    "`use_liger_kernel`": elsewhere(
        "wmss/test_joint_options.py", "test_liger_is_applied_once_to_both_models_and_recorded"
    ),
    "`torch_compile`": elsewhere("wmss/test_joint_options.py", "test_compiled_training_gives_the_same_result"),
    "`bf16`": same(bf16=True, atol=3e-2),
    "`neftune_noise_alpha`": same(neftune_noise_alpha=5.0, twins=False),
    # training
    "`gradient_accumulation_steps`": same(per_device_train_batch_size=2, gradient_accumulation_steps=2),
    "`auto_find_batch_size`": same(
        extras=lambda: {"data_collator": Crowded(pad_token_id=0)}, auto_find_batch_size=True
    ),
    "`optim`, `lr_scheduler_type`, `warmup_steps`, `max_grad_norm`": same(
        optim="adafactor", lr_scheduler_type="cosine", warmup_steps=1, max_grad_norm=0.1
    ),
    "`optimizer_cls_and_kwargs`": same(extras=lambda: {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})}),
    "`optimizers`": elsewhere("wmss/test_joint_options.py", "test_an_optimizer_of_the_caller_must_hold_both_models"),
    "`SFTConfig` or `TrainingArguments` as `args`": plain_arguments,
    "`TrlParser`, `HfArgumentParser`": elsewhere(
        "wmss/test_joint_config.py", "test_every_option_can_be_given_on_a_command_line"
    ),
    "callbacks, `RichProgressCallback`": with_callbacks,
    "trackers, `report_to`": tracked,
    "`generate`, `save_pretrained`, `merge_and_unload` of `trainer.model`": asked_of_the_model,
    "`LogCompletionsCallback`": completions,
    "`BEMACallback`": averaged,
    "`load_best_model_at_end`": elsewhere(
        "wmss/test_joint_options.py", "test_evaluation_during_training_changes_nothing_and_the_best_model_is_loaded"
    ),
    "`resume_from_checkpoint`": elsewhere(
        "wmss/test_joint.py", "test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit"
    ),
    "`save_only_model`": weights_only,
    "`push_to_hub`": pushed,
    "`create_model_card`": card,
    # several devices
    "DDP": elsewhere("wmss/test_joint_options.py", "test_two_processes_give_the_result_of_one"),
    "FSDP2": elsewhere(
        "scale/test_sharded_training.py",
        "test_fsdp2_over_two_processes_trains_a_pair_as_one_process_and_saves_the_strong_model_whole",
    ),
}
"""By the first column of the table: what shows that it works."""
NOT_SUPPORTED: dict[str, Check] = {
    "prompt tuning, prefix tuning, P-tuning": outside_layers,
    "an adapter on `lm_head`": refused(
        "LORA on lm_head, which the mixed loss",
        extras=lambda: {"peft_config": LoraConfig(target_modules=["q_proj", "lm_head"])},
    ),
    "their load-balancing loss, `router_aux_loss_coef`": refused(
        r"mixture of experts .* weight 0\.1, .* router_aux_loss_coef=0\.0", model=experts, router_aux_loss_coef=0.1
    ),
    "vision-language models, images": refused(
        "of a vision-language family", model=lambda seed: multimodal_model(seed=seed)
    ),
    '`loss_type="dft"`': refused("loss_type is 'dft'; it must be 'nll'", loss_type="dft"),
    "`label_smoothing_factor`": refused("label_smoothing_factor is 0.1", label_smoothing_factor=0.1),
    "`compute_loss_func`": needs_logits("compute_loss_func"),
    "`compute_metrics`, `preprocess_logits_for_metrics`": needs_logits(
        "compute_metrics", "preprocess_logits_for_metrics"
    ),
    "`mean_token_accuracy` and `entropy`": refused(
        "does not measure", metric_for_best_model="eval_mean_token_accuracy"
    ),
    "`predict`: logits": predicted_logits,
    "a loss that is NaN": elsewhere(
        "wmss/test_joint.py", "test_a_loss_that_is_nan_names_its_model_before_the_optimizer_moves"
    ),
    "FSDP2 with adapters": elsewhere("scale/test_sharded_training.py", "test_adapters_under_fsdp_are_not_supported"),
    "FSDP 1, DeepSpeed": elsewhere(
        "scale/test_sharded_training.py", "test_launches_that_would_train_something_else_raise_an_error"
    ),
    "context, sequence and tensor parallelism": split_rows,
    "several GPUs in one process": several_gpus,
}
SLOW = {"`dataset_num_proc`"}


def documented() -> dict[str, str]:
    lines = (ROOT / "docs/reference/trl-features.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {feature: result for feature, result in cells if result}


def test_every_row_of_the_table_has_a_case_and_every_case_a_row():
    found = {feature: result.startswith("works") for feature, result in documented().items()}
    assert found == dict.fromkeys(WORKS, True) | dict.fromkeys(NOT_SUPPORTED, False)
    assert all(result.startswith(("works", "not supported")) for result in documented().values())


@pytest.mark.parametrize(
    "feature",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WORKS | NOT_SUPPORTED],
)
def test_a_feature_of_sfttrainer_does_what_the_table_says(feature, monkeypatch, tmp_path):
    (WORKS | NOT_SUPPORTED)[feature](tmp_path, monkeypatch)

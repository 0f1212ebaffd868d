"""WDJTConfig: bad values, conversion of TRL's arguments, the schedule of the mixture."""

import math
from dataclasses import fields

import pytest
from transformers import HfArgumentParser, TrainingArguments
from trl import SFTConfig

from weakdriven import WDJTConfig
from weakdriven.errors import UserError


def config(**options):
    return WDJTConfig(output_dir="unused", use_cpu=True, bf16=False, report_to=[], **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"strong_weight": 1.5}, "strong_weight is 1.5; it must be a number from 0 to 1"),
        ({"strong_weight": math.nan}, "strong_weight is nan"),
        ({"strong_weight": None}, "strong_weight is None"),
        ({"strong_weight": "0.5"}, "strong_weight is '0.5'"),
        ({"strong_weight_end": -0.1}, "strong_weight_end is -0.1"),
        ({"strong_weight_schedule": "step"}, "strong_weight_schedule is 'step'"),
        ({"strong_anchor": -1}, "strong_anchor is -1"),
        ({"strong_anchor": math.inf}, "strong_anchor is inf"),
        ({"weak_learning_rate": 0.0}, "weak_learning_rate is 0.0"),
        ({"weak_learning_rate": 1e-5, "weak_trainable": False}, "weak_trainable is False"),
        ({"strong_weight": 0, "weak_trainable": False}, "nothing is trained"),
        ({"weak_model_init_kwargs": "v1"}, "weak_model_init_kwargs is 'v1'; it must be a dictionary"),
        ({"loss_implementation": "liger"}, "one of auto, reference, chunked, triton"),
        ({"loss_type": "dft"}, "loss_type is 'dft'"),
        ({"metric_for_best_model": "eval_mean_token_accuracy"}, "use strong_loss"),
        ({"metric_for_best_model": "eval_one_entropy"}, "'eval_one_entropy', which .* does not measure"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1"),
    ],
)
def test_a_bad_value_is_an_error(options, message):
    with pytest.raises(UserError, match=message):
        config(**options)


def test_a_script_can_catch_our_errors_as_value_errors():
    with pytest.raises(ValueError, match="strong_weight"):
        config(strong_weight=2)


def test_any_arguments_are_accepted_with_our_defaults():
    theirs = SFTConfig(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        learning_rate=3e-4,
        loss_type="nll",  # the default has another name before TRL 1.15
        packing=True,
        accelerator_config={"split_batches": True},
    )
    ours = WDJTConfig.of(theirs)
    assert (ours.strong_weight, ours.strong_weight_end, ours.weak_trainable, ours.strong_anchor) == (0.5, None, True, 0)
    different = [f.name for f in fields(theirs) if f.init and getattr(ours, f.name) != getattr(theirs, f.name)]
    assert different == []
    assert WDJTConfig.of(theirs, strong_weight=0.7).strong_weight == 0.7
    assert WDJTConfig.of(ours) is ours
    plain = WDJTConfig.of(TrainingArguments(output_dir="unused", use_cpu=True, gradient_checkpointing=False))
    assert not plain.gradient_checkpointing and plain.max_length == SFTConfig.max_length


BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}


def test_the_best_model_is_by_default_the_one_whose_strong_model_is_best():
    found = config(**BEST)
    assert (found.metric_for_best_model, found.greater_is_better) == ("strong_loss", False)
    assert config(**BEST, metric_for_best_model="loss").metric_for_best_model == "loss"
    assert config(**BEST, metric_for_best_model="mixed_entropy").metric_for_best_model == "mixed_entropy"
    assert config(**BEST, strong_weight=0.0).metric_for_best_model == "loss"  # the strong model does not run
    assert config().metric_for_best_model is None
    theirs = SFTConfig(output_dir="unused", use_cpu=True, bf16=False, **BEST)
    assert WDJTConfig.of(theirs).metric_for_best_model == "strong_loss"
    assert WDJTConfig.of(found).metric_for_best_model == "strong_loss"


def test_the_mixture_moves_from_its_start_towards_its_end():
    linear = config(strong_weight=0.5, strong_weight_end=1.0)
    assert [linear.strong_weight_at(step / 4) for step in range(4)] == [0.5, 0.625, 0.75, 0.875]
    cosine = config(strong_weight=1.0, strong_weight_end=0.5, strong_weight_schedule="cosine")
    assert [round(cosine.strong_weight_at(done), 6) for done in (0, 0.25, 0.5, 1)] == [1.0, 0.926777, 0.75, 0.5]
    assert config(strong_weight=0.3).strong_weight_at(0.9) == 0.3


def test_every_option_can_be_given_on_a_command_line():
    words = "--output_dir out --use_cpu --strong_weight 0.4 --strong_weight_end 1 --strong_weight_schedule cosine"
    words += " --strong_anchor 0.5 --weak_learning_rate 1e-6 --merge_adapter --loss_implementation chunked"
    options = ["--weak_model_init_kwargs", '{"revision": "v1"}']
    (parsed,) = HfArgumentParser(WDJTConfig).parse_args_into_dataclasses(words.split() + options)
    assert (parsed.strong_weight, parsed.strong_weight_end, parsed.strong_anchor) == (0.4, 1.0, 0.5)
    assert parsed.weak_trainable and parsed.merge_adapter and parsed.loss_implementation == "chunked"
    assert parsed.weak_model_init_kwargs == {"revision": "v1"}

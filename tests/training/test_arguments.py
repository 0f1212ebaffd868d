"""The order of rows and the number of steps."""

import json

import numpy as np
import pytest
import torch

from weakdriven.config.recipe import DataSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.training.arguments import alike_together, training_arguments, training_order

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")


def order(rows, *, epochs=1, batch_size=4, seed=0, phase=0, epoch_rows=None):
    options = {"epochs": epochs, "batch_size": batch_size, "seed": seed, "phase": phase, "epoch_rows": epoch_rows}
    return training_order(rows, **options).tolist()


def arguments(folder, *, rows=80, epochs=1, stage="sft", recipe=RECIPE, **settings):
    settings = TrainSettings(**({"batch_size": 8} | settings))
    return training_arguments(settings, recipe, rows=rows, epochs=epochs, stage=stage, folder=folder)


@pytest.mark.parametrize("batch_size, steps", [(512, 218), (256, 436)])
def test_the_papers_data_takes_the_published_number_of_steps(batch_size, steps):
    assert len(order(111657, batch_size=batch_size)) == steps * batch_size


@pytest.mark.parametrize("rows, batch_size, kept", [(8, 4, 8), (11, 4, 8), (4, 4, 4)])
def test_an_epoch_is_cut_to_whole_batches(rows, batch_size, kept, epochs=3):
    assert len(order(rows, batch_size=batch_size, epochs=epochs)) == kept * epochs


@pytest.mark.parametrize("rows, epochs", [(3, 1), (3, 2), (1, 3)])
def test_fewer_rows_than_a_batch_are_all_seen_in_every_epoch(rows, epochs, tmp_path):
    epoch_orders = np.split(np.array(order(rows, batch_size=8, epochs=epochs)), epochs)
    assert [sorted(epoch) for epoch in epoch_orders] == [list(range(rows))] * epochs
    made = arguments(tmp_path, rows=rows, epochs=epochs)
    assert made.per_device_train_batch_size * made.gradient_accumulation_steps == rows  # one step an epoch


@pytest.mark.parametrize("rows", [8, 10])
def test_every_epoch_is_the_beginning_of_another_permutation(rows):
    epochs = np.split(np.array(order(rows, epochs=4)), 4)
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(rows))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({frozenset(epoch) for epoch in epochs}) > 1 or rows == 8


@pytest.mark.parametrize(
    "rows, batch_size, epoch_rows, kept",
    [(10, 4, 26, 24), (10, 4, 10, 8), (7, 4, 64, 64), (3, 8, 20, 16), (10, 64, 26, 26), (1, 4, 9, 8)],
)
def test_matched_steps_are_those_of_the_whole_data(rows, batch_size, epoch_rows, kept, epochs=3):
    seen = order(rows, batch_size=batch_size, epoch_rows=epoch_rows, epochs=epochs)
    assert len(seen) == kept * epochs
    counts = np.bincount(seen, minlength=rows)
    assert counts.max() - counts.min() <= 1 and len(counts) == rows
    for begin in range(0, len(seen), rows):
        cycle = seen[begin : begin + rows]
        assert len(set(cycle)) == len(cycle), "no row comes again before every other one has come"


def test_cycles_of_matched_steps_are_shuffled_afresh_and_depend_on_seed_and_phase():
    cycles = np.split(np.array(order(16, epoch_rows=64)), 4)
    assert len({tuple(cycle) for cycle in cycles}) == 4
    assert order(16, epoch_rows=64) == order(16, epoch_rows=64)
    assert order(16, epoch_rows=64) != order(16, epoch_rows=64, seed=1)
    assert order(16, epoch_rows=64) != order(16, epoch_rows=64, phase=1)
    assert order(16, epoch_rows=64, epochs=2)[:64] == order(16, epoch_rows=64)


def test_neighbouring_seeds_and_phases_do_not_share_epochs():
    epochs = [
        tuple(epoch)
        for seed in (1, 2)
        for phase in (0, 1, 2)
        for epoch in np.split(np.array(order(100, epochs=3, seed=seed, phase=phase)), 3)
    ]
    assert len(set(epochs)) == len(epochs)
    assert order(100, seed=1, phase=2) == order(100, seed=1, phase=2)
    assert order(100, epochs=2)[:100] == order(100)


def test_rows_are_sorted_by_length_within_their_step_to_save_padding():
    length_N = np.random.default_rng(0).integers(1, 500, 1000)
    drawn = training_order(1000, epochs=2, batch_size=48, seed=0)
    found = alike_together(drawn, length_N, 48)
    assert np.array_equal(np.sort(found.reshape(-1, 48)), np.sort(drawn.reshape(-1, 48)))
    padded = [length_N[order].reshape(-1, 8).max(axis=1).sum() * 8 for order in (drawn, found)]
    assert padded[0] > 1.5 * length_N[drawn].sum() and padded[1] < 1.2 * length_N[drawn].sum()


@pytest.mark.parametrize("micro_batch_size", [1, 2, 8])
def test_a_batch_is_accumulated_from_micro_batches(micro_batch_size, tmp_path):
    made = arguments(tmp_path, micro_batch_size=micro_batch_size)
    assert made.per_device_train_batch_size == micro_batch_size
    assert made.gradient_accumulation_steps == 8 // micro_batch_size


@pytest.mark.parametrize("rows, micro, accumulated", [(6, 2, 3), (3, 1, 3), (4, 4, 1), (9, 4, 2)])
def test_micro_batches_shrink_to_fit_a_batch_of_fewer_rows(rows, micro, accumulated, tmp_path):
    made = arguments(tmp_path, rows=rows, micro_batch_size=4)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (micro, accumulated)


@pytest.mark.parametrize(
    "ratio, rows, epochs, steps",
    [(0.1, 80, 1, 1), (0.1, 159, 1, 1), (0.1, 80, 2, 2), (0, 80, 1, 0), (0.9, 8, 1, 0), (0.5, 3, 1, 0), (0.5, 3, 4, 2)],
)
def test_warm_up_is_a_share_of_the_steps_rounded_down(ratio, rows, epochs, steps, tmp_path):
    assert arguments(tmp_path, warmup_ratio=ratio, rows=rows, epochs=epochs).warmup_steps == steps


@pytest.mark.parametrize("stage, name", [("sft", "recipe-sft"), ("round-1/strong", "recipe-round-1-strong")])
def test_trackers_name_the_recipe_and_the_stage(stage, name, tmp_path):
    assert arguments(tmp_path, stage=stage).run_name == name


@pytest.mark.parametrize("precision, options", [("fp32", None), ("bf16", {"bf16_stochastic_round": "True"})])
def test_the_8_bit_optimizer_rounds_bf16_weights_stochastically(precision, options, tmp_path):
    recipe = RECIPE.model_copy(update={"precision": precision})
    made = arguments(tmp_path, optimizer="adamw_8bit", recipe=recipe)
    found = made.optim_args and dict([made.optim_args.split("=")])
    assert (made.optim, found) == ("adamw_torch_8bit", options)
    made = arguments(tmp_path, recipe=recipe)
    assert (made.optim, made.optim_args) == ("adamw_torch_fused", None)


@pytest.mark.parametrize("setting, on", [(True, True), (False, False), ("keep_products", True)])
def test_each_kind_of_checkpointing_gives_arguments_that_trackers_can_write(setting, on, tmp_path):
    made = arguments(tmp_path, gradient_checkpointing=setting)
    assert json.loads(made.to_json_string())["gradient_checkpointing"] is on
    assert made.use_cpu == (not torch.cuda.is_available()) and not made.activation_offloading
    assert arguments(tmp_path, activation_offloading=True).activation_offloading

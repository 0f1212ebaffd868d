"""The order of rows and the number of steps."""

import numpy as np
import pytest

from weakdriven.recipe import DataSettings, Recipe, TrainSettings
from weakdriven.training.arguments import training_arguments, training_order

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")


def order(rows, *, epochs=1, batch_size=4, seed=0):
    return training_order(rows, epochs=epochs, batch_size=batch_size, seed=seed).tolist()


@pytest.mark.parametrize("batch_size, steps", [(512, 218), (256, 436)])
def test_the_papers_data_takes_the_published_number_of_steps(batch_size, steps):
    assert len(order(111657, batch_size=batch_size)) == steps * batch_size


@pytest.mark.parametrize("rows, batch_size, kept", [(8, 4, 8), (11, 4, 8), (4, 4, 4)])
@pytest.mark.parametrize("epochs", [1, 3])
def test_an_epoch_is_cut_to_whole_batches(rows, batch_size, kept, epochs):
    assert len(order(rows, batch_size=batch_size, epochs=epochs)) == kept * epochs


@pytest.mark.parametrize("rows, epochs, kept", [(3, 1, 3), (3, 2, 4), (1, 3, 3)])
def test_fewer_rows_than_a_batch_make_one_step(rows, epochs, kept):
    assert len(order(rows, batch_size=4, epochs=epochs)) == kept


@pytest.mark.parametrize("rows", [8, 10])
def test_every_epoch_is_the_beginning_of_a_permutation(rows):
    for epoch in np.split(np.array(order(rows, epochs=5)), 5):
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(rows))


def test_epochs_leave_out_different_rows_and_have_different_orders():
    epochs = np.split(np.array(order(10, epochs=4)), 4)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({frozenset(epoch) for epoch in epochs}) > 1


def test_the_order_depends_on_the_seed_and_on_nothing_else():
    assert order(100, seed=1) == order(100, seed=1)
    assert order(100, seed=1) != order(100, seed=2)
    assert order(100, epochs=2)[:100] == order(100)


def test_neighbouring_seeds_do_not_share_epochs():
    assert order(100, epochs=2, seed=1)[100:] != order(100, seed=2)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 8])
def test_a_batch_is_accumulated_from_micro_batches(micro_batch_size, tmp_path):
    settings = TrainSettings(batch_size=8, micro_batch_size=micro_batch_size)
    arguments = training_arguments(settings, RECIPE, rows=80, folder=tmp_path)
    assert arguments.per_device_train_batch_size == micro_batch_size
    assert arguments.gradient_accumulation_steps == 8 // micro_batch_size


@pytest.mark.parametrize("ratio, rows, steps", [(0.1, 80, 1), (0.1, 88, 2), (0, 80, 0), (0.5, 3, 1)])
def test_warm_up_is_a_share_of_the_steps_rounded_up(ratio, rows, steps, tmp_path):
    settings = TrainSettings(batch_size=8, warmup_ratio=ratio)
    assert training_arguments(settings, RECIPE, rows=rows, folder=tmp_path).warmup_steps == steps

"""`train(save_every=...)` against a daemon: the steps asked for, batches that are not applied, restores, a full quota."""

from __future__ import annotations

import numpy as np
import penstock
import pytest

from conftest import StartDaemon
from small_models import create_mlp, differing, mlp_batch, state_of

NOT_APPLIED = {2, 3, 9}  # batches with a NaN: 20 batches make 17 steps


def batches(first: int = 0, count: int = 20) -> list[tuple[np.ndarray, np.ndarray]]:
    made = [mlp_batch(seed) for seed in range(first, first + count)]
    for i, (inputs, _) in enumerate(made):
        if first + i in NOT_APPLIED:
            inputs[0, 0] = np.nan
    return made


def names(training: penstock.Training) -> list[tuple[int, str]]:
    return [(save.step, save.name.rpartition("/")[2]) for save in training.saves]


@pytest.mark.parametrize("ahead", [0, 4])
def test_steps_are_saved_as_asked_for_and_change_nothing(client: penstock.Client, ahead: int) -> None:
    plain, saving = create_mlp(client, dropout=0.2), create_mlp(client, dropout=0.2)
    for inputs, target in batches():
        plain.train_step(inputs, target)
    made = penstock.train(saving, batches(), ahead=ahead, save_every=5)
    assert [outcome.applied for outcome in made] == [i not in NOT_APPLIED for i in range(20)]
    assert names(made) == [(5, "step-5"), (10, "step-10"), (15, "step-15")]
    assert not differing(state_of(plain), state_of(saving))

    # Back to a save, and on with what came after it: the same weights again, and what was saved stays.
    saving.restore_checkpoint("step-5")
    done = [i for i in range(20) if i not in NOT_APPLIED][:5][-1] + 1
    again = penstock.train(saving, batches(done, 20 - done), ahead=ahead, save_every=5)
    assert names(again) == [(10, "step-10-v2"), (15, "step-15-v2")]
    assert not differing(state_of(plain), state_of(saving))
    for first, second in (("step-10", "step-10-v2"), ("step-15", "step-15-v2")):
        states = []
        for name in (first, second):
            saving.restore_checkpoint(name)
            states.append(state_of(saving))
        assert not differing(*states), first


def test_a_full_quota_is_told_and_the_training_goes_on(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=0s", "--checkpoint-bytes=20KiB", "--journal=off")
    with penstock.Client(daemon.address) as client:
        plain, saving = create_mlp(client), create_mlp(client)
        for inputs, target in batches():
            plain.train_step(inputs, target)
        with pytest.warns(RuntimeWarning, match="could not be saved.*STORAGE_FULL"):
            made = penstock.train(saving, batches(), save_every=5)
        assert [outcome.step for outcome in made][-1] == 17
        assert names(made)[0] == (5, "step-5") and made.saves[-1].error is not None
        assert not differing(state_of(plain), state_of(saving))
        assert [one.name.rpartition("/")[2] for one in saving.list_checkpoints()] == ["step-5"]
    daemon.stop()

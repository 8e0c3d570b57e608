"""Arrays as users have them: lists, float64, other integers, batches with labels."""

from __future__ import annotations

import numpy as np
import penstock
import pytest
from penstock import Layer
from penstock.errors import PenstockError

from layer_lists import create
from small_models import WIDTH, create_gpt, create_mlp, gpt_batch, mlp_batch


def test_lists_and_float64_take_the_models_types(client: penstock.Client) -> None:
    mlp = create_mlp(client)
    inputs, target = mlp_batch(0)
    lists = create_mlp(client)
    wanted = mlp.train_step(inputs, target).loss
    assert lists.train_step(inputs.tolist(), target.astype(np.float64)).loss == wanted
    assert np.array_equal(lists.infer(inputs.astype(np.float64))["output"], mlp.infer(inputs)["output"])
    with pytest.raises(ValueError, match=r"input: must fit float32, got 1e\+39"):
        lists.infer([[1e39] * WIDTH])
    tokens = create(client, [Layer("gpt_embedding", "e", {"vocab": 8, "width": 4, "sequence": 2})], loss="")
    with pytest.raises(TypeError, match="must be of int64, got 0.5 of float64"):
        tokens.infer([[0, 0.5]])
    assert tokens.infer(np.array([[0, 7]], np.int32))["output"].shape == (1, 2, 4)


def test_labels_of_a_batch_are_the_target(client: penstock.Client) -> None:
    pair, mapping, contributed = (create_gpt(client) for _ in range(3))
    batches = [gpt_batch(seed) for seed in range(3)]
    losses = [pair.train_step(*batch).loss for batch in batches]
    as_mappings = [{"tokens": tokens, "labels": labels} for tokens, labels in batches]
    assert [outcome.loss for outcome in penstock.train(mapping, as_mappings)] == losses
    assert contributed.forward_backward(as_mappings[0]).loss == losses[0]
    # A loss of the call's own needs them, too; what is none of the model's inputs is refused elsewhere.
    assert contributed.optimizer_step(discard=True)
    assert contributed.train_step(as_mappings[0], loss="cross_entropy").loss == losses[0]
    with pytest.raises(PenstockError, match="must be one of tokens, got labels"):
        mapping.infer(as_mappings[0])

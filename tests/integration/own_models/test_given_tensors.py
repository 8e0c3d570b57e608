"""Tensors of PyTorch wherever arrays go: of bfloat16, such that require a gradient, in a DataLoader's batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import penstock
import torch
from torch.utils.data import DataLoader

from own_fixtures import daemon, reference_has_one_thread  # noqa: F401
from small_models import SEQUENCE, VOCABULARY, create_gpt, differing, fresh_name, state_of


def test_tensors_of_pytorch_wherever_arrays_go(client: penstock.Client) -> None:
    """bfloat16, and such that require a gradient."""
    arguments: dict[str, Any] = {
        "model": "mlp",
        "options": {"layers": 2, "width": 4},
        "stages": 1,
        "micro_batches": 2,
        "dtype": "bf16",
        "loss": "mean_squared_error",
        "seed": 3,
    }
    one, two = (client.create_pipeline(fresh_name("half"), **arguments) for _ in range(2))
    x = torch.randn(4, 4).to(torch.bfloat16)
    y = torch.randn(4, 4).to(torch.bfloat16)
    learns_x, learns_y = (tensor.clone().requires_grad_() for tensor in (x, y))
    wanted = one.train_step(x, y).loss
    assert two.train_step(learns_x, learns_y).loss == wanted
    losses = [outcome.loss for outcome in penstock.train(one, [(x, y)] * 2)]
    batches = penstock.Batches(learns_x, learns_y, rows=4, epochs=2, shuffle=False)
    assert [outcome.loss for outcome in penstock.train(two, batches)] == losses
    assert not differing(state_of(one), state_of(two))
    # Rows one by one, Python's numbers, gradients, handles, weights.
    assert two.forward_backward(list(learns_x), list(learns_y)).loss == one.forward_backward(x, y).loss
    for pipeline in (one, two):
        pipeline.optimizer_step(discard=True)
    assert two.train_step(x.tolist(), y.tolist()).loss == one.train_step(x, y).loss
    forward = two.forward(learns_x)
    assert two.backward(forward.graph, learns_y)
    two.optimizer_step(discard=True)
    with two.put({"x": learns_x}) as handle:
        assert two.train_step(handle, learns_y).loss == one.train_step(x, y).loss
    weights = {name: value.clone().requires_grad_() for name, value in one.state_dict().items()}
    two.load_state_dict(weights)
    assert all(torch.equal(value, weights[name]) for name, value in two.state_dict().items())
    two.write_parameters(weights)


def test_batches_with_labels_from_a_data_loader(client: penstock.Client) -> None:
    """As those of Hugging Face: tensors by name, labels among them."""
    one, two = (create_gpt(client) for _ in range(2))
    text = torch.randint(0, VOCABULARY, (8, SEQUENCE + 1), generator=torch.Generator().manual_seed(1))
    rows = [{"tokens": row[:-1], "labels": row[1:]} for row in text]
    pairs = [(text[i : i + 4, :-1], text[i : i + 4, 1:]) for i in (0, 4)]
    wanted = [outcome.loss for outcome in penstock.train(one, pairs)]
    assert [outcome.loss for outcome in penstock.train(two, DataLoader(rows, batch_size=4))] == wanted
    assert np.isfinite(wanted).all() and not differing(state_of(one), state_of(two))

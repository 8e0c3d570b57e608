"""The work that a sample of a journal holds, and the state that it leads to.

Results are exact on every machine: weights, inputs and targets are small multiples of powers of two, means are over powers
of two of numbers, the rate is 0.5, so no result needs more bits than a float64 has. So a digest of the bits can be compared,
whatever vector units and orders of sums a machine has.
"""

from __future__ import annotations

import hashlib

import numpy as np
import penstock

# The first has a checkpoint of a caller, from which its replay begins; that of the other makes all of its calls.
PIPELINES = ("saved", "unsaved")
WIDTH = 2
ROWS = 4
SESSION = "sample"  # whoever began the accumulation may end it
MOST_DENOMINATOR = 2**40  # a product of such a weight and an input is exact too
BLOB_ROWS = 32_768  # an input above 256 KiB stands in a file


def create(client: penstock.Client, name: str) -> penstock.Pipeline:
    return client.create_pipeline(
        name,
        model=[
            penstock.Layer("linear", "linear", {"in": WIDTH, "out": WIDTH, "bias": False}),
            penstock.Layer("identity", "identity"),
        ],
        balance=[1, 1],
        dtype="fp64",
        micro_batches=2,
        optimizer="sgd",
        optimizer_options={"learning_rate": 0.5, "momentum": 0.5},
        loss="mean_squared_error",
        seed=1,
    )


def batch(step: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Equal rows: no sum depends on its order."""
    row = np.array([1.0, 0.5]) * (1 + step % 2)
    return np.tile(row, (rows, 1)), np.tile(row[::-1] * 0.25, (rows, 1))


def begin(pipeline: penstock.Pipeline) -> None:
    """Written weights, steps, a save, a step with a large input, and an accumulation that is left open."""
    names = sorted(pipeline.read_parameters())
    assert len(names) == 1, names
    pipeline.write_parameters({names[0]: np.array([[1.0, 0.5], [0.25, -1.0]])})
    pipeline.train_step(*batch(0))
    if pipeline.name.endswith("/saved"):
        pipeline.save_checkpoint("kept")
    pipeline.train_step(*batch(1))
    pipeline.train_step(*batch(2, BLOB_ROWS))
    pipeline.forward_backward(*batch(3))


def end(pipeline: penstock.Pipeline) -> None:
    """The step of what is accumulated."""
    pipeline.optimizer_step()


def digest(pipeline: penstock.Pipeline) -> str:
    """Of names and bits of parameters and optimizer state."""
    state = pipeline.read_parameters(include_optimizer_state=True)
    for name, array in state.items():
        assert all(float(value).as_integer_ratio()[1] <= MOST_DENOMINATOR for value in array.flat), f"{name} is not exact"
    total = hashlib.sha256()
    for name in sorted(state):
        array = np.ascontiguousarray(state[name])
        total.update(f"{name} {array.dtype} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()

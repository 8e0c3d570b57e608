"""Mini-batches for training: from arrays in memory, or from any iterable, such as a PyTorch ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from penstock.inputs import Inputs
from penstock.tensors import Array, as_array

Columns = Union[npt.ArrayLike, Mapping[str, npt.ArrayLike]]


class Batch(NamedTuple):
    """One mini-batch: what the model gets, and what its loss compares with (``None`` if the model gives its loss
    itself)."""

    inputs: Inputs
    target: Any = None


class Batches:
    """Mini-batches of arrays, shuffled anew in each epoch, the same ones for the same seed.

    Model:     an epoch is a permutation of the rows, drawn from (seed, epoch); it is cut into batches of ``rows``.
               Iterating goes through all epochs; ``len()`` is the number of batches left. A new object with ``start``
               goes on where another one was, so that training can be resumed with the same batches.

    Example::

        for inputs, target in penstock.Batches(images, labels, rows=32, epochs=3):
            pipeline.train_step(inputs, target)

    Args:
        inputs: one array or arrays by input name, all of as many rows.
        target: an array of as many rows; ``None``: none.
        rows: of a batch.
        epochs: how often each row is seen.
        shuffle: ``False``: in order.
        drop_last: leaves out what is too few for a whole batch at an epoch's end.
        start: batches to pass over.

    Raises:
        ValueError: arrays have different numbers of rows, or fewer than one batch needs; a number is out of range.
    """

    def __init__(
        self,
        inputs: Columns,
        target: npt.ArrayLike | None = None,
        *,
        rows: int,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        start: int = 0,
    ) -> None:
        self._named = isinstance(inputs, Mapping)
        given = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
        self._inputs: dict[str, Array] = {name: as_array(values) for name, values in given.items()}
        self._target = None if target is None else as_array(target)
        columns = [*self._inputs.items(), *([] if self._target is None else [("target", self._target)])]
        for name, values in columns:
            if not values.ndim:
                raise ValueError(f"{name}: must have rows, got the number {values}")
        counts = {name: len(values) for name, values in columns}
        if len(set(counts.values())) != 1:
            raise ValueError(f"all arrays must have as many rows, got {counts}")
        self._count = next(iter(counts.values()))
        if rows < 1 or (self._count < rows and drop_last) or self._count < 1:
            raise ValueError(f"rows must be 1 to {self._count}, the number of rows there are, got {rows}")
        if epochs < 0 or start < 0:
            raise ValueError(f"epochs and start must be at least 0, got {epochs} and {start}")
        self._rows, self._epochs, self._shuffle, self._seed = rows, epochs, shuffle, seed
        self._per_epoch = self._count // rows if drop_last else -(-self._count // rows)
        self._start = min(start, self._per_epoch * epochs)

    def __len__(self) -> int:
        return self._per_epoch * self._epochs - self._start

    def __iter__(self) -> Iterator[Batch]:
        order = np.arange(self._count)
        drawn = -1
        for index in range(self._start, self._per_epoch * self._epochs):
            epoch, batch = divmod(index, self._per_epoch)
            if self._shuffle and epoch != drawn:
                order = np.random.default_rng((self._seed, epoch)).permutation(self._count)
                drawn = epoch
            chosen = order[batch * self._rows : (batch + 1) * self._rows]
            picked = {name: values[chosen] for name, values in self._inputs.items()}
            target = None if self._target is None else self._target[chosen]
            yield Batch(picked if self._named else picked["inputs"], target)


def batches_of(source: Iterable[Any]) -> Iterator[Batch]:
    """What any iterable gives, as batches: a :class:`Batch`; a pair (inputs, target), as most PyTorch datasets give; or
    a mapping by input name, as those of Hugging Face, whose ``labels`` a step takes for the target where the model has no
    such input. Tensors become arrays."""
    for item in source:
        if isinstance(item, Batch):
            yield Batch(_arrays(item.inputs), _arrays(item.target))
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            yield Batch(_arrays(item[0]), _arrays(item[1]))
        elif isinstance(item, Mapping):
            yield Batch(_arrays(item))
        else:
            raise TypeError(f"a batch is (inputs, target) or a mapping by input name, not {type(item).__name__}")


def _arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _arrays(part) for name, part in value.items()}
    return as_array(value) if hasattr(value, "detach") else value

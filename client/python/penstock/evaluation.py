# Written by client/python/tools/unasync.py from penstock/aio/evaluation.py; change that file instead.
"""Evaluation over many mini-batches."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.handles import EvaluationHandle
from penstock.work import PipelineWork
from penstock.data import batches_of
from penstock.requests import EvaluateArguments
from penstock.results import Evaluation

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LEASE = 600.0  # seconds that a result waits for slow batches


def evaluate(
    pipeline: PipelineWork, batches: Iterable[Any], *, ahead: int = 2, **arguments: Unpack[EvaluateArguments]
) -> Evaluation:
    """The loss and metrics over all mini-batches, as over one that holds all of their rows: each has the weight of its
    counted elements. They are computed by the daemon; see :meth:`Pipeline.evaluate`.

    Training may go on meanwhile: then mini-batches see the weights of different steps, each of one.

    Example::

        held_out = penstock.Batches(images, labels, rows=64, shuffle=False, drop_last=False)
        found = penstock.evaluate(pipeline, held_out, metrics=["accuracy"])
        print(found.loss, found.metrics["accuracy"])

    Args:
        batches: :class:`Batches`, a PyTorch ``DataLoader``, or anything that gives (inputs, target).
        ahead: further mini-batches that are sent before the one that is awaited has ended.
        arguments: of :meth:`Pipeline.evaluate`, the same for each mini-batch; ``request_id`` belongs to one call and is
            refused.

    Raises:
        TypeError: ``request_id`` is given.
        ValueError: there is no mini-batch.
        PenstockError: the first one that failed.
    """
    if "request_id" in arguments:
        raise TypeError("request_id: belongs to one call")
    arguments.setdefault("lease", _LEASE)
    under_way: collections.deque[EvaluationHandle] = collections.deque()
    found: list[Evaluation] = []

    def end_one() -> None:
        found.append(under_way[0].result(arguments.get("timeout")))
        pipeline._connection.release_later([under_way.popleft().name])

    try:
        for batch in batches_of(batches):
            under_way.append(pipeline.submit_evaluate(batch.inputs, batch.target, **arguments))
            while len(under_way) > ahead:
                end_one()
        while under_way:
            end_one()
    finally:
        pipeline._connection.release_later([handle.name for handle in under_way])  # which ends their work
    return Evaluation.joined(found)

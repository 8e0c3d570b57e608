"""What errors say, and where they go."""

from __future__ import annotations

import copy
import pickle

import grpc
import penstock
import pytest


@pytest.mark.parametrize(
    "error",
    [
        penstock.PenstockError(
            grpc.StatusCode.UNAVAILABLE, "QUEUE_FULL", "too many", {"queue": "training"}, [("spec.seed", "no")], 1.5
        ),
        penstock.DeadlineError.pending("pipelines/demo/handles/1", 1.0, "id-1"),
    ],
    ids=["refusal", "deadline"],
)
def test_errors_go_to_other_processes_whole(error: penstock.PenstockError) -> None:
    """A pool of processes that can't read an error stands still."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error) and str(again) == str(error)
        for name in ("code", "reason", "message", "values", "violations", "retry_delay", "request_id"):
            assert getattr(again, name) == getattr(error, name), name

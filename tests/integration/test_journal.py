"""The journal: what was acknowledged is there after kill -9, once, bit for bit, and a retry gets the same answer."""

from __future__ import annotations

import penstock
import pytest

from conftest import StartDaemon
from small_models import create_mlp, differing, mlp_batch, request_id, state_of

NAME = "trained"


def test_training_goes_on_after_a_kill_without_a_checkpoint_of_the_caller(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME, dropout=0.1)
        before = [pipeline.train_step(*mlp_batch(step)) for step in range(4)]
        pipeline.forward_backward(*mlp_batch(4), total_rows=16)
        wanted = state_of(pipeline)
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline(NAME)
        assert not differing(state_of(pipeline), wanted)
        pipeline.forward_backward(*mlp_batch(5), total_rows=16)
        assert pipeline.optimizer_step().step == 5
        after = state_of(pipeline)
        other = create_mlp(client, "undisturbed", dropout=0.1)
        for step in range(4):
            assert other.train_step(*mlp_batch(step)).loss == before[step].loss
        other.forward_backward(*mlp_batch(4), total_rows=16)
        other.forward_backward(*mlp_batch(5), total_rows=16)
        other.optimizer_step()
        assert not differing(state_of(other), after)
    daemon.stop()

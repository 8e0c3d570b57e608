"""Checkpoints of a pipeline."""

from __future__ import annotations

import penstock
import pytest
from fake_daemon import FakeDaemon
from penstock.v1 import state_pb2


def test_checkpoints(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    assert pipeline.save_checkpoint("mine").name == "pipelines/demo/checkpoints/mine"
    pipeline.restore_checkpoint("mine", force=True)
    pipeline.restore_checkpoint("pipelines/demo/checkpoints/mine")
    names = [request.name for request in daemon.requests["RestoreCheckpoint"]]
    assert names == ["pipelines/demo/checkpoints/mine"] * 2
    assert daemon.requests["RestoreCheckpoint"][0].force
    assert [checkpoint.step for checkpoint in pipeline.list_checkpoints()] == [1]
    pipeline.delete_checkpoint("mine")
    assert daemon.requests["DeleteCheckpoint"][0].name == "pipelines/demo/checkpoints/mine"


def test_publications(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    assert pipeline.publish("mine").published.version == "2"
    pipeline.publish("pipelines/demo/checkpoints/mine")
    assert pipeline.message.published.checkpoint == "pipelines/demo/checkpoints/mine"
    assert not pipeline.publish(None).HasField("published")
    requests = daemon.requests["PublishCheckpoint"]
    assert [(one.pipeline, one.checkpoint_id) for one in requests] == [
        ("pipelines/demo", "mine"), ("pipelines/demo", "mine"), ("pipelines/demo", "")
    ]
    assert len({one.request_id for one in requests}) == 3


def test_unloads_and_loads(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.unload()
    assert pipeline.state == "UNLOADED"
    pipeline.load()
    assert pipeline.state == "READY"
    requests = [daemon.requests[method][0] for method in ("UnloadPipeline", "LoadPipeline")]
    assert [one.name for one in requests] == ["pipelines/demo", "pipelines/demo"]
    assert len({one.request_id for one in requests}) == 2


def test_saves_that_replace_and_rotate(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.save_checkpoint("mine")
    pipeline.save_checkpoint("mine", replace=True, keep=3)
    assert [(one.replace, one.keep) for one in daemon.requests["SaveCheckpoint"]] == [(False, 0), (True, 3)]


def test_checkpoints_of_all_pipelines(
    client: penstock.Client, pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    daemon.listed = [
        state_pb2.Checkpoint(name=f"pipelines/{name}/checkpoints/c", step=1, state="CHECKPOINT_STATE_COMPLETE")
        for name in ("a", "b")
    ]
    first, second = client.checkpoints()
    assert (first.pipeline, second.pipeline, first.step, first.state) == ("a", "b", 1, "COMPLETE")
    assert repr(first) == "Checkpoint('pipelines/a/checkpoints/c', COMPLETE, step 1)"
    client.checkpoints("a")
    client.checkpoints("pipelines/a")
    parents = [request.parent for request in daemon.requests["ListCheckpoints"]]
    assert parents == ["pipelines/-"] * 2 + ["pipelines/a"] * 4
    assert first.copy_to(pipeline).name == "pipelines/demo/checkpoints/c"
    assert first.copy_to(pipeline, "mine", timeout=9).name == "pipelines/demo/checkpoints/mine"
    assert daemon.requests["CopyCheckpoint"][0].source == first.name
    assert first.read_parameters(["weight"], include_optimizer_state=True).keys() == daemon.state.keys() | daemon.optimizer.keys()
    (read,) = daemon.requests["ReadParameters"]
    assert (read.checkpoint, read.pipeline, read.include_optimizer_state) == (first.name, "", True)
    second.delete()
    assert daemon.requests["DeleteCheckpoint"][0].name == second.name


def test_a_checkpoint_of_another_pipeline_is_refused_here(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    foreign = "pipelines/other/checkpoints/mine"
    for call in (pipeline.restore_checkpoint, pipeline.delete_checkpoint, pipeline.publish):
        with pytest.raises(ValueError, match=f"must be a checkpoint of pipelines/demo, got {foreign}"):
            call(foreign)
    assert not daemon.requests["RestoreCheckpoint"] and not daemon.requests["DeleteCheckpoint"]

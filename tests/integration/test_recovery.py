"""Checkpoints, without a journal: what was saved survives kill -9 bit for bit, and what is damaged is refused by name."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import resource
import signal

import grpc
import penstock
import pytest

from conftest import WITHOUT_JOURNAL, StartDaemon
from daemon_process import Daemon
from small_models import create_mlp, differing, mlp_batch, state_of, weights_of

NAME = "trained"


def trained(client: penstock.Client) -> penstock.Pipeline:
    """A pipeline whose checkpoints `one` and `two` stand after two and three steps."""
    pipeline = create_mlp(client, NAME, dropout=0.1)
    for step in range(3):
        pipeline.train_step(*mlp_batch(step))
        if step >= 1:
            saved = pipeline.save_checkpoint(["one", "two"][step - 1])
            assert saved.step == step + 1 and saved.byte_size > 0 and saved.digest.startswith("crc32c:")
    return pipeline


def file_of(daemon: Daemon, checkpoint: str) -> pathlib.Path:
    """The file that holds a checkpoint's tensors."""
    found = list(daemon.state_dir.glob(f"**/checkpoints/{checkpoint}/*.safetensors"))
    assert len(found) == 1, found
    return found[0]


def test_training_goes_on_after_kill_as_if_nothing_had_happened(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        pipeline = trained(client)
        handle = pipeline.submit_infer(mlp_batch(0)[0]).wait(30)
        for step in range(3, 6):
            pipeline.train_step(*mlp_batch(step))
        undisturbed = state_of(pipeline)
        epoch = client.server_info().epoch
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert client.server_info().epoch == epoch + 1
        assert client.list_pipelines() == [], "a pipeline outlived the daemon"
        pipeline = create_mlp(client, NAME, dropout=0.1)
        assert [checkpoint.step for checkpoint in pipeline.list_checkpoints()] == [2, 3]
        # A handle of the life before is told apart from a released one.
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.infer(penstock.ValueHandle(handle._connection, _result(handle)))
        assert raised.value.reason == "EPOCH_MISMATCH"
        assert pipeline.restore_checkpoint("two").step == 3
        for step in range(3, 6):
            assert pipeline.train_step(*mlp_batch(step)).step == step + 1
        assert not differing(state_of(pipeline), undisturbed)
    daemon.stop()


def stop_in_mid_save(daemon: Daemon, pipeline: penstock.Pipeline) -> list[str]:
    """Saves until the daemon is stopped while it writes a checkpoint; the names of those that it had finished.

    What is being written stands under a name that begins with a dot, and is renamed when it is whole.
    """
    finished: list[str] = []
    for attempt in range(50):
        name = f"attempt-{attempt}"
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            saving = pool.submit(pipeline.save_checkpoint, name)
            while not saving.done():
                if list(daemon.state_dir.glob("pipelines/*/checkpoints/.*")):
                    os.kill(daemon.pid, signal.SIGSTOP)
                    break
            if list(daemon.state_dir.glob("pipelines/*/checkpoints/.*")):
                daemon.kill()
                with pytest.raises(penstock.PenstockError) as raised:
                    saving.result()
                assert raised.value.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), raised.value
                return finished
            os.kill(daemon.pid, signal.SIGCONT)
            saving.result()
            finished.append(name)
    raise AssertionError("no save was met while it wrote")


def test_killed_in_the_middle_of_saving(start_daemon: StartDaemon) -> None:
    """Nothing is left of the save that a kill met, and all of the checkpoints before it."""
    daemon = start_daemon(*WITHOUT_JOURNAL)
    options = {"layers": 8, "width": 512}
    with penstock.Client(daemon.address, retry_for=0) as client:
        pipeline = client.create_pipeline(NAME, model="mlp", options=options, stages=2, loss="mean_squared_error")
        pipeline.save_checkpoint("before")
        wanted = weights_of(pipeline)
        finished = stop_in_mid_save(daemon, pipeline)
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = client.create_pipeline(NAME, model="mlp", options=options, stages=2, loss="mean_squared_error")
        names = [checkpoint.name.rsplit("/", 1)[1] for checkpoint in pipeline.list_checkpoints()]
        assert sorted(names) == sorted(["before", *finished])
        assert not list(daemon.state_dir.glob("pipelines/*/checkpoints/.*"))
        for name in names:
            pipeline.restore_checkpoint(name)
            assert not differing(weights_of(pipeline), wanted)
    daemon.stop()


@pytest.mark.parametrize("damage", ["torn", "one bit", "longer", "gone"])
@pytest.mark.parametrize("restart", [False, True], ids=["seen by the same daemon", "seen after a restart"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_loads(
    start_daemon: StartDaemon, damage: str, restart: bool
) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        pipeline = trained(client)
        pipeline.restore_checkpoint("one")
        wanted = state_of(pipeline)
        if restart:
            daemon.kill()
        file = file_of(daemon, "two")
        content = bytearray(file.read_bytes())
        if damage == "torn":
            file.write_bytes(content[: len(content) // 2])
        elif damage == "one bit":
            content[len(content) - 5] ^= 1
            file.write_bytes(content)
        elif damage == "longer":
            file.write_bytes(content + b"\0")
        else:
            file.unlink()
        if restart:
            daemon.start()
            pipeline = create_mlp(client, NAME, dropout=0.1)
            pipeline.restore_checkpoint("one")
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.restore_checkpoint("two")
        error = raised.value
        assert (error.code, error.reason) == (grpc.StatusCode.DATA_LOSS, "CHECKPOINT_CORRUPT")
        assert "two" in error.message + str(error.values), "the error does not name the checkpoint"
        assert str(daemon.folder) not in error.message + str(error.values), "the error shows a path"
        assert not differing(state_of(pipeline), wanted), "a refused restore changed the state"
        pipeline.restore_checkpoint("one")
        assert pipeline.train_step(*mlp_batch(2)).step == 3


def test_a_full_disk_refuses_the_save_and_harms_nothing(start_daemon: StartDaemon) -> None:
    """A limit on file size stands for the full disk; the daemon ignores its signal as it would find it on a disk."""
    daemon = start_daemon(*WITHOUT_JOURNAL, prefix=("bash", "-c", 'trap "" XFSZ; exec "$@"', "--"))
    with penstock.Client(daemon.address) as client:
        pipeline = trained(client)
        wanted = state_of(pipeline)
        limit = file_of(daemon, "two").stat().st_size // 2
        assert daemon.log_path.stat().st_size < limit
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.save_checkpoint("three")
        assert (raised.value.code, raised.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FULL")
        names = {checkpoint.name.rsplit("/", 1)[1] for checkpoint in pipeline.list_checkpoints()}
        assert names == {"one", "two"}
        assert not list(daemon.state_dir.glob("**/*three*")), "a half checkpoint was left"
        assert not differing(state_of(pipeline), wanted)
        pipeline.restore_checkpoint("two")
        assert pipeline.train_step(*mlp_batch(3)).step == 4


def test_a_checkpoint_of_another_model_is_refused(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        trained(client).delete()
        other = create_mlp(client, NAME, options={"layers": 4, "width": 8})
        before = weights_of(other)
        with pytest.raises(penstock.PenstockError) as raised:
            other.restore_checkpoint("two")
        assert (raised.value.code, raised.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_MISMATCH")
        assert not differing(weights_of(other), before)


def test_checkpoints_can_be_restored_into_another_cut(start_daemon: StartDaemon) -> None:
    """The same model in other stages continues to the same weights."""
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        pipeline = trained(client)
        pipeline.train_step(*mlp_batch(3))
        wanted = state_of(pipeline)
        pipeline.delete()
        pipeline = create_mlp(client, NAME, dropout=0.1, stages=1, schedule="gpipe")
        pipeline.restore_checkpoint("two")
        pipeline.train_step(*mlp_batch(3))
        assert not differing(state_of(pipeline), wanted)


def test_purge_removes_the_checkpoints(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        trained(client).delete()
        pipeline = create_mlp(client, NAME, dropout=0.1)
        assert len(pipeline.list_checkpoints()) == 2
        pipeline.delete(purge=True)
        assert create_mlp(client, NAME, dropout=0.1).list_checkpoints() == []


def _result(handle: penstock.ValueHandle) -> object:
    from penstock.v1 import handle_pb2

    return handle_pb2.Result(handle=handle_pb2.Handle(name=handle.name))

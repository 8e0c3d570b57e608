"""What pipelines, results and models take of the host's memory together stays below --memory-limit."""

from __future__ import annotations

import pathlib
import time

import grpc
import numpy as np
import penstock
import pytest

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import eventually
from small_models import create_gpt, create_mlp

LIMIT = 64 << 20


def test_pipelines_share_one_limit(start_daemon: StartDaemon) -> None:
    """A pipeline that does not fit beside the others is refused, by the names of who has the memory; it fits when they go."""
    daemon = start_daemon(*QUICK_DRAIN, f"--memory-limit={LIMIT}", "--trace-ring-events=0")

    def reserved() -> float:
        return daemon.metrics().sum("penstock_memory_reserved_bytes", **{"class": "pipelines"})

    with penstock.Client(daemon.address, timeout=60) as client:

        def create(name: str) -> penstock.Pipeline:
            # Weights 8 MiB and gradients as much; activations are small.
            return create_mlp(
                client,
                name,
                options={"layers": 2, "width": 1024},
                stages=2,
                optimizer="sgd",
                optimizer_options={"learning_rate": 0.1},
            )

        assert daemon.metrics().sum("penstock_memory_limit_bytes") == LIMIT
        assert reserved() == 0
        first, second = create("first"), create("second")
        assert 32 << 20 <= reserved() <= LIMIT
        before = reserved()
        with pytest.raises(penstock.PenstockError) as raised:
            create("third")
        assert raised.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert raised.value.reason == "HOST_MEMORY"
        assert raised.value.values["pipeline"] == "third"
        assert raised.value.values["limit_value"] == str(LIMIT)
        for told in ("no memory for pipelines (pipeline third", "pipelines (pipeline first", "pipelines (pipeline second"):
            assert told in raised.value.message
        assert reserved() == before, "what was refused takes nothing"
        first.delete()
        third = create("third")
        second.delete()
        third.delete()
        assert reserved() == 0
    daemon.stop()


def test_results_must_fit(start_daemon: StartDaemon) -> None:
    with pytest.raises(AssertionError, match="--handle-bytes: must be at most --memory-limit"):
        start_daemon(f"--memory-limit={LIMIT}", f"--handle-bytes={LIMIT + 1}")


def test_a_caller_may_hold_half_of_the_results(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--handle-bytes=16MiB")
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        held = pipeline.put({"x": np.ones(7 << 18, np.float32)})  # 7 MiB
        with pytest.raises(penstock.PenstockError, match="HANDLE_BUDGET"):
            pipeline.put({"x": np.ones(1 << 19, np.float32)})
        held.release()
        pipeline.put({"x": np.ones(1 << 19, np.float32)}).release()


def test_results_that_do_not_fit_go_to_files(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    """Forty results where eight fit, the oldest used again and again, and none of them lost; no file has a name."""
    folder = tmp_path / "results"
    folder.mkdir()
    daemon = start_daemon("--handle-bytes=16MiB", "--handle-spill-bytes=256MiB", f"--handle-spill-root={folder}")

    def held(tier: str) -> float:
        return daemon.metrics().sum("penstock_handle_bytes", tier=tier)

    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        arrays = [np.arange(1 << 18, dtype=np.float32) + number for number in range(40)]  # 1 MiB each
        handles = [pipeline.put({"x": arrays[0]})]
        for array in arrays[1:]:
            handles.append(pipeline.put({"x": array}))
            assert np.array_equal(handles[0].fetch()["x"], arrays[0])
        assert held("host") <= 8 << 20
        assert held("file") >= 32 << 20
        assert not list(folder.iterdir())
        for handle, array in zip(handles, arrays):
            assert np.array_equal(handle.fetch()["x"], array)
            handle.release()
        eventually(lambda: held("file") == 0 and held("host") == 0)


def test_inputs_and_outputs_in_files_have_the_same_bits(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    daemon = start_daemon("--handle-bytes=8MiB", f"--handle-spill-root={tmp_path}")
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, options={"layers": 2, "width": 512}, stages=2)
        rows = np.random.default_rng(3).standard_normal((512, 512), np.float32)  # 1 MiB, as the result
        want = pipeline.infer(rows)["output"]
        uploads = [pipeline.put({"input": rows}) for _ in range(8)]
        results = []
        for upload in uploads:  # one after the other: what open calls need stays in memory
            results.append(pipeline.submit_infer({"input": (upload, "input")}))
            results[-1].wait()
        assert daemon.metrics().sum("penstock_handle_bytes", tier="file") >= 12 << 20
        for result in results:
            assert np.array_equal(result.fetch()["output"], want)


def test_a_folder_for_results_must_be_there(start_daemon: StartDaemon) -> None:
    with pytest.raises(AssertionError, match="--handle-spill-root: must be a folder for files"):
        start_daemon("--handle-spill-root=/nowhere/at/all")


def test_the_heap_is_given_back_when_pipelines_go(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    batch = np.ones((256, 1024), np.float32)
    with penstock.Client(daemon.address) as client:
        start = daemon.resident_bytes()
        for _ in range(2):
            pipelines = [create_mlp(client, options={"layers": 8, "width": 1024}) for _ in range(2)]
            for pipeline in pipelines:
                pipeline.train_step(batch, batch)
            grown = daemon.resident_bytes() - start
            for pipeline in pipelines:
                pipeline.delete()
            assert grown > 256 << 20
            # A call that is just ending may hold its pipeline for a moment longer.
            eventually(lambda: daemon.resident_bytes() - start < grown // 6)


def test_what_results_held_is_used_again_or_goes_back(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        start = daemon.resident_bytes()
        pipeline.put({"large": np.ones(40 << 20, np.float32)}).release()  # 160 MiB
        eventually(lambda: daemon.resident_bytes() - start < 60 << 20)
        for middle in [pipeline.put({"middle": np.ones(7 << 20, np.float32)}) for _ in range(5)]:  # 140 MiB
            middle.release()
        small = [pipeline.put({"small": np.ones(1 << 15, np.float32)}) for _ in range(800)]  # 100 MiB
        assert daemon.resident_bytes() - start < 200 << 20, "both beside each other would be 240 MiB"
        for one in small:
            one.release()


def test_the_results_of_large_models_do_not_pile_up(start_daemon: StartDaemon) -> None:
    """A loop that never releases meets its leases: the number of results stays within what they allow."""
    lease = 5.0  # the shortest that the daemon gives
    daemon = start_daemon(*QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        pipeline = create_gpt(client)
        tokens = np.zeros((16, 16), np.int64)
        end = time.monotonic() + 1.5 * lease
        largest = 0
        while time.monotonic() < end:
            pipeline.submit_infer(tokens, lease=lease).wait(30)
            largest = max(largest, pipeline.statistics().handles)
        assert pipeline.statistics().handles_created > largest, "nothing has expired"

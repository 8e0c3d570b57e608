"""Clients that do everything, and much of it badly: all methods, cancelled calls, closed connections, bad inputs."""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import time
from collections.abc import Callable

import grpc
import numpy as np
import penstock

from small_models import create_mlp, mlp_batch

LEASE = 5.0  # the shortest that the daemon gives
EVERY = 200  # acts of a client: one of them is large
LARGE = 2048  # features of a layer of the large pipeline, which has 16.8 million parameters

# What a daemon under load may say, and what bad inputs and the acts of others lead to; everything else is a failure.
LEGAL = {
    "QUEUE_FULL",
    "CALLER_QUOTA",
    "HANDLE_BUDGET",
    "HOST_MEMORY",
    "GRAPH_LIMIT",
    "GRAPH_STALE",
    "GRAPH_CONSUMED",
    "STREAM_LIMIT",
    "REQUEST_LOG_FULL",
    "STORAGE_FULL",
    "WORK_CANCELLED",
    "WORK_DEADLINE",
    "QUEUE_DEADLINE",
    "HANDLE_RELEASED",
    "HANDLE_EXPIRED",
    "ACCUMULATION_HELD",
    "ACCUMULATION_OPEN",
    "ACCUMULATION_EMPTY",
    "ACCUMULATION_LOST",
    "CHECKPOINT_EXISTS",
    "CHECKPOINT_NOT_FOUND",
    "PIPELINE_NOT_FOUND",
    "PIPELINE_NOT_READY",
    "STEP_NOT_RETAINED",
    "STATE_MISMATCH",
}
# What must be refused, and how.
BAD = {"TENSOR_SIGNATURE", "FIELD_INVALID", "HANDLE_NOT_FOUND", "NAME_INVALID", "TENSOR_HEADER"}


class Counts:
    """What happened, over all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.steps: list[int] = []

    def count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def refuse(self, reason: str) -> None:
        with self._lock:
            self.refused[reason] += 1

    def stepped(self, step: int) -> None:
        with self._lock:
            self.steps.append(step)

    def fail(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)


class Caller(threading.Thread):
    """One client at a time; after it has vanished, the next one of the same name."""

    def __init__(self, number: int, address: str, answers: list[bytes], counts: Counts, end: float) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._address = address
        self._answers = answers
        self._counts = counts
        self._end = end
        self._random = random.Random(number)
        common = [self.infer, self.infer, self.train, self.upload, self.fetch_later, self.cancel, self.bad_input]
        rare = [
            self.evaluate,
            self.halves,
            self.accumulate,
            self.leave_a_graph,
            self.leave_a_result,
            self.hurry,
            self.read,
            self.look,
            self.checkpoint,
            self.plan,
            self.trace,
            self.train_large,
        ]
        self._acts = 4 * common + rare

    def run(self) -> None:
        while time.monotonic() < self._end:
            client = penstock.Client(self._address, f"caller-{self._number}", timeout=120, retry_for=0)
            try:
                self._live(client)
            except BaseException as error:
                self._counts.fail(f"caller {self._number}: {type(error).__name__}: {error}")
                return
            finally:
                client.close()

    def _live(self, client: penstock.Client) -> None:
        """Acts until it vanishes, with work under way."""
        for _ in range(self._random.randint(1, 30)):
            if time.monotonic() >= self._end:
                return
            act = self._random.choice(self._acts)
            if self._random.randrange(EVERY) == 0:
                act = self.make_and_delete
            try:
                act(client)
                self._counts.count(act.__name__)
            except penstock.PenstockError as error:
                if error.reason not in LEGAL:
                    raise
                self._counts.refuse(error.reason)
                time.sleep(self._random.uniform(0, error.retry_delay or 0.05))
        last = self._random.choice([self.infer, self.fetch_later, self.train, self.read])
        vanishing = threading.Thread(target=self._quietly, args=(last, client), daemon=True)
        vanishing.start()
        time.sleep(self._random.uniform(0, 0.01))

    def _quietly(self, act: Callable[[penstock.Client], None], client: penstock.Client) -> None:
        """A call whose client goes away."""
        with contextlib.suppress(penstock.PenstockError, ValueError, grpc.RpcError):
            act(client)

    def _probe(self) -> tuple[int, np.ndarray]:
        probe = self._random.randrange(len(self._answers))
        return probe, probe_of(probe)

    def _check(self, probe: int, output: np.ndarray) -> None:
        if output.tobytes() != self._answers[probe]:
            self._counts.fail(f"caller {self._number}: a wrong answer to probe {probe}")

    # --- the acts ---

    def infer(self, client: penstock.Client) -> None:
        probe, rows = self._probe()
        self._check(probe, client.pipeline("fixed").infer(rows, lease=LEASE)["output"])

    def fetch_later(self, client: penstock.Client) -> None:
        pipeline = client.pipeline("fixed")
        chosen = [self._probe() for _ in range(3)]
        handles = [pipeline.submit_infer(rows, lease=LEASE) for _, rows in chosen]
        for (probe, _), handle in zip(chosen, handles):
            handle.renew(LEASE)
            self._check(probe, handle.fetch(60)["output"])
        pipeline.release(handles)

    def cancel(self, client: penstock.Client) -> None:
        probe, rows = self._probe()
        handle = client.pipeline("fixed").submit_infer(rows, lease=LEASE)
        handle.cancel()
        try:
            self._check(probe, handle.fetch(60)["output"])
        finally:
            handle.release()

    def upload(self, client: penstock.Client) -> None:
        probe, rows = self._probe()
        pipeline = client.pipeline("fixed")
        noise = self._random.randbytes(self._random.randint(1, 500_000))
        handle = pipeline.put({"x": rows, "noise": np.frombuffer(noise, np.uint8)}, lease=LEASE)
        self._check(probe, pipeline.infer((handle, "x"), lease=LEASE)["output"])
        if handle.fetch(60)["noise"].tobytes() != noise:
            self._counts.fail(f"caller {self._number}: an upload came back changed")
        handle.release()

    def train(self, client: penstock.Client) -> None:
        outcome = client.pipeline("trained").train_step(*mlp_batch(self._number), lease=LEASE)
        if not outcome.applied:
            self._counts.fail(f"caller {self._number}: a step was not applied")
        self._counts.stepped(outcome.step)

    def train_large(self, client: penstock.Client) -> None:
        rows = np.ones((4, LARGE), np.float32)
        client.pipeline("large").train_step(rows, rows, lease=LEASE)

    def evaluate(self, client: penstock.Client) -> None:
        client.pipeline("fixed").evaluate(*mlp_batch(self._number), lease=LEASE)

    def halves(self, client: penstock.Client) -> None:
        pipeline = client.pipeline("trained")
        rows, _ = mlp_batch(self._number)
        forward = pipeline.forward(rows, lease=LEASE)
        pipeline.backward(forward.graph, {"output": np.ones_like(rows)}, lease=LEASE)
        pipeline.optimizer_step(discard=True, lease=LEASE)

    def accumulate(self, client: penstock.Client) -> None:
        pipeline = client.pipeline("trained")
        pipeline.forward_backward(*mlp_batch(self._number), lease=LEASE, accumulation_lease=5.0)
        if self._random.randrange(2):
            pipeline.optimizer_step(lease=LEASE)

    def leave_a_graph(self, client: penstock.Client) -> None:
        client.pipeline("trained").submit_forward(mlp_batch(self._number)[0], lease=LEASE)

    def leave_a_result(self, client: penstock.Client) -> None:
        client.pipeline("fixed").submit_infer(self._probe()[1], lease=LEASE)

    def hurry(self, client: penstock.Client) -> None:
        """A call whose own time, or whose work's, is over at once."""
        with contextlib.suppress(penstock.DeadlineError):
            client.pipeline("fixed").infer(self._probe()[1], lease=LEASE, timeout=self._random.uniform(0.001, 0.05))

    def read(self, client: penstock.Client) -> None:
        pipeline = client.pipeline(self._random.choice(["fixed", "trained"]))
        pipeline.read_parameters(include_optimizer_state=bool(self._random.randrange(2)))

    def look(self, client: penstock.Client) -> None:
        client.server_info()
        client.list_pipelines()
        pipeline = client.pipeline("trained")
        pipeline.statistics()
        pipeline.handles()
        pipeline.list_checkpoints()
        pipeline.schedule()
        client.checkpoints()

    def checkpoint(self, client: penstock.Client) -> None:
        pipeline = client.pipeline("saved")
        pipeline.save_checkpoint(f"of-{self._number % 4}", replace=True)
        if self._random.randrange(4) == 0:
            pipeline.restore_checkpoint(f"of-{self._number % 4}", force=True)
        if self._random.randrange(8) == 0:
            pipeline.delete_checkpoint(f"of-{self._number % 4}")

    def plan(self, client: penstock.Client) -> None:
        client.plan(
            penstock.pipeline_spec(model="mlp", options={"layers": 2, "width": 8}, stages=2, micro_batches=2), timeout=60
        )

    def trace(self, client: penstock.Client) -> None:
        client.pipeline("trained").trace()

    def make_and_delete(self, client: penstock.Client) -> None:
        pipeline = create_mlp(client, f"own-{self._number}", exist_ok=True)
        pipeline.train_step(*mlp_batch(self._number), lease=LEASE)
        pipeline.delete(force=True, purge=True)

    def bad_input(self, client: penstock.Client) -> None:
        pipeline = client.pipeline("fixed")
        wrong: list[Callable[[], object]] = [
            lambda: pipeline.infer(np.zeros((4, 7), np.float32)),
            lambda: pipeline.infer(np.zeros(16, np.float32)),
            lambda: pipeline.infer(self._probe()[1], micro_batches=100_000),
            lambda: client.pipeline("fixed").infer(self._probe()[1], outputs=["none"]),
        ]
        try:
            self._random.choice(wrong)()
        except penstock.PenstockError as error:
            if error.reason not in BAD:
                raise
        except (TypeError, ValueError):
            pass  # the client has seen it
        else:
            self._counts.fail(f"caller {self._number}: a bad input was taken")


def probe_of(number: int) -> np.ndarray:
    return mlp_batch(number, 4)[0]


def make_pipelines(client: penstock.Client, probes: int) -> list[bytes]:
    """The pipelines of a soak, and what "fixed" makes of each probe."""
    fixed = create_mlp(client, "fixed")
    for name in ("trained", "saved"):
        create_mlp(client, name)
    # As large as what daemons serve: beside it, what LibTorch and gRPC take by themselves is little.
    create_mlp(client, "large", options={"layers": 4, "width": LARGE})
    return [fixed.infer(probe_of(probe))["output"].tobytes() for probe in range(probes)]

"""Two hundred clients for a minute submit, fetch, cancel and vanish at random: no crash, no leak, no wrong result."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable

import grpc
import numpy as np
import penstock

from conftest import StartDaemon
from small_models import create_gpt, create_mlp, mlp_batch

CLIENTS = int(os.environ.get("PENSTOCK_SOAK_CLIENTS", "200"))
SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "60"))
LEASE = 5.0  # the shortest that the daemon gives
BROKEN_UPLOADS = SECONDS / 6

# What a daemon under load may say; everything else is a failure.
LEGAL = {
    "QUEUE_FULL",
    "CALLER_QUOTA",
    "HANDLE_BUDGET",
    "GRAPH_LIMIT",
    "GRAPH_STALE",
    "WORK_CANCELLED",
    "HANDLE_RELEASED",
    "HANDLE_EXPIRED",
}


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

    def fail(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)

    def stepped(self, step: int) -> None:
        with self._lock:
            self.steps.append(step)


class Caller(threading.Thread):
    """One client at a time; after it has vanished, the next one of the same name."""

    def __init__(
        self, number: int, address: str, probes: list[np.ndarray], answers: list[bytes], counts: Counts, end: float
    ) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._address = address
        self._probes = probes
        self._answers = answers
        self._counts = counts
        self._end = end
        self._random = random.Random(number)
        self._actions = [
            self._infer,
            self._infer,
            self._infer,
            self._fetch_later,
            self._cancel,
            self._upload,
            self._train,
            self._leave_a_graph,
            self._leave_a_result,
        ]

    def run(self) -> None:
        while time.monotonic() < self._end:
            client = penstock.Client(self._address, f"caller-{self._number}", timeout=60, retry_for=0)
            try:
                self._live(client)
            except BaseException as error:
                self._counts.fail(f"caller {self._number}: {type(error).__name__}: {error}")
                return
            finally:
                client.close()

    def _live(self, client: penstock.Client) -> None:
        """Acts until it vanishes, with work under way."""
        fixed, trained = client.pipeline("fixed"), client.pipeline("trained")
        for _ in range(self._random.randint(1, 30)):
            if time.monotonic() >= self._end:
                return
            action = self._random.choice(self._actions)
            try:
                action(trained if action in (self._train, self._leave_a_graph) else fixed)
                self._counts.count(action.__name__.strip("_"))
            except penstock.PenstockError as error:
                if error.reason not in LEGAL:
                    raise
                self._counts.refuse(error.reason)
                time.sleep(self._random.uniform(0, error.retry_delay or 0.05))
        # A broken upload may go on within a minute, so all of these must lie in the first seconds.
        early = time.monotonic() < self._end - SECONDS + BROKEN_UPLOADS
        last = self._random.choice([self._infer, self._fetch_later, self._upload if early else self._infer])
        vanishing = threading.Thread(target=self._quietly, args=(last, fixed), daemon=True)
        vanishing.start()
        time.sleep(self._random.uniform(0, 0.01))

    def _quietly(self, action: Callable[[penstock.Pipeline], None], pipeline: penstock.Pipeline) -> None:
        """A call whose client goes away; whatever it gets is right but a wrong answer."""
        with contextlib.suppress(penstock.PenstockError, ValueError, grpc.RpcError):
            action(pipeline)

    def _check(self, probe: int, output: np.ndarray) -> None:
        if output.tobytes() != self._answers[probe]:
            self._counts.fail(f"caller {self._number}: a wrong answer to probe {probe}")

    def _infer(self, pipeline: penstock.Pipeline) -> None:
        probe = self._random.randrange(len(self._probes))
        self._check(probe, pipeline.infer(self._probes[probe], lease=LEASE, timeout=60)["output"])

    def _fetch_later(self, pipeline: penstock.Pipeline) -> None:
        chosen = [self._random.randrange(len(self._probes)) for _ in range(3)]
        handles = [pipeline.submit_infer(self._probes[probe], lease=LEASE) for probe in chosen]
        for probe, handle in zip(chosen, handles):
            self._check(probe, handle.fetch(60)["output"])
        pipeline.release(handles)

    def _cancel(self, pipeline: penstock.Pipeline) -> None:
        probe = self._random.randrange(len(self._probes))
        handle = pipeline.submit_infer(self._probes[probe], lease=LEASE)
        effect = handle.cancel()
        try:
            self._check(probe, handle.fetch(60)["output"])
        except penstock.PenstockError as error:
            if error.reason != "WORK_CANCELLED" or effect == "NOT_CANCELLABLE":
                raise
        handle.release()

    def _upload(self, pipeline: penstock.Pipeline) -> None:
        probe = self._random.randrange(len(self._probes))
        noise = np.random.default_rng(probe).bytes(self._random.randint(1, 500_000))
        values = {"x": self._probes[probe], "noise": np.frombuffer(noise, np.uint8)}
        handle = pipeline.put(values, lease=LEASE)
        self._check(probe, pipeline.infer((handle, "x"), lease=LEASE, timeout=60)["output"])
        if handle.fetch(60)["noise"].tobytes() != noise:
            self._counts.fail(f"caller {self._number}: an upload came back changed")
        handle.release()

    def _train(self, pipeline: penstock.Pipeline) -> None:
        outcome = pipeline.train_step(*mlp_batch(self._number), lease=LEASE, timeout=60)
        if not outcome.applied:
            self._counts.fail(f"caller {self._number}: a step was not applied")
        self._counts.stepped(outcome.step)

    def _leave_a_graph(self, pipeline: penstock.Pipeline) -> None:
        pipeline.submit_forward(mlp_batch(self._number)[0], lease=LEASE)

    def _leave_a_result(self, pipeline: penstock.Pipeline) -> None:
        pipeline.submit_infer(self._random.choice(self._probes), lease=LEASE)


def test_two_hundred_clients(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    owner = penstock.Client(daemon.address, "owner")
    fixed, trained = create_mlp(owner, "fixed"), create_mlp(owner, "trained")
    probes = [mlp_batch(seed, 4)[0] for seed in range(16)]
    answers = [fixed.infer(probe)["output"].tobytes() for probe in probes]
    counts = Counts()
    began = time.monotonic()
    callers = [Caller(number, daemon.address, probes, answers, counts, began + SECONDS) for number in range(CLIENTS)]
    for caller in callers:
        caller.start()
    # The first third fills caches, pools and tombstones.
    warm_bytes = 0
    while time.monotonic() < began + SECONDS:
        time.sleep(0.5)
        assert daemon.alive(), daemon.log[-4000:]
        assert not counts.failures, counts.failures[:5]
        if not warm_bytes and time.monotonic() > began + SECONDS / 3:
            warm_bytes = daemon.resident_bytes()
    for caller in callers:
        caller.join(90)
        assert not caller.is_alive(), "a client hangs"
    print(dict(counts.done), dict(counts.refused))
    assert not counts.failures, counts.failures[:5]
    assert all(counts.done[what] > 0 for what in ("infer", "fetch_later", "cancel", "upload", "train"))

    # Every step was taken once: accepted steps of vanished clients included, none twice.
    assert len(set(counts.steps)) == len(counts.steps)
    assert trained.refresh().step >= max(counts.steps)

    # Nobody is left, so within a lease nothing is held.
    deadline = max(time.monotonic() + LEASE, began + BROKEN_UPLOADS + 60) + 5
    while True:
        held = {p.name: (p.statistics().handles, p.statistics().handle_bytes) for p in (fixed, trained)}
        if all(handles == 0 for handles, _ in held.values()):
            break
        assert time.monotonic() < deadline, f"handles leaked: {held}"
        time.sleep(0.25)
    assert all(size == 0 for _, size in held.values()), held
    metrics = daemon.metrics()
    assert metrics.sum("penstock_handles") == 0
    assert metrics.sum("penstock_queue_depth") == 0 and metrics.sum("penstock_runs_active") == 0

    # Tombstones, retried answers and the allocator's slack may grow by this much, not more.
    grown = daemon.resident_bytes() - warm_bytes
    print(f"resident: {warm_bytes >> 20} MiB after a third, {grown >> 20} MiB more at the end")
    assert grown < 64 << 20
    for probe, answer in zip(probes, answers):
        assert fixed.infer(probe)["output"].tobytes() == answer
    owner.close()
    daemon.stop()


def test_the_results_of_large_models_do_not_pile_up(start_daemon: StartDaemon) -> None:
    """A loop that never releases meets its leases, and the memory stays within what they allow."""
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_gpt(client)
        tokens = np.zeros((16, 16), np.int64)
        end = time.monotonic() + (1.5 * LEASE if SECONDS >= 60 else 1)
        largest = 0
        while time.monotonic() < end:
            pipeline.submit_infer(tokens, lease=LEASE).wait(30)
            largest = max(largest, pipeline.statistics().handles)
        created = pipeline.statistics().handles_created
        assert created > largest or SECONDS < 60, "nothing has expired"
    daemon.stop()

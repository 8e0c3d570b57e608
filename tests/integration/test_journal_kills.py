"""Random kills while a client works and retries: in the end the state is that of an undisturbed run, bit for bit, and
every request id got the same answer twice.

PENSTOCK_KILLS says how often the daemon is killed: 20 in the suite, 1,000 behind ``tests/run.sh --long``.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import penstock

from conftest import StartDaemon
from daemon_process import Daemon
from small_models import create_mlp, differing, mlp_batch, state_of

KILLS = int(os.environ.get("PENSTOCK_KILLS", "20"))
SECONDS_OF_RETRIES = 300.0
# What a caller may see when the daemon dies under it: it asks again, by the same request id.
LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}

Answer = tuple[object, ...]


def again(call: Callable[[str], Any], request_id: str) -> Any:
    """The answer of a call, however often its daemon dies."""
    while True:
        try:
            return call(request_id)
        except penstock.PenstockError as error:
            # Its handles, or those of its inputs, are of the life before.
            if error.code not in LOST and error.reason != "EPOCH_MISMATCH":
                raise


def facts(outcome: penstock.Outcome) -> Answer:
    return (outcome.loss, outcome.gradient_norm, outcome.step, outcome.applied, outcome.sequence)


class Script:
    """One piece of work after another, each chosen by its number alone, so that two runs do the same."""

    def __init__(self, client: penstock.Client, name: str) -> None:
        self.client = client
        self.pipeline = again(lambda _: create_mlp(client, name, dropout=0.1, exist_ok=True), "")
        self.answers: list[tuple[str, Answer]] = []  # by what was done
        self.repeated = 0  # retries that got an answer of a life before

    def do(self, number: int) -> None:
        pick = random.Random(number)
        work = pick.choice([self.train, self.train, self.accumulate, self.halves, self.save, self.write, self.discard])
        work(number, pick)

    def ask(self, number: int, part: int, call: Callable[[str], penstock.Outcome]) -> penstock.Outcome:
        request_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{number} {part}"))
        outcome = again(call, request_id)
        self.answers.append((f"{call.__name__} {number} {part}", facts(outcome)))
        if number % 3 == 0:
            self.repeat(call, request_id, facts(outcome))
        return outcome

    def repeat(self, call: Callable[[str], penstock.Outcome], request_id: str, wanted: Answer) -> None:
        try:
            assert facts(again(call, request_id)) == wanted, "a retry got another answer"
            self.repeated += 1
        except penstock.PenstockError as error:
            # In the same life it is the same handle, which the client has given back.
            assert error.reason == "HANDLE_RELEASED", error

    def train(self, number: int, pick: random.Random) -> None:
        batch = mlp_batch(number)

        def train_step(request_id: str) -> penstock.Outcome:
            return self.pipeline.train_step(*batch, request_id=request_id)

        self.ask(number, 0, train_step)

    def contribute(self, number: int, part: int) -> None:
        batch = mlp_batch(1000 * number + part)

        def forward_backward(request_id: str) -> penstock.Outcome:
            return self.pipeline.forward_backward(*batch, total_rows=16, request_id=request_id)

        self.ask(number, part, forward_backward)

    def accumulate(self, number: int, pick: random.Random) -> None:
        for part in range(2):
            self.contribute(number, part)
        self.step(number)

    def step(self, number: int) -> None:
        def optimizer_step(request_id: str) -> penstock.Outcome:
            return self.pipeline.optimizer_step(request_id=request_id)

        self.ask(number, 9, optimizer_step)

    def discard(self, number: int, pick: random.Random) -> None:
        self.contribute(number, 0)

        def discard(request_id: str) -> penstock.Outcome:
            return self.pipeline.optimizer_step(discard=True, request_id=request_id)

        self.ask(number, 8, discard)

    def halves(self, number: int, pick: random.Random) -> None:
        inputs, target = mlp_batch(number)
        forward_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{number} forward"))
        made: list[Any] = []  # the Forward that was answered last, and its gradient

        def backward(request_id: str) -> penstock.Outcome:
            if made:
                try:
                    # If it has been made, this is all that there may be left of both: a checkpoint has their effect.
                    return self.pipeline.backward(made[0].graph, {"output": made[1]}, request_id=request_id)
                except penstock.PenstockError as error:
                    if error.reason != "EPOCH_MISMATCH":
                        raise
            # The graph is of this life: asked for again, it is the same one.
            forward = self.pipeline.forward(inputs, request_id=forward_id)
            output = forward.outputs.fetch()["output"]
            made[:] = forward, (output - target).astype(np.float32) / output.size
            return self.pipeline.backward(made[0].graph, {"output": made[1]}, request_id=request_id)

        self.ask(number, 1, backward)
        self.step(number)

    def save(self, number: int, pick: random.Random) -> None:
        again(lambda _: self.pipeline.save_checkpoint("latest", replace=True), "")
        self.train(number, pick)
        if number % 2 == 0:
            again(lambda _: self.pipeline.restore_checkpoint("latest"), "")

    def write(self, number: int, pick: random.Random) -> None:
        values = np.random.default_rng(number).standard_normal((16, 16), np.float32) / 4
        name = sorted(again(lambda _: self.pipeline.read_parameters(), ""))[1]
        again(lambda _: self.pipeline.write_parameters({name: values}), "")
        self.train(number, pick)


def test_random_kills(start_daemon: StartDaemon) -> None:
    # Checkpoints come all the time, in the middle of accumulations too.
    daemon = start_daemon("--journal-replay=5ms")
    seed = int(os.environ.get("PENSTOCK_SEED", "0")) or random.randrange(1 << 30)
    print(f"PENSTOCK_SEED={seed}")
    over = threading.Event()
    kills = threading.Thread(target=kill_often, args=(daemon, random.Random(seed), over))
    kills.start()
    done = 0
    try:
        with penstock.Client(daemon.address, retry_for=SECONDS_OF_RETRIES) as client:
            script = Script(client, "killed")
            while kills.is_alive():
                script.do(done)
                done += 1
            state = state_of(script.pipeline)
            undisturbed = Script(client, "undisturbed")
            for number in range(done):
                undisturbed.do(number)
            wanted = state_of(undisturbed.pipeline)
    finally:
        over.set()
        kills.join()
    for mine, other in zip(script.answers, undisturbed.answers, strict=True):
        assert mine[0] == other[0] and mine[1][:4] == other[1][:4], (mine, other)
    assert not differing(state, wanted)
    continued = daemon.log.count("an accumulation goes on from its checkpoint")
    print(
        f"{done} pieces of work over {KILLS} kills, {script.repeated} answers of a life before, "
        f"{continued} accumulations went on from a checkpoint"
    )
    daemon.stop()


def kill_often(daemon: Daemon, when: random.Random, over: threading.Event) -> None:
    for _ in range(KILLS):
        if over.wait(when.choice([0.05, 0.2, 0.6, 1.5]) * when.random()):
            return
        daemon.kill()
        daemon.start()

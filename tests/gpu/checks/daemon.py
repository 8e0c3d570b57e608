"""A daemon whose lanes stand on one GPU, from a client's point of view: cuts, training, inference, checkpoints, traces.

Usage: daemon.py [DEVICE]. A device like cpu:0 tries the check itself where there is no GPU. The packages of both wheels are on
Python's path.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np

import penstock

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda:0"
SEQUENCE, VOCABULARY, ROWS = 128, 256, 16
GPT = {"blocks": 4, "width": 256, "heads": 4, "sequence": SEQUENCE, "vocab": VOCABULARY, "dropout": 0.1}
failures: list[str] = []


def expect(condition: bool, text: str) -> None:
    print(("ok      " if condition else "FAILED  ") + text, flush=True)
    if not condition:
        failures.append(text)


def figures(of: str, **values: Any) -> None:
    """A line for the runner, which collects them; times are seconds."""
    print("figures " + json.dumps({"of": of, **values}), flush=True)


def program(name: str) -> list[str]:
    """As the wheel's console script starts it."""
    return [sys.executable, "-c", f"from penstock_server.launch import {name}; {name}()"]


def batch(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    text = np.random.default_rng(seed).integers(0, VOCABULARY, (rows, SEQUENCE + 1))
    return text[:, :-1], text[:, 1:]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Daemon:
    def __init__(self, folder: str) -> None:
        (pathlib.Path(folder) / "models").mkdir()
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics_address = f"127.0.0.1:{free_port()}"
        command = [*program("penstockd"), f"--listen={self.address}", f"--metrics-listen={self.metrics_address}",
                   "--admin-listen=off", f"--state-dir={folder}", f"--device={DEVICE}", "--drain-announce=0s", "--deterministic",
                   f"--model-root={folder}/models", "--allow-model-upload"]  # fmt: skip
        self.process = subprocess.Popen(command)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*program("penstock"), f"--server={self.address}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def metric(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(match[2])
            for match in re.finditer(rf"^{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE)
            if all(label in (match[1] or "") for label in wanted)
        )


@contextlib.contextmanager
def running() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder)
        try:
            healthy = daemon.command("health", "--wait", "60")
            expect(healthy.returncode == 0, f"the daemon is ready {healthy.stderr.strip()}")
            yield daemon
            daemon.process.send_signal(signal.SIGTERM)
            expect(daemon.process.wait(30) == 0, "the daemon drains and exits with 0")
        finally:
            daemon.process.kill()


def create(client: penstock.Client, name: str, stages: int, **changes: Any) -> penstock.Pipeline:
    layers = int(GPT["blocks"]) + 2
    arguments: dict[str, Any] = {
        "model": "gpt", "options": GPT, "schedule": "1f1b", "micro_batches": 4, "optimizer": "adamw", "clip_norm": 1.0,
        "loss": "cross_entropy", "seed": 7, "devices": [DEVICE] * stages,
        "balance": [layers * (s + 1) // stages - layers * s // stages for s in range(stages)],
    }  # fmt: skip
    return client.create_pipeline(name, **{**arguments, **changes})


def cuts_agree(client: penstock.Client) -> None:
    """The same steps with 1, 2 and 4 stages."""
    states = []
    for stages in (1, 2, 4):
        pipeline = create(client, f"cut-{stages}", stages)
        outcomes = [pipeline.train_step(*batch(seed)) for seed in range(5)]
        states.append(pipeline.state_arrays())
        bubble = outcomes[-1].measured_bubble or 0
        planned = pipeline.message.plan.predicted_bubble
        took = statistics.median(outcome.seconds for outcome in outcomes[1:])
        print(f"        {stages} stages: loss {outcomes[-1].loss}, step {1e3 * took:.2f} ms, bubble {bubble:.3f}, planned {planned:.3f}")
        figures("cut", stages=stages, step=took, bubble_measured=bubble, bubble_predicted=planned)
        expect(0 <= bubble < 1, f"{stages} stages: the bubble lies in [0, 1)")
        if stages > 1:
            apart = max(float(np.abs(states[-1][name] - states[0][name]).max()) for name in states[0])
            expect(apart == 0, f"{stages} stages have the bits of one (apart by {apart})")
        pipeline.delete()


def trains_and_serves(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create(client, "served", 2, options={**GPT, "dropout": 0.0})
    first = pipeline.train_step(*batch(0)).loss
    for _ in range(20):
        last = pipeline.train_step(*batch(0))
    expect(last.loss < first, f"the loss falls on one mini-batch, from {first:.3f} to {last.loss:.3f}")

    tokens, target = batch(1, 4)
    logits = pipeline.infer(tokens)["logits"]
    expect(logits.shape == (4, SEQUENCE, VOCABULARY) and bool(np.isfinite(logits).all()), "infers finite logits")
    waits = []
    for _ in range(30):
        begin = time.perf_counter()
        pipeline.infer(tokens[:1])
        waits.append(time.perf_counter() - begin)
    print(f"        inference of one row over gRPC: median {1e3 * statistics.median(waits):.2f} ms")
    figures("inference", median=statistics.median(waits), least=min(waits), most=max(waits))
    evaluation = pipeline.evaluate(tokens, target, metrics=["accuracy"])
    picked = logits - logits.max(-1, keepdims=True)
    picked = picked - np.log(np.exp(picked).sum(-1, keepdims=True))
    own = -np.take_along_axis(picked, target[..., None], -1).mean()
    expect(abs(evaluation.loss - own) < 1e-3, f"evaluates to the loss of the logits, {evaluation.loss:.5f}, {own:.5f}")

    pipeline.save_checkpoint("here")
    after = [pipeline.train_step(*batch(seed)).loss for seed in (5, 6)]
    pipeline.restore_checkpoint("here")
    again = [pipeline.train_step(*batch(seed)).loss for seed in (5, 6)]
    expect(after == again, f"after a restore the same steps have the same losses {after} {again}")

    contribution = pipeline.forward_backward(*batch(7))
    stepped = pipeline.optimizer_step()
    expect(contribution.loss is not None and bool(stepped.applied), "a contribution and a step")

    tokens, target = batch(8)
    try:
        pipeline.train_step(np.full_like(tokens, VOCABULARY), target)
        expect(False, "a token beyond the vocabulary is refused")
    except penstock.PenstockError as error:
        expect("must lie in" in str(error), f"a token beyond the vocabulary is refused: {error}")
    expect(bool(pipeline.train_step(*batch(9)).applied), "and the next step runs")

    beside_training(pipeline)
    looks_into(pipeline, daemon)
    pipeline.delete()


def beside_training(pipeline: penstock.Pipeline) -> None:
    stop = threading.Event()
    answered: list[float] = []

    def ask() -> None:
        while not stop.is_set():
            begin = time.perf_counter()
            pipeline.infer(batch(3, 4)[0])
            answered.append(time.perf_counter() - begin)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    outcomes = [pipeline.train_step(*batch(seed)) for seed in range(20)]
    stop.set()
    for thread in asking:
        thread.join()
    took = 1e3 * statistics.median(outcome.seconds for outcome in outcomes)
    print(f"        beside 20 steps of {took:.2f} ms: {len(answered)} inferences, median {1e3 * statistics.median(answered):.2f} ms")
    if answered:
        figures("inference beside training", median=statistics.median(answered), most=max(answered), step=took / 1e3)
    expect(len(answered) > 0, "inference beside training is answered")


def looks_into(pipeline: penstock.Pipeline, daemon: Daemon) -> None:
    seen = pipeline.statistics()
    expect(len(seen.lanes) == 2 and 0 <= seen.measured_bubble < 1, f"statistics: bubble {seen.measured_bubble:.3f}")
    schedule = pipeline.schedule(measured=True)
    expect(len(schedule.actions) > 0, f"the last step as measured has {len(schedule.actions)} actions")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "step.json"
        pipeline.trace(path)
        events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    expect(len(slices) > 0 and all(event["dur"] >= 0 for event in slices), f"the trace has {len(slices)} slices")

    before, began = daemon.metric("penstock_stage_time_seconds_total", pipeline="served"), time.monotonic()
    for seed in range(10):
        pipeline.train_step(*batch(seed))
    grown, passed = daemon.metric("penstock_stage_time_seconds_total", pipeline="served") - before, time.monotonic() - began
    expect(abs(grown / (2 * passed) - 1) < 0.1, f"the states of two lanes grow by {grown:.3f} s in {passed:.3f} s")


def runs_an_exported_program(client: penstock.Client) -> None:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 64), layer, torch.nn.Linear(64, VOCABULARY))
    tokens, target = batch(11)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "encoder.pt2"
        penstock.export(model, torch.from_numpy(tokens[:2].copy()), str(path))
        program = client.models.upload(str(path))
    pipeline = client.create_pipeline("exported", model=program, stages=2, devices=[DEVICE] * 2, loss="cross_entropy",
                                      schedule="1f1b", micro_batches=4, optimizer_options={"learning_rate": 0.01})  # fmt: skip
    model = model.to(DEVICE if DEVICE.startswith("cuda") else "cpu").eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.copy()).to(device)).reshape(-1, VOCABULARY)
        eager = torch.nn.functional.cross_entropy(logits, torch.from_numpy(target.copy()).to(device).reshape(-1)).item()
    loss = pipeline.evaluate(tokens, target).loss
    expect(abs(loss - eager) < 1e-4, f"an exported program has PyTorch's loss, {loss:.6f}, {eager:.6f}")
    outcomes = [pipeline.train_step(tokens, target) for _ in range(10)]
    took = 1e3 * statistics.median(outcome.seconds for outcome in outcomes)
    expect(outcomes[-1].loss < loss - 0.1, f"and learns with dropout, to {outcomes[-1].loss:.3f}, a step {took:.2f} ms")
    pipeline.delete()


def plans_by_itself(client: penstock.Client) -> None:
    begin = time.monotonic()
    pipeline = client.create_pipeline("planned", model="gpt", options=GPT, loss="cross_entropy", planning_seconds=10)
    plan = pipeline.message.plan
    print(f"        planned in {time.monotonic() - begin:.1f} s: {len(plan.stages)} stages, {plan.schedule}, m = {plan.micro_batches}")
    figures("planned", seconds=time.monotonic() - begin, stages=len(plan.stages), micro_batches=plan.micro_batches)
    outcomes = [pipeline.train_step(*batch(seed, 32)) for seed in range(6)]
    took = 1e3 * statistics.median(outcome.seconds for outcome in outcomes[1:])
    expect(bool(outcomes[-1].applied), f"a pipeline of the planner's choice trains, {took:.2f} ms")
    pipeline.delete()


def main() -> int:
    if DEVICE.startswith("cuda"):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            print(f"no GPU: {error}")
            return 0
    with running() as daemon, penstock.Client(daemon.address) as client:
        information = client.server_info()
        print("        devices: " + ", ".join(str(device.name) for device in information.devices))
        parts = (cuts_agree, lambda one: trains_and_serves(one, daemon), plans_by_itself, runs_an_exported_program)
        for part in parts:
            try:
                part(client)
            except Exception as error:  # the other parts still tell something
                expect(False, f"{type(error).__name__}: {error}")
        status = daemon.command("status")
        expect(status.returncode == 0, "penstock status\n" + status.stdout)
        print(daemon.command("doctor").stdout)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

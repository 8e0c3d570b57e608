"""One process with PyTorch, grpcio, tritonclient and Penstock's client, in one environment with the programs' wheel; packages.py
runs it in a system of its own.

Usage: together_inside.py      (/packages, /wheels of what is installed besides, /torch and /torch-needs site-packages)

Prints a JSON document: for each order of the imports, the versions, the losses, and how far the answers lie apart.
"""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import json
import signal
import subprocess
import sys

ORDERS = (
    ("torch", "grpc", "tritonclient.grpc", "penstock"),
    ("penstock", "tritonclient.grpc", "grpc", "torch"),
    ("tritonclient.grpc", "torch", "penstock", "grpc"),
)


def both(address: str, *order: str) -> dict[str, object]:
    """Trains and infers over both clients, and computes the same here."""
    for name in order:
        importlib.import_module(name)
    import grpc
    import numpy as np
    import penstock
    import torch
    import tritonclient.grpc as triton

    torch.manual_seed(1)
    rows, target = torch.randn(16, 8), torch.randn(16, 8)
    with penstock.Client(address) as client, triton.InferenceServerClient(address) as other:
        name = f"mine-{order[0].partition('.')[0]}"
        pipeline = client.create_pipeline(
            name,
            model="mlp",
            options={"layers": 2, "width": 8},
            stages=2,
            micro_batches=4,
            optimizer="sgd",
            optimizer_options={"learning_rate": 0.1},
            loss="mean_squared_error",
        )
        losses = [pipeline.train_step(rows, target).loss for _ in range(3)]
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(60)
            given = triton.InferInput("input", [16, 8], "FP32")
            given.set_data_from_numpy(rows.numpy())
            answer = other.infer(name, [given]).as_numpy("output")
            own = pipeline.infer(rows.numpy())["output"]
        pipeline.delete()
    weight = torch.zeros(8, 8, requires_grad=True)
    torch.nn.functional.mse_loss(rows @ weight, target).backward()
    assert weight.grad is not None
    versions = {
        name: importlib.metadata.version(name) for name in ("torch", "grpcio", "tritonclient", "penstock", "penstock_server")
    }
    return {
        "versions": versions,
        "losses": losses,
        "apart": float(np.abs(answer - own).max()),
        "gradient": bool(weight.grad.any()),
    }


def main() -> int:
    venv = "/tmp/venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (site,) = glob.glob(f"{venv}/lib/python3*/site-packages")
    with open(f"{site}/torch.pth", "w") as path:
        path.write("/torch-needs\n/torch\nimport penstock_cuda_stand_ins\n")
    pip = [f"{venv}/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels", "--ignore-installed"]
    subprocess.run([*pip, *glob.glob("/packages/*.whl"), "tritonclient[grpc]", "grpcio"], check=True)
    daemon = subprocess.Popen([f"{venv}/bin/penstockd", "--state-dir=/tmp/state", "--drain-announce=0s"])
    try:
        subprocess.run([f"{venv}/bin/penstock", "health", "readiness", "--wait", "60"], check=True)
        told = []
        for order in ORDERS:
            command = [f"{venv}/bin/python", __file__, "127.0.0.1:8470", *order]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{order}: ended with {done.returncode}: {done.stderr}", file=sys.stderr)
                return 1
            told.append(json.loads(done.stdout.splitlines()[-1]))
        daemon.send_signal(signal.SIGTERM)
        if daemon.wait(60) != 0:
            print(f"penstockd ended with {daemon.returncode}", file=sys.stderr)
            return 1
    finally:
        daemon.kill()
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(both(*sys.argv[1:])))
        sys.exit(0)
    sys.exit(main())

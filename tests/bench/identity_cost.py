"""What a call pays for identity: the same call in plaintext, over TLS with a certificate, with a token, and with an audit log.

    build/deps/test-venv/bin/python tests/bench/identity_cost.py --daemon build/release/server/penstockd

One daemon for each kind runs all the time. In each round every kind is measured in turn, with one connection and one call after the other,
so that what else the machine does falls on all of them; the ratios are of the same round.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

import grpc

from spreads import spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]

READ = "/penstock.v1.AdminService/GetServerInfo"
REFUSED = "/penstock.v1.PipelineService/DeletePipeline"  # changes state, so the audit log has it; ends at its empty request


def microseconds(channel: grpc.Channel, path: str, calls: int, token: str) -> float:
    """The median of one call."""
    call = channel.unary_unary(path)
    headers = (("authorization", f"Bearer {token}"),) if token else ()
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        try:
            call(b"", metadata=headers)
        except grpc.RpcError as error:
            assert path == REFUSED and error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    from daemon_process import Daemon
    from identity_files import Identities, TlsDaemon

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in ("plain", "tls", "audited"):
            (folder / part).mkdir()
        identities = Identities(folder / "identities")
        plain = Daemon(folder / "plain")
        tls = TlsDaemon(folder / "tls", identities)
        audited = TlsDaemon(folder / "audited", identities, f"--audit-log={folder}/audit")
        with plain.running(), tls.running(), audited.running():
            kinds = {
                "plaintext": (grpc.insecure_channel(plain.address), READ, ""),
                "TLS, certificate": (grpc.secure_channel(tls.address, identities.credentials("admin")), READ, ""),
                "TLS, token": (grpc.secure_channel(tls.address, identities.credentials()), READ, "secret-admin"),
                "a changing call, TLS, token": (grpc.secure_channel(tls.address, identities.credentials()), REFUSED, "secret-admin"),
                "the same with an audit log": (grpc.secure_channel(audited.address, identities.credentials()), REFUSED, "secret-admin"),
            }
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for number in range(options.rounds + 1):
                for kind, (channel, path, token) in kinds.items():
                    measured = microseconds(channel, path, options.calls, token)
                    if number > 0:  # the first round warms up
                        times[kind].append(measured)
            for channel, _, _ in kinds.values():
                channel.close()
    against = {"a changing call, TLS, token": "TLS, token", "the same with an audit log": "a changing call, TLS, token"}
    print(f"{options.rounds} rounds of {options.calls} calls each, one after the other; medians (least to most)")
    print(f"{'':30} {'us per call':>26}   against")
    for kind, values in times.items():
        other = against.get(kind, "plaintext")
        ratio = [mine / its for mine, its in zip(values, times[other])]
        more = [mine - its for mine, its in zip(values, times[other])]
        said = "" if kind == "plaintext" else f"   {other}: {spread(ratio, 2)} times, {spread(more, 0)} us more"
        print(f"{kind:30} {spread(values, 0):>26}{said}")


if __name__ == "__main__":
    main()

"""Runs the checks of a bundle one after the other, each with a limit of time, and reports. Called by tests/gpu/run.sh."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import lzma
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from types import FrameType
from typing import Any

KEPT = 4 << 20  # bytes of a log
LARGE = ["--autocast", "bf16", "--rows", "32", "--sequence", "1024", "--m", "4", "--rounds", "7"]
# Under the sanitizer a test takes 10 to 40 times as long.
SLOW = ["*FullDevice*", "*ThatIsFull*", "*Resnet*", "*Unet*", "*OnTheHost*", "*EveryRule*", "*BugsTupleWait*"]
# These compare the host's time with the GPU's, need LibTorch's cache of memory, or end their process's use of the GPU.
OTHERWISE = ["LaneGpuTest.*", "*TimedEvents*", "*RecordStream*", "*ShiftedView*", "*CountsMemory*", "*ChoosesItsOwnCut*",
             "*FaultBehindTheHost*"]  # fmt: skip
# That end the run: an interruption, a request, a terminal that is gone.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOT_WHOLE = (OSError, EOFError, KeyError, ValueError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


class Problem(Exception):
    """Why nothing more can be checked; the message is the whole report."""


class Stopped(BaseException):
    """One of SIGNALS came."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@dataclasses.dataclass
class Check:
    name: str
    command: list[str]
    share: int  # of the time, in seconds where all checks together have nine minutes
    needs: str = ""  # a program that the machine may lack
    gpus: int = 0  # how many it needs
    ours: bool = True  # finds its libraries by the environment
    packages: bool = False  # imports what the bundle carries for one version of Python
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def checks(bundle: pathlib.Path, unpacked: pathlib.Path) -> list[Check]:
    """The most important first, as the later ones have what time is left."""
    tests, bench = str(unpacked / "bin/gpu_tests"), str(unpacked / "bin/gpu_bench")
    python = [sys.executable, "-u"]
    daemon = [*python, str(bundle / "checks/daemon.py")]
    sanitizer = ["compute-sanitizer", "--error-exitcode", "9", "--print-limit", "20", "--tool"]
    everything = f"--gtest_filter=-{':'.join([*SLOW, *OTHERWISE])}"
    few = "--gtest_filter=CopyGpuTest.Integers*:CopyGpuTest.AMissing*:PipelineGpuTest.AForwardAndItsBackward*"
    # Otherwise tensors share what LibTorch keeps, and one that is read beyond its end, or after its end, is not seen.
    apart = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PENSTOCK_GPU_DELAY": "100"}
    return [
        Check("gpu", ["nvidia-smi"], 20, needs="nvidia-smi", ours=False),
        Check("tests", [tests], 110),
        Check("daemon", [*daemon, "cuda:0"], 90, ours=False, packages=True),
        Check("daemon-on-cuda-1", [*daemon, "cuda:1"], 60, gpus=2, ours=False, packages=True),
        Check("engine-time", [bench, "--idle", "--rows", "32", "--m", "32", "--rounds", "51"], 40),
        Check("gpt-350m", [bench, *LARGE], 90),
        Check("memcheck", [*sanitizer, "memcheck", tests, everything], 90, needs="compute-sanitizer", environment=apart),
        Check("gpt-350m-on-2", [bench, *LARGE, "--stages", "2,4", "--gpus", "2"], 60, gpus=2),
        Check("torch-peers", [*python, str(bundle / "checks/torch_peers.py")], 60, ours=False),
        Check("gpt-350m-on-4", [bench, *LARGE, "--stages", "4", "--gpus", "4"], 50, gpus=4),
        Check("racecheck", [*sanitizer, "racecheck", tests, few], 30, needs="compute-sanitizer", environment=apart),
    ]  # fmt: skip


def torch_folder() -> pathlib.Path | None:
    found = importlib.util.find_spec("torch")
    return pathlib.Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def unpack(bundle: pathlib.Path, folder: pathlib.Path) -> str:
    """The wheels as pip would place them, and beside them the tests' programs. Returns the version of Python that they are
    for."""
    try:
        _unpack(bundle, folder)
        return str(json.loads((bundle / "bundle.json").read_text())["python"])
    except NOT_WHOLE as problem:
        raise Problem(f"{bundle} can't be unpacked: {problem}") from None


def _unpack(bundle: pathlib.Path, folder: pathlib.Path) -> None:
    for wheel in sorted((bundle / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
    for program in (folder / "site/penstock_server/bin").glob("*"):
        program.chmod(0o755)
    with tarfile.open(bundle / "programs.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def library_path(unpacked: pathlib.Path, torch: pathlib.Path) -> str:
    """For the tests' programs: the CUDA module is the wheel's."""
    cuda = sorted((torch.parent / "nvidia").glob("*/lib"))
    own = [unpacked / "lib", unpacked / "site/penstock_server/lib"]
    return ":".join(str(folder) for folder in [torch / "lib", *cuda, *own])


def gpus_here() -> int:
    """What the driver tells, whether or not our programs find them."""
    told = 0
    if shutil.which("nvidia-smi"):
        try:
            listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
            told = len(re.findall(r"^GPU \d+:", listed.stdout, re.M)) if listed.returncode == 0 else 0
        except subprocess.TimeoutExpired:
            pass
    return max(told, len(list(pathlib.Path("/dev").glob("nvidia[0-9]*"))))


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def kill(child: subprocess.Popen[bytes]) -> None:
    os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10)  # a driver that hangs keeps it


def run(check: Check, environment: dict[str, str], log: pathlib.Path, limit: float, gpus: int) -> tuple[str, str]:
    """The outcome, and why where it is not `passed`."""
    with open(log, "wb") as out:
        # No signal comes between the start of the child and the place that ends it.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        child = subprocess.Popen(
            check.command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True, preexec_fn=unblock
        )
        try:
            unblock()
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            return "failed", f"not done after {limit:.0f} s"
        finally:
            if child.returncode is None:
                kill(child)
    text = log.read_bytes()
    if len(text) > KEPT:
        log.write_bytes(text[: KEPT // 2] + b"\n...\n" + text[-KEPT // 2 :])
    if code:
        return "failed", f"exit code {code}"
    if none := re.search(rb"no GPU: .*", text):
        # There is one: then it is our program that does not find it.
        return "failed" if gpus else "skipped", none[0].decode(errors="replace")
    if few := re.search(rb"^\d+ GPUs are needed, and there are \d+", text, re.M):
        return "skipped", few[0].decode()
    return "passed", ""


def why_left_out(check: Check, gpus: int, version: str) -> tuple[str, str] | None:
    if check.needs and shutil.which(check.needs) is None:
        return "skipped", f"this machine has no {check.needs}"
    if check.gpus > max(gpus, 1):
        return "skipped", f"{check.gpus} GPUs are needed, and there are {gpus}"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if check.packages and version != here:
        return "failed", f"the bundle's packages are for Python {version}, and this is {here}: bundle.sh --python {here}"
    return None


def figures_of(log: pathlib.Path) -> list[dict[str, Any]]:
    """What a check has measured: its lines `figures {...}`."""
    text = log.read_text(errors="replace") if log.exists() else ""
    found = []
    for line in re.findall(r"^figures (\{.*\})$", text, re.M):
        try:
            found.append(json.loads(line))
        except ValueError:
            print(f"run: no JSON: {line[:200]}", file=sys.stderr)
    return found


def environment_of(check: Check, unpacked: pathlib.Path, torch: pathlib.Path) -> dict[str, str]:
    environment = {**os.environ, **check.environment}
    if check.ours:
        environment["LD_LIBRARY_PATH"] = library_path(unpacked, torch)
    if check.packages:
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{unpacked / 'site'}:{others}" if others else str(unpacked / "site")
    return environment


def run_all(
    options: argparse.Namespace, torch: pathlib.Path, unpacked: pathlib.Path, version: str, results: list[dict[str, Any]]
) -> None:
    """Adds to `results` as checks are done."""
    end = time.monotonic() + 60 * options.minutes
    gpus = gpus_here()
    wanted = [check for check in checks(options.bundle, unpacked) if not options.only or check.name in options.only]
    left_out = {check.name: told for check in wanted if (told := why_left_out(check, gpus, version))}
    waiting = sum(check.share for check in wanted if check.name not in left_out)
    for check in wanted:
        log = options.out / f"{check.name}.log"
        log.unlink(missing_ok=True)
        begin = time.monotonic()
        # Its share of what is left, so that those behind it have theirs, whatever it does.
        limit = 0.0
        if check.name in left_out:
            outcome, why = left_out[check.name]
        else:
            limit = (end - begin) * check.share / waiting
            waiting -= check.share
            outcome, why = run(check, environment_of(check, unpacked, torch), log, limit, gpus)
        took = round(time.monotonic() - begin, 1)
        result = {"check": check.name, "outcome": outcome, "why": why, "seconds": took, "limit": round(limit, 1)}
        results.append({**result, "figures": figures_of(log)})
        print(f"{check.name:<16} {outcome:<8} {took:6.1f} s  {why}", flush=True)


def minutes(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


def stop(number: int, frame: FrameType | None) -> None:
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise Stopped(number)


def write_report(folder: pathlib.Path, results: list[dict[str, Any]]) -> None:
    (folder / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    with open(folder / "report.txt", "w") as report:
        for result in results:
            log = folder / f"{result['check']}.log"
            tail = log.read_text(errors="replace")[-6000:] if log.exists() else ""
            report.write(f"== {result['check']}: {result['outcome']} {result['why']}\n{tail}\n")


def check_all(options: argparse.Namespace, torch: pathlib.Path) -> int:
    results: list[dict[str, Any]] = []
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for name in ("report.json", "report.txt"):  # of an earlier run
            (options.out / name).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
            version = unpack(options.bundle, pathlib.Path(folder))
            run_all(options, torch, pathlib.Path(folder), version, results)
    except Stopped as stopped:
        print(f"run: stopped by {signal.Signals(stopped.number).name}", file=sys.stderr)
        return 128 + stopped.number
    finally:
        if results:
            write_report(options.out, results)
    return 1 if any(result["outcome"] == "failed" for result in results) else 0


def main() -> int:
    names = [check.name for check in checks(pathlib.Path(), pathlib.Path())]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=minutes, default=9)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-report"))
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="CHECK")
    options = parser.parse_args()
    torch = torch_folder()
    if torch is None:
        print("run: python3 has no torch, whose libraries the programs need", file=sys.stderr)
        return 1
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # by nohup
            signal.signal(number, stop)
    try:
        return check_all(options, torch)
    except (Problem, OSError) as problem:
        print(f"run: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

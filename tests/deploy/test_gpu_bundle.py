"""The bundle for a machine with a GPU, with programs and a driver that stand in: what is carried, what counts as failed, how the
time is shared out, and which figures are reported."""

from __future__ import annotations

import io
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import Any

import pytest
from conftest import ROOT

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def wheel(folder: pathlib.Path, name: str, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def script(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


class Machine:
    """A machine with PyTorch, on which a bundle is made and run."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.bundle, self.report = folder, folder / "bundle", folder / "report"
        self.path = folder / "path"
        self.path.mkdir()
        (self.path / "python3").symlink_to(sys.executable)
        (folder / "torch" / "torch").mkdir(parents=True)
        (folder / "torch" / "torch" / "__init__.py").write_text("")
        (folder / "build/tests/gpu").mkdir(parents=True)
        for name in ("gpu_tests", "gpu_bench"):
            shutil.copy("/bin/true", folder / "build/tests/gpu" / name)
        wheel(folder / "packed", "penstock", {"penstock/__init__.py": ""})
        wheel(folder / "packed", "penstock_server", {"penstock_server/lib/libpenstock_cuda.so": ""})
        wheel(folder / "packages", "numpy", {"numpy/__init__.py": ""})

    def make(self, *options: str) -> subprocess.CompletedProcess[str]:
        folders = [f"--{name}={self.folder / name}".split("=") for name in ("build", "packed", "packages")]
        command = [str(ROOT / "tests/gpu/bundle.sh"), str(self.bundle), "--python", HERE, *sum(folders, []), *options]
        return subprocess.run(command, capture_output=True, text=True)

    def gpus(self, count: int) -> None:
        script(self.path / "nvidia-smi", "".join(f'echo "GPU {i}: One that stands in"\n' for i in range(count)))

    def programs(self, tests: str = "", bench: str = "") -> None:
        """Puts shell scripts in the place of the bundle's programs."""
        with tarfile.open(self.bundle / "programs.tar.xz", "w:xz") as archive:
            for name, text in (("gpu_tests", tests), ("gpu_bench", bench)):
                entry = tarfile.TarInfo(f"bin/{name}")
                content = f"#!/bin/sh\n{text}\n".encode()
                entry.size, entry.mode = len(content), stat.S_IRWXU
                archive.addfile(entry, io.BytesIO(content))

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [str(self.bundle / "run.sh"), str(self.bundle), f"--out={self.report}", *words]
        path = {"PATH": f"{self.path}:/usr/bin:/bin", "PYTHONPATH": str(self.folder / "torch"), "TMPDIR": str(self.folder)}
        environment = {**os.environ, **path}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)

    def told(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        printed, complaint = process.communicate(timeout=60)
        print(printed, complaint)
        return process.returncode, complaint

    def results(self) -> dict[str, dict[str, Any]]:
        return {one["check"]: one for one in json.loads((self.report / "report.json").read_text())}

    def run(self, *only: str, minutes: float = 1.0) -> tuple[int, dict[str, dict[str, Any]]]:
        code, _ = self.told(f"--minutes={minutes}", "--only", *only)
        return code, self.results()


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
    if list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU of its own")
    machine = Machine(tmp_path)
    made = machine.make()
    assert made.returncode == 0, made.stderr
    return machine


def test_the_bundle_carries_wheels_programs_and_checks(machine: Machine) -> None:
    names = sorted(path.name.partition("-")[0] for path in (machine.bundle / "wheels").iterdir())
    assert names == ["numpy", "penstock", "penstock_server"]
    with tarfile.open(machine.bundle / "programs.tar.xz") as archive:
        assert {"bin/gpu_tests", "bin/gpu_bench"} <= set(archive.getnames())
    assert {path.name for path in (machine.bundle / "checks").iterdir()} == {"daemon.py", "run.py", "torch_peers.py"}


def test_only_a_bundle_is_replaced_and_only_by_a_whole_one(machine: Machine) -> None:
    (machine.bundle / "mark").touch()
    (machine.folder / "packages/large-1-py3-none-any.whl").write_bytes(bytes(61 << 20))
    assert machine.make().returncode == 1
    assert (machine.bundle / "mark").exists(), "what was there stays when nothing takes its place"
    (machine.folder / "packages/large-1-py3-none-any.whl").unlink()
    assert machine.make().returncode == 0
    assert not (machine.bundle / "mark").exists()
    (machine.bundle / "bundle.json").unlink()
    made = machine.make()
    assert made.returncode == 1 and f"{machine.bundle} is there and is no bundle" in made.stderr
    assert (machine.bundle / "wheels").exists() and not list(machine.folder.glob(".bundle.*"))


def test_an_option_without_its_value_is_told(machine: Machine) -> None:
    made = machine.make("--build")
    assert (made.returncode, made.stderr) == (2, "bundle: --build needs a value\n")


def test_the_programs_name_no_folder_of_the_build(machine: Machine, tmp_path: pathlib.Path) -> None:
    with tarfile.open(machine.bundle / "programs.tar.xz") as archive:
        archive.extract("bin/gpu_tests", tmp_path)
    header = subprocess.run(["readelf", "--dynamic", str(tmp_path / "bin/gpu_tests")], capture_output=True, text=True, check=True).stdout
    assert "runpath: [$ORIGIN/../lib]" in header


def test_a_wheel_without_the_cuda_module_is_refused(machine: Machine) -> None:
    wheel(machine.folder / "packed", "penstock_server", {"penstock_server/__init__.py": ""})
    made = machine.make()
    assert made.returncode == 1 and "the wheel has no CUDA module" in made.stderr


def test_a_bundle_that_is_too_large_is_refused(machine: Machine) -> None:
    (machine.folder / "packages/large-1-py3-none-any.whl").write_bytes(bytes(61 << 20))
    made = machine.make()
    assert made.returncode == 1 and "larger than 60 MiB" in made.stderr


def test_the_programs_of_a_bundle_are_run(machine: Machine) -> None:
    machine.gpus(1)
    code, results = machine.run("gpu", "tests", "engine-time")
    assert code == 0
    assert [one["outcome"] for one in results.values()] == ["passed"] * 3


def test_without_a_gpu_it_says_what_it_skips(machine: Machine) -> None:
    machine.programs(tests="echo 'no GPU: this machine has no NVIDIA driver'")
    code, results = machine.run("gpu", "tests", "gpt-350m-on-2")
    assert code == 0
    assert {name: one["outcome"] for name, one in results.items()} == dict.fromkeys(results, "skipped")
    assert results["gpu"]["why"] == "this machine has no nvidia-smi"
    assert results["tests"]["why"] == "no GPU: this machine has no NVIDIA driver"
    assert results["gpt-350m-on-2"]["why"] == "2 GPUs are needed, and there are 0"


def test_no_gpu_where_the_driver_has_one_is_a_failure(machine: Machine) -> None:
    machine.gpus(1)
    machine.programs(tests="echo 'x: no GPU: the module is broken'", bench="echo 'no GPU: the module is broken'")
    code, results = machine.run("gpu", "tests", "gpt-350m")
    assert code == 1
    assert results["gpu"]["outcome"] == "passed"
    for name in ("tests", "gpt-350m"):
        assert (results[name]["outcome"], results[name]["why"]) == ("failed", "no GPU: the module is broken")


def test_figures_are_in_the_report(machine: Machine) -> None:
    machine.gpus(1)
    machine.programs(bench='echo "plain loop: 3 ms"; echo \'figures {"of":"plain loop","step":{"median":0.003}}\'')
    code, results = machine.run("tests", "gpt-350m")
    assert code == 0
    assert results["gpt-350m"]["figures"] == [{"of": "plain loop", "step": {"median": 0.003}}]
    assert results["tests"]["figures"] == []


def test_checks_that_hang_leave_the_others_their_time(machine: Machine) -> None:
    machine.gpus(4)
    machine.programs(tests="sleep 60", bench='echo "$@"')
    begin = time.monotonic()
    code, results = machine.run("tests", "gpt-350m", "gpt-350m-on-2", "gpt-350m-on-4", minutes=0.1)
    assert time.monotonic() - begin < 10
    assert code == 1
    assert results["tests"]["outcome"] == "failed" and results["tests"]["why"].startswith("not done after")
    later = [results[name] for name in ("gpt-350m", "gpt-350m-on-2", "gpt-350m-on-4")]
    assert [one["outcome"] for one in later] == ["passed"] * 3
    assert results["tests"]["limit"] + results["gpt-350m"]["limit"] < 6.5


def test_the_shares_fit_for_any_number_of_gpus(machine: Machine) -> None:
    """With nothing that hangs, no check's limit is below what it was given on one GPU, or three quarters of it on several."""
    sys.path.insert(0, str(ROOT / "tests/gpu/checks"))
    import run

    checks = run.checks(machine.bundle, machine.folder)
    assert sum(check.share for check in checks if check.gpus < 2) <= 540
    assert sum(check.share for check in checks) * 0.75 <= 540


def runs(process: str) -> bool:
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_check_and_leaves_the_report(machine: Machine, number: int, code: int) -> None:
    machine.gpus(1)
    machine.programs(bench=f"sleep 60 & echo $! >{machine.folder}/new; mv {machine.folder}/new {machine.folder}/pid; wait")
    process = machine.start("--only", "tests", "gpt-350m", "engine-time")
    try:
        end = time.monotonic() + 30
        while not (machine.folder / "pid").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        printed, complaint = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, complaint) == (code, f"run: stopped by {signal.Signals(number).name}\n"), printed
    assert [one["outcome"] for one in machine.results().values()] == ["passed"]
    while runs((machine.folder / "pid").read_text().strip()):
        assert time.monotonic() < end, "the check's processes are killed, too"
        time.sleep(0.01)
    assert not list(machine.folder.glob("penstock-gpu-*"))


@pytest.mark.parametrize("words", [("--only", "nosuch"), ("--only",), *(("--minutes", text) for text in ("0", "-1", "nan", "inf"))])
def test_wrong_arguments_are_refused(machine: Machine, words: tuple[str, ...]) -> None:
    code, complaint = machine.told(*words)
    assert code == 2 and not machine.report.exists()
    assert words[-1] in complaint
    if words[-1] == "nosuch":
        assert "gpt-350m" in complaint


def test_a_bundle_that_is_not_whole_is_told(machine: Machine) -> None:
    def refused(why: str) -> None:
        code, complaint = machine.told("--only", "gpu")
        assert code == 1 and complaint.startswith("run: ") and why in complaint and complaint.count("\n") == 1, complaint

    programs = (machine.bundle / "programs.tar.xz").read_bytes()
    (machine.bundle / "programs.tar.xz").write_bytes(programs[: len(programs) // 2])
    refused(f"{machine.bundle} can't be unpacked: ")
    (machine.bundle / "programs.tar.xz").write_bytes(programs)
    (machine.bundle / "bundle.json").unlink()
    refused("bundle.json")
    machine.report.rmdir()
    machine.report.touch()
    refused(str(machine.report))


def test_packages_of_another_python_are_told(machine: Machine) -> None:
    (machine.bundle / "bundle.json").write_text('{"python": "3.99"}')
    code, results = machine.run("daemon")
    assert code == 1 and "are for Python 3.99, and this is" in results["daemon"]["why"]

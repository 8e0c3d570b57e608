"""The shell blocks of the page about several hosts: run on this one, with ports of their own and stand-ins for Slurm."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import PENSTOCK, PENSTOCKD, ROOT
from daemon_process import free_ports
from test_blocks import only_block

PAGE = "docs/several_hosts.md"
# Ends what a block has left behind, in the order that the page gives; each must end well.
END = """
for process in $(jobs -p); do
  kill -TERM "$process"
  wait "$process"
done
"""


class Shell:
    """Runs blocks with the programs of this build, in a folder of their own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        for name, program in (("penstockd", PENSTOCKD), ("penstock", PENSTOCK)):
            (programs / name).symlink_to(os.path.abspath(program))
        api, *self.ports = free_ports(3)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PENSTOCK_SERVER": f"127.0.0.1:{api}",
            "PENSTOCK_LISTEN": f"127.0.0.1:{api}",
            "PENSTOCK_METRICS_LISTEN": "off",
            "PENSTOCK_ADMIN_LISTEN": "off",
            "PENSTOCK_DRAIN_ANNOUNCE": "0s",
        }
        self.programs = programs

    def program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def here(self, block: str) -> str:
        leader, metrics = self.ports
        return re.sub(r"\b8475\b", str(leader), block).replace(":8483", f":{metrics}").replace("/srv/", f"{self.folder}/")

    def run(self, script: str) -> str:
        """What it has written. Everything that it started is gone afterwards."""
        log = self.folder / "output"
        with open(log, "wb") as file:  # no pipe: what the script leaves behind would keep it open
            process = subprocess.Popen(["bash", "-euc", script], cwd=self.folder, env=self.environment, start_new_session=True,
                                       stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)  # fmt: skip
        try:
            process.wait(180)
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], stderr=subprocess.DEVNULL)
        output = log.read_text(errors="replace")
        assert process.returncode == 0, output
        return output


@pytest.fixture
def shell(tmp_path: pathlib.Path) -> Shell:
    return Shell(tmp_path)


def stages(output: str) -> list[str]:
    """The device of each stage, as `penstock pipeline get` shows them."""
    return re.findall(r"^ +\d+  ((?:\d+\/)?cpu:\d+) ", output, re.M)


def test_two_ranks_by_hand(shell: Shell) -> None:
    output = shell.run(shell.here(only_block(PAGE, "penstockd --rank 0 --world-size 2")) + END)
    assert "readiness: serving" in output
    assert set(stages(output)) == {"cpu:0", "1/cpu:0"}
    assert "lending devices" in output and output.count('stopped exit="0"') == 2


def test_the_variables_of_torchrun(shell: Shell) -> None:
    block = shell.here(only_block(PAGE, "export WORLD_SIZE=2"))
    output = shell.run(block + "penstock pipeline create over --model mlp --loss mean_squared_error --stages 2\n" + END)
    assert set(stages(output)) == {"cpu:0", "1/cpu:0"}


def test_two_hosts_with_certificates(shell: Shell) -> None:
    """The ranks in two processes of this host; the name of the leader is this host's."""
    lines = shell.here(only_block(PAGE, "DEV_CERTS_SERVER=")).splitlines()
    leader, other = [line.partition("#")[0].strip() for line in lines if line.startswith("penstockd ")]
    first = "\n".join(line for line in lines if not line.startswith("penstockd "))
    shutil.copytree(ROOT / "deploy", shell.folder / "deploy", ignore=shutil.ignore_patterns("certs*"))
    shell.environment |= {"PENSTOCK_TLS_CA": "certs/ca.crt", "PENSTOCK_TLS_CERT": "certs/admin.crt", "PENSTOCK_TLS_KEY": "certs/admin.key"}
    script = f"""
{first}
{leader.replace("penstock-0:", "localhost:")} --device cpu:0 &
{other.replace("penstock-0:", "localhost:")} --device cpu:0 &
penstock health --wait 60
penstock pipeline create over --model mlp --loss mean_squared_error --stages 2
"""
    shell.environment["PENSTOCK_SERVER"] = shell.environment["PENSTOCK_SERVER"].replace("127.0.0.1", "localhost")
    assert set(stages(shell.run(script + END))) == {"cpu:0", "1/cpu:0"}


SRUN = """#!/bin/bash
# Starts the command once per task, as Slurm does; two tasks on this host.
for ((task = 0; task < 2; ++task)); do
  SLURM_PROCID=$task SLURM_NTASKS=2 "$@" --device "cpu:0=$task" &
done
wait
"""


def test_the_job_of_slurm(shell: Shell) -> None:
    job = only_block(PAGE, "#!/bin/bash")
    assert 1 <= len(job.splitlines()) <= 10
    shell.program("srun", SRUN)
    shell.program("scontrol", '#!/bin/bash\n[[ "$*" == "show hostnames node[1-2]" ]] && printf "127.0.0.1\\n127.0.0.2\\n"\n')
    shell.environment["SLURM_JOB_NODELIST"] = "node[1-2]"
    shutil.copy(ROOT / "LICENSE", shell.folder)
    job = shell.here(job).replace("--model gpt", "--model gpt --option blocks=2 --option width=32 --option heads=2")
    output = shell.run(job.replace("--steps 1000", "--steps 2"))
    assert set(stages(output)) == {"cpu:0", "1/cpu:0"}
    assert "trained pipelines/gpt to step 2" in output
    assert (shell.folder / "penstock").is_dir(), "state is rank 0's"

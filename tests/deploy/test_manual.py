"""The manual pages and the completion that the packages have: all of what the programs say of themselves, as a reader sees it."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from conftest import PENSTOCK, ROOT

MANUAL = ROOT / "deploy" / "package" / "manual.py"


def made(build: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-B", MANUAL, "--build", build, "--out", out]
    subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, check=True)
    return out / "share"


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return made(pathlib.Path(os.environ["PENSTOCK_BUILD"]), tmp_path_factory.mktemp("manual"))


def shown(page: pathlib.Path) -> str:
    """What a reader sees, in one line; there is nothing that the reader's program complains of."""
    if shutil.which("man"):
        command = ["man", "--warnings", "--no-hyphenation", "--no-justification", "--encoding=UTF-8", "--local-file", str(page)]
    elif shutil.which("mandoc"):
        command = ["mandoc", "-T", "utf8", "-W", "warning,stop", str(page)]
    else:
        pytest.skip("neither man nor mandoc is here")
    environment = {"PATH": os.environ["PATH"], "MANWIDTH": "1000", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return squeezed(re.sub(r".\x08", "", done.stdout))


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_page_of_the_command_line_has_every_command_and_option(share: pathlib.Path) -> None:
    text = shown(share / "man/man1/penstock.1")
    commands = subprocess.run([PENSTOCK, "--dump=commands"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(commands) > 40
    for line in commands:
        words = re.match(r"[a-z -]+?(?= *(?:$|\[|[A-Z]|-))", line)
        assert words
        usage = f"penstock {words[0]} [OPTIONS]"
        assert usage in text, line
        # Up to the next command's.
        own = text.partition(usage)[2].partition("[OPTIONS]")[0]
        for option in re.findall(r"--[a-z-]+", line):
            assert option in own, (line, option)


def test_the_page_of_the_daemon_has_every_flag_and_its_meaning(share: pathlib.Path, flags: dict[str, dict[str, Any]]) -> None:
    text = shown(share / "man/man8/penstockd.8")
    for name, flag in flags.items():
        assert re.search(rf" --{name} ([A-Z]+ )?{re.escape(squeezed(flag['help']))}", text), name


def test_no_text_is_taken_for_a_request(tmp_path: pathlib.Path) -> None:
    """Of programs whose help has what roff takes for its own."""
    told = """Examples:
  .so this 'line' is \\fBnot roff's

'Tis about ~/x and a^b.
Usage: program [OPTIONS]

Options:
  -h,--help                   Print `this`
  --dots TEXT                 ...of \\n
  --a-name-that-leaves-no-room-for-more TEXT
                              .on the next line
"""
    for name in ("client/cli/penstock", "server/penstockd"):
        program = tmp_path / "build" / name
        program.parent.mkdir(parents=True)
        (program.parent / "help").write_text(told)
        program.write_text('#!/bin/sh\n[ "$1" = version ] && echo 1.2.3 || cat "$(dirname "$0")/help"\n')
        program.chmod(0o755)
    share = made(tmp_path / "build", tmp_path)
    text = shown(share / "man/man1/penstock.1")
    assert "'Tis about ~/x and a^b. " in text and " .so this 'line' is \\fBnot roff's " in text, text
    assert "--help Print `this` --dots TEXT ...of \\n --a-name-that-leaves-no-room-for-more TEXT .on the next line" in text, (
        text
    )
    assert "Penstock 1.2.3" in text and "2023-11-14" in text, text


def test_bash_completes_by_the_file_of_the_packages(share: pathlib.Path) -> None:
    file = share / "bash-completion/completions/penstock"
    subprocess.run(["bash", "-n", file], check=True)
    script = 'source "$0"; COMP_WORDS=(penstock pipe); COMP_CWORD=1; _penstock; echo "${COMPREPLY[@]}"; complete -p penstock'
    told = subprocess.run(["bash", "-c", script, file], capture_output=True, text=True, check=True)
    assert (told.stdout, told.stderr) == ("pipeline\ncomplete -o default -F _penstock penstock\n", "")

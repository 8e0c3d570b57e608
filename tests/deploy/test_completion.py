"""Completion, loaded by the real shells and asked as they ask it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import penstock
import pytest
from conftest import PENSTOCK
from daemon_process import Daemon
from small_models import create_mlp

# What stands on the line before the cursor, and what is offered: words that must be among it, or exactly these.
CASES: list[tuple[tuple[str, ...], set[str], bool]] = [
    (("",), {"status", "top", "bench", "doctor", "pipeline"}, False),
    (("check",), {"checkpoint"}, True),
    (("checkpoint", ""), {"save", "restore", "publish", "list", "copy", "export", "delete"}, True),
    (("--server", "pipeline", "checkpoint", "s"), {"save"}, True),  # a value is no command
    (("pipeline", "create", "x", "--checkpoint", "al"), {"always"}, True),
    (("status", "-o", "js"), {"json", "jsonl"}, True),
    (("pipeline", "create", "x", "--micro"), {"--micro-batches"}, True),
]


def ask_bash(words: tuple[str, ...]) -> set[str]:
    script = (
        'source <("$0" completion bash); COMP_WORDS=("${@}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _penstock; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return told(["bash", "-c", script, PENSTOCK, "penstock", *words])


def ask_zsh(words: tuple[str, ...]) -> set[str]:
    """By zsh's own bashcompinit: what it hands to the completion system is filtered by the last word, as that does, and printed."""
    script = (
        "autoload -Uz compinit && compinit -u -D; compadd() { shift ${@[(i)-]}; print -l -- ${(M)@:#$PREFIX*} }; "
        'source <("$0" completion zsh); words=("$@"); CURRENT=$#words; PREFIX="$words[-1]"; '
        "_bash_complete -o default -F _penstock"
    )
    return {word for word in told(["zsh", "-f", "-c", script, PENSTOCK, "penstock", *words]) if word}


def ask_fish(words: tuple[str, ...]) -> set[str]:
    quoted = " ".join(["penstock", *words[:-1], words[-1]])
    script = f'"{PENSTOCK}" completion fish | source; complete --do-complete "{quoted}"'
    return {line.split("\t")[0] for line in told(["fish", "--no-config", "-c", script], lines=True) if line}


def told(command: list[str], lines: bool = False) -> set[str]:
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here: deploy/setup.sh --tests installs it")
    folder = pathlib.Path(PENSTOCK).parent  # a shell completes what it can find
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert not done.stderr, done.stderr
    return set(done.stdout.splitlines() if lines else done.stdout.split())


ASK = {"bash": ask_bash, "zsh": ask_zsh, "fish": ask_fish}


@pytest.mark.parametrize("shell", ASK)
def test_it_completes(shell: str) -> None:
    for words, offered, exactly in CASES:
        found = ASK[shell](words)
        assert found == offered if exactly else offered <= found, (words, found)


def test_a_file_of_zsh_completes_from_the_first_key_on(tmp_path: pathlib.Path) -> None:
    """The script as _penstock in a folder of $fpath, which zsh loads when it is asked."""
    script = subprocess.run([PENSTOCK, "completion", "zsh"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "_penstock").write_text(script)
    ask = (
        'fpath=("$0" $fpath); autoload -Uz compinit && compinit -u -D; '
        "compadd() { shift ${@[(i)-]}; print -l -- ${(M)@:#$PREFIX*} }; words=(penstock pipe); CURRENT=2; PREFIX=pipe; "
        "repeat 2; do ${(z)_comps[penstock]}; print .; done"
    )
    if not shutil.which("zsh"):
        pytest.skip("no zsh here: deploy/setup.sh --tests installs it")
    asked = subprocess.run(["zsh", "-f", "-c", ask, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert asked.stdout.split() == ["pipeline", ".", "pipeline", "."], asked


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with two pipelines, one of which has a checkpoint."""
    one = Daemon(tmp_path_factory.mktemp("daemon"), "--drain-announce=0s")
    one.start()
    try:
        with penstock.Client(one.address) as client:
            create_mlp(client, "first").save_checkpoint("kept")
            create_mlp(client, "second")
        yield one
        one.stop()
    finally:
        one.kill()


@pytest.mark.parametrize("shell", ASK)
def test_it_completes_the_names_that_the_daemon_has(shell: str, daemon: Daemon) -> None:
    for words, offered in (
        (("train", ""), {"first", "second"}),
        (("pipeline", "get", "s"), {"second"}),
        (("checkpoint", "restore", "f"), {"first"}),
        (("checkpoint", "restore", "first", ""), {"kept"}),
        (("checkpoint", "publish", "first", ""), {"kept"}),
        (("checkpoint", "restore", "first", "--force", "k"), {"kept"}),
    ):
        assert ASK[shell](("--server", daemon.address, *words)) == offered, words


def test_names_of_files_are_the_shells_own() -> None:
    assert ask_bash(("train", "x", "--text", "")) == set()


@pytest.mark.parametrize("shell", ASK)
def test_a_broken_script_is_noticed(shell: str) -> None:
    """A script that completes nothing fails the cases above."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here: deploy/setup.sh --tests installs it")
    script = subprocess.run([PENSTOCK, "completion", shell], capture_output=True, text=True, check=True).stdout
    checker = {"bash": ["bash", "-n"], "zsh": ["zsh", "-fn"], "fish": ["fish", "--no-config", "-n"]}[shell]
    assert subprocess.run(checker, input=script, capture_output=True, text=True).returncode == 0
    broken = subprocess.run(checker, input=script + "\nif (((", capture_output=True, text=True)
    assert broken.returncode != 0

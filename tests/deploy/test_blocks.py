"""Every code block of the pages is run by a test, or blocks.txt says why none runs it; the blocks that no other test runs."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Iterator

import penstock
import pytest
from conftest import PENSTOCK, PENSTOCKD, ROOT
from daemon_process import Daemon

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "client/python/README.md"]
PAGES += [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"]


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


def only_block(page: str, start: str) -> str:
    (block,) = (text for _, text in blocks(page) if text.startswith(start))
    return block


def test_each_block_has_its_row_and_each_row_its_test() -> None:
    rows = []
    for line in (pathlib.Path(__file__).parent / "blocks.txt").read_text().splitlines():
        if not line.startswith("#"):
            page, language, start, held = (part.strip() for part in line.split("|", 3))
            rows.append((page, language, start))
            way, _, what = held.partition(": ")
            assert way in ("run", "-") and what, line
            if way == "run":
                file, _, test = what.partition("::")
                assert f"def {test}" in (ROOT / "tests" / file).read_text(), line
    found = [(str(page.relative_to(ROOT)), *block) for page in PAGES for block in blocks(str(page))]
    assert found
    for page, language, text in found:
        fits = [row for row in rows if row[:2] == (page, language) and text.lstrip().startswith(row[2])]
        assert fits, f"{page}: no row of blocks.txt for the {language or 'plain'} block that starts with {text[:40]!r}"
    for row in rows:
        assert any(row[:2] == (page, language) and text.lstrip().startswith(row[2]) for page, language, text in found), f"{row}: no block"


def test_the_picture_of_the_readme_is_what_the_command_draws() -> None:
    command, picture = only_block("README.md", "penstock schedule show").split("\n\n", 1)
    drawn = subprocess.run([PENSTOCK, *shlex.split(command)[1:]], capture_output=True, text=True, check=True).stdout
    assert drawn == picture


def test_the_lists_of_the_planning_page_can_be_run(tmp_path: pathlib.Path) -> None:
    lists = tmp_path / "lists"
    lists.write_text("".join(line.split("  ")[0] + "\n" for line in only_block("docs/planning.md", "0F0,0F1").splitlines()))
    subprocess.run([PENSTOCK, "schedule", "verify", str(lists)], check=True)


@pytest.mark.parametrize("page", ["docs/fine_tune_a_model.md", "docs/models.md", "docs/traces.md"])
def test_the_daemons_of_the_pages_would_start(page: str, tmp_path: pathlib.Path) -> None:
    lines = [line for _, text in blocks(page) for line in text.splitlines() if line.startswith("penstockd ")]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        words = [re.sub(r"/(srv|var/log/penstock)\b", str(tmp_path), word) for word in words]
        (tmp_path / "models").mkdir(exist_ok=True)
        command = [PENSTOCKD, "--check-config", f"--state-dir={tmp_path}", *words]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    one = Daemon(tmp_path, "--drain-announce=0s")
    one.start()
    try:
        yield one
        one.stop()
    finally:
        one.kill()


def test_the_pages_are_asked_as_the_documents_say(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    with penstock.Client(daemon.address) as client:
        client.create_pipeline("gpt", model="mlp", stages=2, micro_batches=2, schedule="1f1b", checkpoint="never", chunks=1)
    asked = 0
    for page in ("docs/observability.md", "docs/traces.md", "docs/runbook.md"):
        text = (ROOT / page).read_text()
        for line in [*re.findall(r"^curl .*", text, re.M), *re.findall(r"`(curl [^`]*)`", text)]:
            words = shlex.split(line.replace("127.0.0.1:8474", daemon.admin_address), comments=True)
            subprocess.run([*words, "--fail", "--silent", "--show-error"], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
            asked += 1
    assert asked > 3


def test_the_clients_of_the_traces_page_send_what_they_are_given(daemon: Daemon) -> None:
    """Both lines, at this daemon: an id of its own in each call."""
    program = only_block("docs/traces.md", "penstock.Client").replace("penstock.Client(", "made(")
    current = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-01"
    asked = []

    def current_traceparent() -> str:
        asked.append(current)
        return current

    with contextlib.ExitStack() as clients:

        def made(traceparent: object) -> None:
            client = clients.enter_context(penstock.Client(daemon.address, traceparent=traceparent))  # type: ignore[arg-type]
            client.server_info()

        exec(program, {"made": made, "current_traceparent": current_traceparent})
    assert asked == [current]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_quick_start_trains(ranks: int, tmp_path: pathlib.Path) -> None:
    """With the build that there is: five steps of its hundreds."""
    build = pathlib.Path(os.environ["PENSTOCK_BUILD"]).resolve()
    if build != ROOT / "build/release":
        pytest.skip("the quick start builds the preset release")
    report = tmp_path / "report.json"
    command = [str(ROOT / "deploy/quickstart.sh"), "--steps", "5", "--json", str(report)]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    # What the model writes may be no text.
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bubble" in done.stderr and "stopped cleanly" in done.stdout  # the report takes the place of the table
    measured = json.loads(report.read_text())
    assert measured["steps"] == 5
    devices = [lane["device"] for lane in measured["lanes"]]
    assert devices == (["cpu:0", "cpu:1"] if ranks == 1 else ["cpu:0", "1/cpu:0"])
    own = re.findall(r"^forward +(\d+\.\d\d)  lane 1 1/cpu:0$", done.stdout, re.M)
    assert [float(seconds) > 0 for seconds in own] == [True] * (ranks - 1)


def test_the_quick_start_refuses_other_numbers_of_ranks() -> None:
    for number in ("0", "3", "two", ""):
        done = subprocess.run([str(ROOT / "deploy/quickstart.sh"), "--ranks", number], capture_output=True, text=True)
        assert done.returncode == 2 and "--ranks must be 1 or 2" in done.stderr

"""The pages of docs/reference are what programs, protos and sources say; a reason that the page lacks is found."""

from __future__ import annotations

import pathlib
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "deploy/site"))
import reference  # noqa: E402


@pytest.mark.parametrize("name", reference.MAKERS)
def test_a_page_is_what_it_is_made_from(name: str) -> None:
    assert (ROOT / f"docs/reference/{name}.md").read_text() == reference.MAKERS[name]()


def test_a_flag_a_reason_and_a_message_are_there() -> None:
    pages = {path.stem: path.read_text() for path in pathlib.Path(ROOT / "docs/reference").glob("*.md")}
    assert "| `--memory-limit` | bytes | `0` |" in pages["flags"]
    assert "| `STEP_ROLLED_BACK` | `ABORTED` |" in pages["errors"]
    assert "## penstock pipeline create\n" in pages["commands"]
    assert "### LaneStatistics\n" in pages["grpc"] and "| `TrainStep` |" in pages["grpc"]
    assert "| `penstock_stage_time_seconds_total` | counter |" in pages["metrics"]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('Error(absl::StatusCode::kAborted, "NEW_REASON", "x")', "NEW_REASON: deploy/site/errors.txt lacks it"),
        ('Refused("ANOTHER_REASON")', "ANOTHER_REASON: deploy/site/errors.txt lacks it"),
    ],
)
def test_a_new_reason_is_missed(monkeypatch: pytest.MonkeyPatch, source: str, complaint: str) -> None:
    sources = reference.source_text()
    monkeypatch.setattr(reference, "source_text", lambda: sources + source)
    with pytest.raises(ValueError, match=complaint):
        reference.errors()


def test_a_reason_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = reference.source_text().replace('"GRAPH_STALE"', '""')
    monkeypatch.setattr(reference, "source_text", lambda: sources)
    with pytest.raises(ValueError, match="GRAPH_STALE: deploy/site/errors.txt has it"):
        reference.errors()

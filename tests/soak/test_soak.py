"""Half a minute, or an hour, of two hundred clients is flat, and what is lost on purpose is seen."""

from __future__ import annotations

import os
import pathlib

import pytest
from samples import MIB, Sample, judge, slope
from soak import prefix_of, run

MINUTES = float(os.environ.get("PENSTOCK_SOAK_MINUTES", "0.5"))
LONG = MINUTES >= 10
CLIENTS = 200
LOSING_MINUTES = 0.5
LEAKS = [("memory", "resident"), ("descriptors", "descriptors"), ("threads", "threads")]
LIBRARY = os.environ.get("PENSTOCK_LEAK_LIBRARY", "")


def line(**changes: float) -> list[Sample]:
    """A minute of samples, a second apart; `changes` are growths per second."""
    still = {
        "resident": 300.0 * MIB,
        "descriptors": 100,
        "threads": 50,
        "ledger": 100.0 * MIB,
        "process": 150.0 * MIB,
        "allocator": 50.0 * MIB,
    }
    return [
        Sample(seconds=second, **{name: value + changes.get(name, 0) * second for name, value in still.items()})
        for second in range(61)
    ]


def test_what_does_not_grow_is_flat() -> None:
    assert judge(line()).complaints() == []
    assert slope([(0, 1), (1, 1), (2, 100), (3, 1)]) == 0, "one sample alone does not bend it"


@pytest.mark.parametrize(
    ("name", "rate"), [("resident", 1.0 * MIB), ("descriptors", 1), ("threads", 0.5), ("ledger", 1.0 * MIB)]
)
def test_what_grows_is_named(name: str, rate: float) -> None:
    assert any(complaint.startswith(name) for complaint in judge(line(**{name: rate})).complaints())


def test_a_ledger_that_is_far_off_is_named() -> None:
    off = [Sample(**{**vars(sample), "ledger": 20.0 * MIB}) for sample in line()]
    assert judge(off).complaints() == ["ledger and resident memory differ by 27%, allowed are 15%"]


def test_two_hundred_clients(tmp_path: pathlib.Path) -> None:
    verdict, counts, samples = run(tmp_path, MINUTES, CLIENTS)
    print(dict(counts.done), dict(counts.refused), verdict, samples[-1])
    assert counts.failures == []
    assert verdict.complaints() == []
    acts = {"infer", "train", "upload", "fetch_later", "cancel", "bad_input", "read", "look", "checkpoint"}
    assert acts <= counts.done.keys()


@pytest.mark.skipif(not LIBRARY, reason="the library that leaks is not built")
@pytest.mark.parametrize(("leak", "series"), LEAKS if LONG else LEAKS[:1])
def test_what_is_lost_on_purpose_is_seen(tmp_path: pathlib.Path, leak: str, series: str) -> None:
    verdict, counts, _ = run(tmp_path, LOSING_MINUTES, 10, prefix_of(leak, LIBRARY))
    assert counts.failures == []
    assert any(complaint.startswith(series) for complaint in verdict.complaints()), verdict
    if leak == "memory":
        assert any(complaint.startswith("ledger and resident memory differ") for complaint in verdict.complaints()), verdict

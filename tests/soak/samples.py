"""What a daemon takes over time, and whether that is flat: samples of it, and how they are judged.

The first third of a run is warm-up: caches, pools, tombstones and answers to retries fill. Over the rest, each series has a
robust slope (Theil and Sen: the median of the slopes of all pairs), and the growth is that slope over the time of the
rest. A series is flat if its growth is at most a part of its median and an absolute allowance (``ALLOWED``). The ledger
matches if the median of |ledger + process + allocator - resident| / resident is at most ``MATCH``. Each of the four is read
by itself: the ledger counts what it reserves, the kernel tells what is resident, the allocator what it keeps.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
from collections.abc import Sequence

from daemon_process import Daemon

WARM_UP = 1 / 3
MATCH = 0.15


@dataclasses.dataclass(frozen=True)
class Allowance:
    part: float  # of the median
    absolute: float


MIB = 1 << 20
ALLOWED = {
    # Answers to retries go on filling: the log of a pipeline keeps a hundred thousand, some 70 MiB.
    "resident": Allowance(0.05, 16 * MIB),
    # Clients come and go, two at a time for each.
    "descriptors": Allowance(0.05, 12),
    "threads": Allowance(0.05, 4),
    "ledger": Allowance(0.05, 24 * MIB),  # which has them, too, and is smaller
}


@dataclasses.dataclass(frozen=True)
class Sample:
    seconds: float
    resident: float  # bytes
    descriptors: float
    threads: float
    ledger: float  # bytes that are reserved
    process: float  # bytes that the process had taken before it served anything
    allocator: float  # bytes that the allocator keeps beside what is allocated


def take_sample(daemon: Daemon, seconds: float) -> Sample:
    folder = pathlib.Path("/proc") / str(daemon.pid)
    metrics = daemon.metrics()
    return Sample(
        seconds=seconds,
        resident=metrics.sum("process_resident_memory_bytes"),
        descriptors=len(os.listdir(folder / "fd")),
        threads=len(os.listdir(folder / "task")),
        ledger=metrics.sum("penstock_memory_reserved_bytes"),
        process=metrics.sum("penstock_memory_process_bytes"),
        allocator=metrics.sum("penstock_memory_allocator_bytes"),
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs; 0 for fewer than two points."""
    slopes = [
        (y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if x2 > x1
    ]
    return statistics.median(slopes) if slopes else 0.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    growth: dict[str, float]  # over the time after warm-up
    allowed: dict[str, float]
    mismatch: float  # of ledger, process and allocator against resident memory

    def complaints(self) -> list[str]:
        """What is wrong."""
        found = [
            f"{name} grew by {self.growth[name]:.0f}, allowed are {self.allowed[name]:.0f}"
            for name in self.growth
            if self.growth[name] > self.allowed[name]
        ]
        if self.mismatch > MATCH:
            found.append(f"ledger and resident memory differ by {self.mismatch:.0%}, allowed are {MATCH:.0%}")
        return found


def judge(samples: Sequence[Sample]) -> Verdict:
    end = samples[-1].seconds
    rest = [sample for sample in samples if sample.seconds >= WARM_UP * end]
    # All pairs of an hour would be millions.
    rest = rest[:: max(1, len(rest) // 300)]
    length = rest[-1].seconds - rest[0].seconds
    growth, allowed = {}, {}
    for name, allowance in ALLOWED.items():
        values = [getattr(sample, name) for sample in rest]
        growth[name] = slope([(sample.seconds, value) for sample, value in zip(rest, values)]) * length
        allowed[name] = allowance.part * statistics.median(values) + allowance.absolute
    mismatch = statistics.median(
        abs(sample.ledger + sample.process + sample.allocator - sample.resident) / sample.resident for sample in rest
    )
    return Verdict(growth, allowed, mismatch)

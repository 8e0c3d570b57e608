"""Plans over real daemons know the links between them."""

from __future__ import annotations

import pathlib

import penstock
import pytest

from rank_group import Group
from small_models import GPT, create_mlp


@pytest.mark.parametrize("transport", ["grpc", "ucx"])
def test_a_plan_shows_the_links_that_it_counts_with(tmp_path: pathlib.Path, transport: str) -> None:
    with Group(tmp_path, 3, transport, "--peer-timeout=60s").running() as group, group.client() as client:
        over = {"model": "gpt", "options": GPT, "loss": "cross_entropy", "schedule": "1f1b", "micro_batches": 2}
        placed = penstock.pipeline_spec(devices=["cpu:0", "1/cpu:0", "2/cpu:0"], stages=3, **over)
        plan = client.plan(placed).plan
        assert [(link.rank, link.other_rank) for link in plan.links] == [(0, 1), (1, 2)], plan
        for link in plan.links:
            assert link.measured, plan.why
            assert link.latency_seconds > 0 and link.bytes_per_second > 0
        assert [(one.from_stage, one.to_stage) for one in plan.transfers] == [(0, 1), (1, 2)]
        for one, link in zip(plan.transfers, plan.links, strict=True):
            assert one.bytes > 0
            assert one.seconds == pytest.approx(link.latency_seconds + one.bytes / link.bytes_per_second)
        assert sum("was measured: " in why for why in plan.why) == 2
        assert any("in the stead of those of ranks 1, 2." in why for why in plan.why)
        # They are those of the group, until it forms again.
        assert client.plan(placed).plan.links == plan.links
        # Over one rank nothing is said of links.
        alone = client.plan(penstock.pipeline_spec(devices=["cpu:0", "cpu:1"], stages=2, **over)).plan
        assert not alone.links and not alone.transfers and not any("link" in why for why in alone.why)
        # A pipeline has them as well, and runs.
        pipeline = create_mlp(client, "apart", devices=["cpu:0", "1/cpu:0"])
        assert len(pipeline.plan.links) == 1 and pipeline.plan.links[0].measured

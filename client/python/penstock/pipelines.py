"""A pipeline, for threads; pairs with :mod:`penstock.aio.pipelines`.

Written by hand: asyncio's has its training loop as a method, where :func:`penstock.train` takes any pipeline.
"""

from __future__ import annotations

from penstock.work import PipelineWork


class Pipeline(PipelineWork):
    """One pipeline of a daemon. Methods may be called from any thread."""

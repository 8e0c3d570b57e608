"""The same client for asyncio: the names and arguments of :mod:`penstock`, with ``await`` before what asks the daemon.

Example::

    async with penstock.aio.Client() as client:
        pipeline = await client.create_pipeline("demo", model="mlp", loss="mean_squared_error")
        outcome = await pipeline.train_step(inputs, target)
        first, second = await asyncio.gather(pipeline.infer(a), pipeline.infer(b))
        async for outcome in pipeline.train(penstock.Batches(inputs, targets, rows=32)):
            print(outcome.step, outcome.loss)

One event loop, the one that made the client. A call that is cancelled ends here; what the daemon has accepted goes on.
"""

from penstock.aio.checkpoints import Checkpoint
from penstock.aio.client import Client
from penstock.aio.evaluation import evaluate
from penstock.aio.handles import EvaluationHandle, GraphHandle, Handle, Outcome, OutcomeHandle, ValueHandle, gather
from penstock.aio.models import Models
from penstock.aio.pipelines import Pipeline
from penstock.aio.work import Forward

__all__ = [
    "Checkpoint",
    "Client",
    "EvaluationHandle",
    "Forward",
    "GraphHandle",
    "Handle",
    "Models",
    "Outcome",
    "OutcomeHandle",
    "Pipeline",
    "ValueHandle",
    "evaluate",
    "gather",
]

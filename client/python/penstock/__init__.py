"""Client of Penstock: train and serve layer-partitioned models that a daemon holds, with numpy arrays.

Example::

    with penstock.Client() as client:
        pipeline = client.create_pipeline("demo", model="mlp", options={"layers": 4, "width": 16},
                                          stages=2, micro_batches=4, loss="mean_squared_error")
        outcome = pipeline.train_step(inputs, target)   # arrays [rows, 16], float32
        print(outcome.step, outcome.loss)

Bring a model of your own with :func:`export`; :mod:`penstock.aio` is the same client for asyncio. Start with
:class:`Client`. The daemon's own messages, which some methods answer, are in :mod:`penstock.v1`.
"""

from penstock import aio
from penstock.checkpoints import Checkpoint
from penstock.client import Client
from penstock.data import Batch, Batches
from penstock.errors import DeadlineError, PenstockError
from penstock.evaluation import evaluate
from penstock.exporting import Exported, ExportError, export
from penstock.handles import EvaluationHandle, GraphHandle, Handle, Outcome, OutcomeHandle, ValueHandle, gather
from penstock.inputs import Plain, Whole
from penstock.insight import Trace
from penstock.parameters import Parameters
from penstock.pipelines import Pipeline
from penstock.results import Evaluation
from penstock.safetensors import read_safetensors, write_safetensors
from penstock.specifications import Isolate, Layer, ParameterGroup, Program, pipeline_spec
from penstock.training import Progress, Save, Training, outcomes, train
from penstock.work import Forward

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Batches",
    "Checkpoint",
    "Client",
    "DeadlineError",
    "Evaluation",
    "EvaluationHandle",
    "ExportError",
    "Exported",
    "Forward",
    "GraphHandle",
    "Handle",
    "Isolate",
    "Layer",
    "Outcome",
    "OutcomeHandle",
    "ParameterGroup",
    "Parameters",
    "PenstockError",
    "Pipeline",
    "Plain",
    "Program",
    "Progress",
    "Save",
    "Trace",
    "Training",
    "ValueHandle",
    "Whole",
    "aio",
    "evaluate",
    "export",
    "gather",
    "outcomes",
    "pipeline_spec",
    "read_safetensors",
    "train",
    "write_safetensors",
]

"""Client of Penstock: train and serve layer-partitioned models that a daemon holds, with numpy arrays.

Bring a model of your own with :func:`export`; :mod:`penstock.aio` is the same client for asyncio. Start with
:class:`Client`. The daemon's own messages, which some methods answer, are in :mod:`penstock.v1`.
"""

from penstock import aio
from penstock.client import Client
from penstock.data import Batch, Batches
from penstock.errors import DeadlineError, PenstockError
from penstock.exporting import Exported, ExportError, export
from penstock.handles import GraphHandle, Handle, Outcome, OutcomeHandle, ValueHandle
from penstock.inputs import Plain, Whole
from penstock.pipelines import Forward, Pipeline
from penstock.resources import Parameters, Trace
from penstock.safetensors import read_safetensors, write_safetensors
from penstock.specifications import Isolate, Layer, Program, pipeline_spec
from penstock.training import Progress, Save, Training, outcomes, train

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Batches",
    "Client",
    "DeadlineError",
    "ExportError",
    "Exported",
    "Forward",
    "GraphHandle",
    "Handle",
    "Isolate",
    "Layer",
    "Outcome",
    "OutcomeHandle",
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
    "export",
    "outcomes",
    "pipeline_spec",
    "read_safetensors",
    "train",
    "write_safetensors",
]

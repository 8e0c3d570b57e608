"""Client of Penstock: train and serve layer-partitioned models that a daemon holds, with numpy arrays.

Start with :class:`Client`. The daemon's own messages, which some methods answer, are in :mod:`penstock.v1`.
"""

from penstock.client import Client
from penstock.errors import PenstockError
from penstock.handles import GraphHandle, Handle, Outcome, OutcomeHandle, ValueHandle
from penstock.inputs import Plain, Whole
from penstock.pipelines import Forward, Pipeline
from penstock.resources import Parameters, Trace
from penstock.specifications import Isolate, Layer, pipeline_spec

__version__ = "0.1.0"

__all__ = [
    "Client",
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
    "Trace",
    "ValueHandle",
    "Whole",
    "pipeline_spec",
]

#!/usr/bin/env python3
"""Writes the .pt2 files of this folder, and beside each what eager PyTorch makes of it. Needs torch 2.11; run by hand."""

import json
import pathlib
import struct
import sys

import small_models
import torch
from torch._export.serde.serialize import serialize
from torch.export import Dim, export, save

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[2] / "client" / "python"))

import penstock  # noqa: E402

TYPES = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


def without_traces(program):
    """Takes out where in which file each operator was called: a machine's paths."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
            node.meta.pop("torch_fn", None)
    return program


def exported(model, training, inputs, shapes):
    model.train(training)
    return without_traces(export(model, inputs, strict=False, dynamic_shapes=shapes))


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def flat(outputs):
    if isinstance(outputs, torch.Tensor):
        return {"output": outputs}
    return {name: value for name, value in outputs.items() if value is not None}


def expected(model, inputs, loss_output):
    """Inputs, outputs in both modes, gradients of the mean square of one output, buffers afterwards."""
    names = [f"input.{i}" for i in range(len(inputs))]
    tensors = dict(zip(names, inputs))
    model.eval()
    with torch.no_grad():
        tensors |= {f"eval.{name}": value for name, value in flat(model(*inputs)).items()}
    model.train()
    outputs = flat(model(*inputs))
    tensors |= {f"train.{name}": value for name, value in outputs.items()}
    outputs[loss_output].square().mean().backward()
    tensors |= {f"gradient.{name}": value.grad for name, value in model.named_parameters()}
    tensors |= {f"buffer.{name}": value for name, value in model.named_buffers()}
    return tensors


def make(name, model, inputs, shapes, kinds, loss_output=None):
    """Kinds: evaluation, training, both. With a loss there is a reference of what eager PyTorch makes of it."""
    torch.manual_seed(1)
    evaluation = exported(model, False, inputs, shapes)
    training = exported(model, True, inputs, shapes)
    if "evaluation" in kinds:
        save(evaluation, FOLDER / f"{name}.pt2")
    if "training" in kinds:
        save(training, FOLDER / f"{name}_training.pt2")
    if "both" in kinds:
        graph = serialize(training).exported_program.decode()
        save(evaluation, FOLDER / f"{name}_both.pt2", extra_files={"penstock_training.json": graph})
    if loss_output:
        write_safetensors(FOLDER / f"{name}.safetensors", expected(model, inputs, loss_output))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, length = Dim("batch", min=1, max=4096), Dim("length", min=1, max=64)
    images = torch.randn(4, 3, 8, 8)
    make("conv_net", small_models.ConvNet(), (images,), ({0: batch},), ("evaluation", "training", "both"), "output")
    ids = torch.randint(0, 11, (3, 6))
    mask = torch.ones(3, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    shapes = ({0: batch, 1: length},) * 2
    make("language", small_models.Language(), (ids, mask), shapes, ("evaluation",), "logits")
    make("language_dropout", small_models.Language(0.2), (ids, mask), shapes, ("both",))
    make("counting", small_models.Counting(), (torch.randn(4, 4),), ({0: batch},), ("training", "both"))
    make("remembering", small_models.Remembering(), (torch.randn(4, 4),), ({0: batch},), ("training",))
    labelled = (torch.randn(4, 4), torch.randint(0, 3, (4,)))
    make("own_loss", small_models.OwnLoss(), labelled, ({0: batch}, {0: batch}), ("evaluation",))
    make("scaled", small_models.Scaled(), (torch.randn(4, 4), torch.tensor(2.0)), ({0: batch}, None), ("evaluation",))
    rows = (torch.randn(2, 1, 64, 8), torch.randn(2, 1, 64, 8), torch.randn(2, 1, 64, 64))
    make("attending", small_models.Attending(), rows, ({0: batch},) * 3, ("both",))
    mixed = (torch.randn(4, 3, 5), torch.rand(4, 1))
    make("mixed", small_models.Mixed(), mixed, ({0: batch},) * 2, ("both",), "values")
    past = Dim("past", min=0, max=64)
    cached = (torch.randn(4, 4), [torch.randn(4, 5, 4) for _ in range(3)], torch.rand(4, 1))
    make("cached", small_models.Cached(), cached, ({0: batch}, [{0: batch, 1: past}] * 3, {0: batch}), ("both",))
    two = (torch.randn(4, 4), torch.randn(4, 4))
    make("two_ways", small_models.TwoWays(), two, ({0: batch},) * 2, ("both",))
    make("towers", small_models.Towers(), two, ({0: batch},) * 2, ("both",))
    penstock.export(
        small_models.Simple(),
        (torch.ones(2, 16, dtype=torch.int32), torch.ones(2, 16, dtype=torch.int32)),
        FOLDER / "simple.pt2",
        input_names=["INPUT0", "INPUT1"],
        output_names=["OUTPUT0", "OUTPUT1"],
    )
    make("mixed_dropout", small_models.Mixed(0.25), mixed, ({0: batch},) * 2, ("both",))


if __name__ == "__main__":
    main()

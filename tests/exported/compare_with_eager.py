#!/usr/bin/env python3
"""Compares exported programs run by Penstock with eager PyTorch, bit for bit: outputs in both modes, gradients, buffers.

Run by hand with torch 2.11:  compare_with_eager.py path/to/run_program
Models are those of tests/golden/exported/small_models.py and, where torchvision and transformers are installed, real ones.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch._export.serde.serialize import serialize
from torch.export import Dim, export, save

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "golden" / "exported"))
import make_programs  # noqa: E402
import small_models  # noqa: E402

DTYPES = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = entry["data_offsets"]
        raw = bytearray(data[8 + length + begin : 8 + length + end])
        flat = torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]) if raw else torch.empty(0)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def tensors_of(outputs):
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if hasattr(outputs, "values"):
        outputs = list(outputs.values())
    found = []
    for value in outputs:
        if value is not None:
            found += tensors_of(value)
    return found


def eager(model, inputs):
    results = {}
    model.eval()
    with torch.no_grad():
        for i, value in enumerate(tensors_of(model(*inputs))):
            results[f"eval.{i}"] = value
    model.train()
    outputs = tensors_of(model(*inputs))
    for i, value in enumerate(outputs):
        results[f"train.{i}"] = value.detach().clone()
    outputs[0].square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            results[f"gradient.{name}"] = parameter.grad.clone()
    for name, buffer in model.named_buffers():
        results[f"buffer.{name}"] = buffer.clone()
    return results


def relative(left, right):
    scale = right.double().abs().max().item()
    return (left.double() - right.double()).abs().max().item() / (scale or 1.0)


def compare(name, model, inputs, shapes, tool, kind):
    with tempfile.TemporaryDirectory() as folder:
        program, given, made = (f"{folder}/{part}" for part in ("model.pt2", "inputs", "results"))
        modes = {}
        for mode in (False, True) if kind == "both" else ((kind == "training"),):
            model.train(mode)
            modes[mode] = export(model, inputs, strict=False, dynamic_shapes=shapes)
        extra = {}
        if kind == "both":
            extra["penstock_training.json"] = serialize(modes[True]).exported_program.decode()
        save(modes[False] if False in modes else modes[True], program, extra_files=extra)
        nodes = [sum(1 for n in p.graph.nodes if n.op == "call_function") for p in modes.values()]
        make_programs.write_safetensors(
            pathlib.Path(given), {f"input.{i}": value for i, value in enumerate(inputs)}
        )
        for cuts in ("modules", "nodes"):
            command = [tool, program, given, made, cuts]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{name:24} {kind:10} {cuts:8} FAILED: {done.stderr.strip()[-600:]}")
                return False
            penstock = read_safetensors(made)
            model.zero_grad(set_to_none=True)
            start = {key: value.clone() for key, value in model.state_dict().items()}
            reference = eager(model, inputs)
            model.load_state_dict(start)
            worst = {"equal": True, "unequal": 0, "relative": 0.0, "statistics": 0.0}
            for key, value in reference.items():
                if key not in penstock:
                    if key.startswith("buffer."):
                        continue
                    print(f"{name}: lacks {key}")
                    worst["equal"] = False
                    continue
                if torch.equal(penstock[key], value):
                    continue
                if key.startswith("buffer."):  # summed in double precision, and so not bit for bit
                    worst["statistics"] = max(worst["statistics"], relative(penstock[key], value))
                    continue
                worst["equal"] = False
                worst["unequal"] += 1
                worst["relative"] = max(worst["relative"], relative(penstock[key], value))
            verdict = "equal" if worst["equal"] else f"{worst['unequal']} differ by {worst['relative']:.1e}"
            print(
                f"{name:24} {kind:10} {cuts:8} {done.stdout.split()[1]:>4} layers {nodes} nodes: {verdict}; "
                f"statistics {worst['statistics']:.1e}",
                flush=True,
            )
        return worst["equal"]


class Wrapped(nn.Module):
    """A transformers model as a function of tensors only."""

    def __init__(self, model, names, **fixed):
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs)), **self.fixed)[0]


def vision_models(batch):
    import torchvision.models as vision

    images = torch.randn(2, 3, 64, 64)
    rows = ({0: batch},)
    yield "resnet18", vision.resnet18(), (images,), rows
    yield "resnet50", vision.resnet50(), (images,), rows
    yield "vit", vision.VisionTransformer(32, 8, 4, 4, 64, 128, num_classes=10), (torch.randn(2, 3, 32, 32),), rows
    swin = vision.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10, stochastic_depth_prob=0.0)
    yield "swin", swin, (images,), rows
    yield "convnext", vision.convnext_tiny(stochastic_depth_prob=0.0), (images,), rows


def language_models(batch):
    import transformers as t

    ids = torch.randint(0, 90, (2, 12))
    text = ({0: batch},)
    small = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = t.BertForSequenceClassification(t.BertConfig(**small, **still))
    yield "bert", Wrapped(bert, ["input_ids", "attention_mask"]), (ids, torch.ones_like(ids)), (text * 2,)
    gpt2 = t.GPT2Config(vocab_size=99, n_embd=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=1, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    yield "gpt2", Wrapped(t.GPT2LMHeadModel(gpt2), ["input_ids"], use_cache=False), (ids,), (text,)
    llama = t.LlamaForCausalLM(t.LlamaConfig(**small, num_key_value_heads=2))
    yield "llama", Wrapped(llama, ["input_ids"], use_cache=False), (ids,), (text,)
    t5 = t.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0)
    model = Wrapped(t.T5ForConditionalGeneration(t5), ["input_ids", "decoder_input_ids"], use_cache=False)
    yield "t5", model, (ids, ids), (text * 2,)


def real_models(batch):
    for models, package in ((lambda: vision_models(batch), "torchvision"), (lambda: language_models(batch), "transformers")):
        try:
            __import__(package)
        except ImportError as missing:
            print(f"{package} is not there: {missing}")
            continue
        yield from models()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # other operators than those that are exported
    torch.manual_seed(0)
    batch, length = Dim("batch", min=1, max=4096), Dim("length", min=1, max=64)
    ids = torch.randint(0, 11, (3, 6))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 3)
    sequence = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.LayerNorm(16), nn.Linear(16, 4))
    cases = [
        ("conv_net", small_models.ConvNet(), (torch.randn(4, 3, 8, 8),), ({0: batch},)),
        ("language", small_models.Language(), (ids, torch.ones(3, 6)), ({0: batch, 1: length},) * 2),
        ("encoder", encoder, (torch.randn(2, 5, 32),), ({0: batch},)),
        ("sequence", sequence, (torch.randn(5, 8),), ({0: batch},)),
    ]
    equal = True
    for case in cases + list(real_models(batch)):
        if arguments.only not in case[0]:
            continue
        for kind in ("evaluation", "training", "both"):
            if arguments.kind in kind:
                equal = compare(*case, arguments.tool, kind) and equal
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()

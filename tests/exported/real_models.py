"""The real models that Penstock is tried on: built at random from torchvision and transformers, in two sizes.

`small` trains a step in a fraction of a second on one core; `real` is the size that people use, on small images and
short texts.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class RealModel:
    """How to make a model, what goes in, and what a training step compares.

    Attributes:
        build: of a dropout probability; stochastic depth counts as dropout.
        inputs: of a number of rows.
        targets: of a number of rows; what the loss compares the first output with.
        outputs, fixed: arguments of penstock.export.
        loss, loss_options: of the pipeline.
    """

    name: str
    build: Callable[[float], nn.Module]
    inputs: Callable[[int], Tensors]
    targets: Callable[[int], torch.Tensor]
    outputs: Sequence[str | int] | None = None
    fixed: Mapping[str, Any] | None = None
    loss: str = "cross_entropy"

    def forward(self, model: nn.Module, inputs: Tensors) -> torch.Tensor:
        """The first of the chosen outputs."""
        made = model(**inputs, **(self.fixed or {}))
        return made if self.outputs is None else made[self.outputs[0]]


def mean_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The daemon's cross-entropy: classes stand last, every label counts."""
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def _images(side: int) -> Callable[[int], Tensors]:
    # torchvision calls its argument x, and Swin's is a Sequential's input.
    return lambda rows: {"x": torch.randn(rows, 3, side, side)}


def _labels(classes: int, *shape: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randint(0, classes, (rows, *shape))


def _vision(small: bool) -> list[RealModel]:
    import torchvision.models as vision
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    classes = 10 if small else 1000

    def resnet(dropout: float) -> nn.Module:
        return vision.resnet50(num_classes=classes)  # its width is fixed, and it has no dropout

    def convnext(dropout: float) -> nn.Module:
        if not small:
            return vision.convnext_tiny(stochastic_depth_prob=dropout)
        blocks = [CNBlockConfig(16, 32, 2), CNBlockConfig(32, 64, 2), CNBlockConfig(64, None, 2)]
        return ConvNeXt(blocks, stochastic_depth_prob=dropout, num_classes=classes)

    def vit(dropout: float) -> nn.Module:
        if not small:
            return vision.vit_b_16(image_size=64, dropout=dropout, attention_dropout=dropout)
        return vision.VisionTransformer(32, 8, 4, 4, 64, 128, dropout, dropout, num_classes=classes)

    def swin(dropout: float) -> nn.Module:
        if not small:
            return vision.swin_t(dropout=dropout, stochastic_depth_prob=dropout)
        return vision.SwinTransformer(
            [4, 4],
            24,
            [2, 2, 2],
            [2, 4, 4],
            [4, 4],
            dropout=dropout,
            stochastic_depth_prob=dropout,
            num_classes=classes,
        )

    # Stochastic depth draws per sample; what of a Swin is left of 32x32 images after three stages is 2x2.
    return [
        RealModel("resnet50", resnet, _images(64), _labels(classes)),
        RealModel("convnext_tiny", convnext, _images(32 if small else 64), _labels(classes)),
        RealModel("vit_b_16", vit, _images(32 if small else 64), _labels(classes)),
        RealModel("swin_t", swin, _images(32 if small else 64), _labels(classes)),
    ]


def _language(small: bool) -> list[RealModel]:
    import transformers as t

    length, vocabulary = (12, 99) if small else (64, 1000)
    size: dict[str, Any] = {"vocab_size": vocabulary}
    if small:
        size |= {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}

    def ids(rows: int) -> torch.Tensor:
        return torch.randint(2, vocabulary, (rows, length))

    def masked(rows: int) -> Tensors:
        mask = torch.ones(rows, length, dtype=torch.int64)
        mask[0, length // 2 :] = 0
        return {"input_ids": ids(rows), "attention_mask": mask}

    def bert(dropout: float) -> nn.Module:
        still = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        return t.BertForSequenceClassification(t.BertConfig(**size, **still))

    def gpt2(dropout: float) -> nn.Module:
        shape = {"n_embd": 32, "n_layer": 4, "n_head": 4} if small else {}
        still = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
        tokens = {"bos_token_id": 1, "eos_token_id": 1}
        return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=vocabulary, **shape, **still, **tokens))

    def llama(dropout: float) -> nn.Module:
        shape = size if small else size | {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
        shape = shape if small else shape | {"intermediate_size": 1376}
        grouped = {"num_key_value_heads": 2, "attention_dropout": dropout}
        return t.LlamaForCausalLM(t.LlamaConfig(**shape, **grouped))

    def t5(dropout: float) -> nn.Module:
        shape = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4} if small else {}
        return t.T5ForConditionalGeneration(t.T5Config(vocab_size=vocabulary, dropout_rate=dropout, **shape))

    def text(rows: int) -> Tensors:
        return {"input_ids": ids(rows)}

    def both(rows: int) -> Tensors:
        return {"input_ids": ids(rows), "decoder_input_ids": ids(rows)}

    words = _labels(vocabulary, length)
    uncached = {"use_cache": False}
    return [
        RealModel("bert", bert, masked, _labels(2), ["logits"]),
        RealModel("gpt2", gpt2, text, words, ["logits"], uncached),
        RealModel("llama", llama, text, words, ["logits"], uncached),
        RealModel("t5", t5, both, words, ["logits"], uncached),
    ]


def real_models(size: str = "small") -> list[RealModel]:
    """All eight, in the order of the table in docs/models.md. Sizes: small, real."""
    warnings.filterwarnings("ignore", module="torch|transformers")
    return _vision(size == "small") + _language(size == "small")


NAMES = ("resnet50", "convnext_tiny", "vit_b_16", "swin_t", "bert", "gpt2", "llama", "t5")

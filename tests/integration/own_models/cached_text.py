"""Language models whose cache of keys and values goes in and comes out, and text that they make on a daemon: what the
tests and the benchmark of sequences share. docs/sequences.md has the same in fewer lines."""

from __future__ import annotations

import pathlib
from collections.abc import Generator
from typing import Any

import numpy as np
import penstock
import torch
import transformers
from torch import nn
from torch.export import Dim


class WithCache(nn.Module):
    """Takes tokens and the cache of those before them; gives the next token and the cache of all of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, cache: list[list[torch.Tensor]]) -> dict[str, Any]:
        past = transformers.DynamicCache(config=self.model.config)
        for layer, (layer.keys, layer.values) in zip(past.layers, cache):  # not copied before: its layer alone uses it
            layer.is_initialized = True
        made = self.model(tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
        caches = [[layer.keys, layer.values] for layer in made.past_key_values.layers]
        return {"token": made.logits.argmax(-1), "cache": caches}


class WithoutCache(nn.Module):
    """Takes all tokens and gives the next one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"token": self.model(tokens, use_cache=False, logits_to_keep=1).logits.argmax(-1)}


def llama(width: int = 32, vocabulary: int = 99) -> nn.Module:
    """Of four layers, at random, with weights large enough that it does not repeat itself."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def gpt2() -> nn.Module:
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=4, n_head=4, n_positions=128, initializer_range=0.5, bos_token_id=1,
        eos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def empty_cache(model: Any, rows: int, length: int = 0) -> list[list[torch.Tensor]]:
    """Keys and values of each layer."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    shape = (rows, heads, length, config.hidden_size // config.num_attention_heads)
    return [[torch.zeros(shape), torch.zeros(shape)] for _ in range(config.num_hidden_layers)]


def export_with_cache(model: nn.Module, path: pathlib.Path, longest: int) -> None:
    """`longest`: how many tokens the cache may have before a call."""
    batch, count, past = Dim("batch", min=1, max=64), Dim("count", min=1, max=longest), Dim("past", min=0, max=longest)
    cache = empty_cache(model, 2, 5)
    penstock.export(
        WithCache(model),
        {"tokens": torch.zeros(2, 3, dtype=torch.int64), "cache": cache},
        path,
        dynamic_shapes={"tokens": {0: batch, 1: count}, "cache": [[{0: batch, 2: past}] * 2 for _ in cache]},
        modes=["evaluation"],
    )


def export_without_cache(model: nn.Module, path: pathlib.Path) -> None:
    """For two tokens or more."""
    penstock.export(
        WithoutCache(model),
        {"tokens": torch.zeros(2, 3, dtype=torch.int64)},
        path,
        # PyTorch can't prove that grouped queries take every size up to a largest one.
        dynamic_shapes={"tokens": {0: Dim("batch", min=1, max=64), 1: Dim.DYNAMIC}},
        modes=["evaluation"],
    )


class Text:
    """Calls of one pipeline whose caches stay with the daemon."""

    def __init__(self, model: nn.Module, pipeline: penstock.Pipeline) -> None:
        self._model = model
        self._pipeline = pipeline
        self._caches = [one.name for one in pipeline.signature.inputs if one.name != "tokens"]

    def begin(self, tokens: torch.Tensor) -> penstock.ValueHandle:
        caches = [part for layer in empty_cache(self._model, len(tokens)) for part in layer]
        return self._pipeline.submit_infer({"tokens": tokens, **dict(zip(self._caches, caches))})

    def after(self, call: penstock.ValueHandle, tokens: Any = None) -> penstock.ValueHandle:
        """Goes on from the cache of a call, with the token that it gives or with others."""
        given = {"tokens": (call, "token") if tokens is None else tokens}
        return self._pipeline.submit_infer(given | {name: (call, name) for name in self._caches})

    def generate(self, call: penstock.ValueHandle) -> Generator[np.ndarray, None, None]:
        """The tokens that follow, one for each row, without end. A call is released when the next one has its cache."""
        while True:
            with call:
                following = self.after(call)
                try:
                    yield call.fetch(outputs=["token"])["token"][:, 0]
                except BaseException:
                    following.release()
                    raise
            call = following


def expected(model: Any, tokens: torch.Tensor, count: int) -> np.ndarray:
    """What transformers generates, [count, rows]."""
    mask = torch.ones_like(tokens)
    made = model.generate(tokens, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return made[:, tokens.shape[1] :].T.numpy()

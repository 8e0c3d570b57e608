"""Text, token by token, on two stages: a call takes the caches of keys and values from the call before it, and they never
leave the daemon. The tokens are those of transformers' own greedy search."""

from __future__ import annotations

import itertools
import pathlib
import re
from contextlib import closing

import numpy as np
import penstock
import pytest
import torch
from torch import nn

import cached_text
from cached_text import Text, expected
from counted_way import CountedWay
from daemon_process import Daemon
from own_fixtures import daemon, reference_has_one_thread  # noqa: F401
from small_models import fresh_name

ROOT = pathlib.Path(__file__).resolve().parents[3]
LONGEST = 128


@pytest.fixture(scope="module")
def llama(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, str]:
    """A model, and the id of its program in the daemon."""
    return brought(cached_text.llama(), daemon, tmp_path_factory.mktemp("exported"))


def brought(model: nn.Module, daemon: Daemon, folder: pathlib.Path) -> tuple[nn.Module, str]:
    name = f"{fresh_name('text')}.pt2"
    cached_text.export_with_cache(model, folder / name, LONGEST)
    with penstock.Client(daemon.address) as client:
        client.models.upload(folder / name)
    return model, name


def created(client: penstock.Client, program: str, micro_batches: int = 1) -> penstock.Pipeline:
    return client.create_pipeline(
        fresh_name("text"), model=program, stages=2, cut_cost="size", micro_batches=micro_batches
    )


def prompts(rows: int, count: int = 7) -> torch.Tensor:
    return torch.randint(2, 99, (rows, count), generator=torch.Generator().manual_seed(5))


def first(text: Text, call: penstock.ValueHandle, count: int) -> np.ndarray:
    """The first tokens of a generation, [count, rows]."""
    with closing(text.generate(call)) as tokens:
        return np.stack(list(itertools.islice(tokens, count)))


def test_a_hundred_tokens_and_the_caches_stay_in_the_daemon(
    daemon: Daemon, llama: tuple[nn.Module, str], client: penstock.Client
) -> None:
    model, program = llama
    count, prompt = 100, prompts(1)
    pipeline = created(client, program)
    wanted = expected(model, prompt, count)
    assert len(set(wanted[:, 0].tolist())) > 20, "a model that repeats itself would hide a wrong cache"
    token_bytes = 4 * 2 * 2 * 8 * 4  # keys and values of one token: four layers, two heads of eight floats
    found: list[int] = []
    with CountedWay(daemon.address) as way, penstock.Client(way.address) as distant:
        text = Text(model, distant.pipeline(pipeline.name))
        with closing(text.generate(text.begin(prompt))) as tokens:
            for token in itertools.islice(tokens, count):
                found.append(int(token[0]))
                if len(found) % 20 == 0:
                    metrics = daemon.metrics()
                    longest = prompt.shape[1] + len(found) + 1
                    assert metrics.sum("penstock_handles") == 2, "this call and the next one"
                    assert metrics.sum("penstock_handle_bytes") <= 2 * (longest * token_bytes + 8)
        assert found == wanted[:, 0].tolist()
    assert daemon.metrics().sum("penstock_handles") == 0
    # Of each token there are some messages on the way; the caches, up and down, would be many times that.
    caches = 2 * token_bytes * sum(range(prompt.shape[1], prompt.shape[1] + count))
    assert 0 < way.carried < caches / 4, (way.carried, caches)


def test_gpt2(daemon: Daemon, client: penstock.Client, tmp_path: pathlib.Path) -> None:
    model, program = brought(cached_text.gpt2(), daemon, tmp_path)
    wanted = expected(model, prompts(1), 30)
    assert len(set(wanted[:, 0].tolist())) > 5
    text = Text(model, created(client, program))
    assert np.array_equal(first(text, text.begin(prompts(1)), 30), wanted)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_rows_of_handles_are_split_as_other_rows(
    micro_batches: int, llama: tuple[nn.Module, str], client: penstock.Client
) -> None:
    model, program = llama
    text = Text(model, created(client, program, micro_batches))
    assert np.array_equal(first(text, text.begin(prompts(3)), 20), expected(model, prompts(3), 20))


def test_a_prefix_in_pieces_and_two_texts_that_go_on_from_it(
    daemon: Daemon, llama: tuple[nn.Module, str], client: penstock.Client
) -> None:
    model, program = llama
    text = Text(model, created(client, program))
    prefix = prompts(1, 12)
    with text.begin(prefix[:, :5]) as piece:
        whole = text.after(piece, prefix[:, 5:])
    with whole:
        branches = {word: text.after(whole, torch.tensor([[word]])) for word in (7, 70)}
    for word, call in branches.items():
        wanted = expected(model, torch.cat((prefix, torch.tensor([[word]])), 1), 10)
        assert np.array_equal(first(text, call, 10), wanted)
    assert daemon.metrics().sum("penstock_handles") == 0


def test_a_text_that_grows_too_long_ends_with_a_sentence(
    daemon: Daemon, llama: tuple[nn.Module, str], client: penstock.Client
) -> None:
    model, program = llama
    text = Text(model, created(client, program))
    prompt = prompts(1, LONGEST - 4)
    with pytest.raises(penstock.PenstockError, match=f"must be from 0 to {LONGEST} in what was exported") as raised:
        first(text, text.begin(prompt), 10)
    assert raised.value.reason == "TENSOR_SIGNATURE"
    assert np.array_equal(first(text, text.begin(prompt), 4), expected(model, prompt, 4))
    assert daemon.metrics().sum("penstock_handles") == 0


def test_the_lines_of_the_page_generate(
    daemon: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sequences.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec("".join(blocks).replace("127.0.0.1:8470", daemon.address), {})
    tokens, greedy = capsys.readouterr().out.splitlines()
    assert tokens == greedy and len(set(tokens.split())) > 20
    assert daemon.metrics().sum("penstock_handles") == 0

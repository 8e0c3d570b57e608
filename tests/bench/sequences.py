"""Measures generating text token by token on two stages: with the cache of keys and values in the daemon, with the cache
brought to the client and back, and with the whole prefix sent each time, in turns; beside them transformers itself, in
this process with one thread. Run by hand:

    build/deps/torch-venv/bin/python tests/bench/sequences.py --daemon build/release/server/penstockd

Prints tokens a second, the medians of the rounds, and the least and most. All ways must give the same tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from spreads import spread
from turns import in_turns, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
INTEGRATION = ROOT / "tests" / "integration"
sys.path[:0] = [str(INTEGRATION), str(INTEGRATION / "own_models"), str(ROOT / "client" / "python")]
PREFIXES = (64, 256, 1024)
WIDTH, VOCABULARY = 256, 1000
DEVICES = ("cpu:0", "cpu:1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="of each generation, the first one from the prompt")
    parser.add_argument("--prefixes", type=int, nargs="*", default=PREFIXES)
    parser.add_argument("--json", type=pathlib.Path, help="a file for all figures")
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import numpy as np
    import penstock
    import torch

    import cached_text
    from daemon_process import Daemon

    torch.set_num_threads(1)
    model = cached_text.llama(WIDTH, VOCABULARY)
    count = options.tokens
    longest = max(options.prefixes) + count
    found: dict[int, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = pathlib.Path(name)
        (folder / "models").mkdir()
        cached_text.export_with_cache(model, folder / "models/cached.pt2", longest)
        cached_text.export_without_cache(model, folder / "models/whole.pt2")
        daemon = Daemon(folder, f"--model-root={folder}/models", "--drain-announce=0s", devices=DEVICES)
        running.enter_context(daemon.running())
        client = running.enter_context(penstock.Client(daemon.address))
        cached, whole = (
            client.create_pipeline(one, model=f"{one}.pt2", stages=2, cut_cost="size", micro_batches=1)
            for one in ("cached", "whole")
        )
        text = cached_text.Text(model, cached)

        def in_daemon(prompt: Any) -> list[int]:
            with contextlib.closing(text.generate(text.begin(prompt))) as tokens:
                return [int(token[0]) for token in itertools.islice(tokens, count)]

        def through_client(prompt: Any) -> list[int]:
            caches = [part for layer in cached_text.empty_cache(model, 1) for part in layer]
            names = [one.name for one in cached.signature.inputs if one.name != "tokens"]
            made, given = [], {"tokens": prompt, **dict(zip(names, caches))}
            for _ in range(count):
                results = cached.infer(given)
                made.append(int(results["token"][0, 0]))
                given = {"tokens": results["token"], **{name: results[name] for name in names}}
            return made

        def whole_prefix(prompt: Any) -> list[int]:
            tokens = prompt.numpy()
            for _ in range(count):
                tokens = np.concatenate((tokens, whole.infer({"tokens": tokens})["token"]), 1)
            return tokens[0, prompt.shape[1] :].tolist()

        def in_process(prompt: Any) -> list[int]:
            return cached_text.expected(model, prompt, count)[:, 0].tolist()

        ways = {
            "cache in the daemon": in_daemon,
            "cache through the client": through_client,
            "whole prefix each time": whole_prefix,
            "transformers": in_process,
        }
        print(f"{count} tokens of a Llama of 4 x {WIDTH}, {options.rounds} rounds, in turns; medians (least to most)")
        for length in options.prefixes:
            prompt = torch.randint(2, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))
            wanted = in_process(prompt)

            def measured(
                way: Callable[[Any], list[int]], prompt: Any = prompt, wanted: list[int] = wanted
            ) -> Callable[[], float]:
                def rate() -> float:
                    begun = time.monotonic()
                    tokens = way(prompt)
                    seconds = time.monotonic() - begun
                    if tokens != wanted:
                        raise SystemExit(f"{way.__name__}: other tokens: {tokens}, not {wanted}")
                    return count / seconds

                return rate

            rates = in_turns({title: measured(way) for title, way in ways.items()}, options.rounds)
            found[length] = rates
            for title, values in rates.items():
                print(f"prefix {length:5}  {title:26} {spread(values, 1):>28} tokens a second")
            gain = ratios(rates["cache in the daemon"], rates["whole prefix each time"])
            print(f"{'':14}the cache gives so many times as many: {spread(gain, 2)}", flush=True)
        link = daemon.metrics().sum("penstock_link_bytes_total", pipeline=cached.name.removeprefix("pipelines/"))
        print(f"bytes between the stages of the cached pipeline: {link:.0f}")
    if options.json:
        options.json.write_text(
            json.dumps({"tokens": count, "rounds": options.rounds, "tokens_per_second": found}, indent=1)
        )


if __name__ == "__main__":
    main()

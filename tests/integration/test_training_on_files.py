"""penstock train and penstock evaluate on arrays of files, beside the Python client on the same rows."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
from daemon_process import Daemon
from small_models import WIDTH, create_gpt, create_mlp, differing, gpt_batch, mlp_batch, state_of

SECONDS = 60  # after which a command counts as one that never ends
ROWS = 21  # of the files; 5 are left out of each epoch of mini-batches of 8
BATCH = 8

Arrays = dict[str, np.ndarray[Any, Any]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(daemon: Daemon) -> Run:
    def one(*words: str) -> subprocess.CompletedProcess[str]:
        command = [os.environ["PENSTOCK"], "--server", daemon.address, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)

    return one


def train(run: Run, pipeline: penstock.Pipeline, file: pathlib.Path, steps: int, *more: str) -> Any:
    """Its report."""
    words = ["--data", str(file), "--steps", str(steps), "--batch", str(BATCH), "--json", "-", *more]
    done = run("train", pipeline.name, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(run: Run, pipeline: penstock.Pipeline, file: pathlib.Path, *more: str, batch: int = 4) -> str:
    """What the command says; nothing is trained."""
    done = run("train", pipeline.name, "--data", str(file), "--steps", "1", "--batch", str(batch), *more)
    assert done.returncode == 2, done.stderr
    assert pipeline.refresh().step == 0 and done.stdout == ""
    return done.stderr


@pytest.fixture
def mlp(client: penstock.Client) -> penstock.Pipeline:
    """For files that are refused."""
    return create_mlp(client)


def columns() -> Arrays:
    inputs, target = mlp_batch(3, ROWS)
    return {"input": inputs, "target": target}


def save_tensors(file: pathlib.Path, arrays: Arrays) -> None:
    penstock.write_safetensors(file, arrays)


def save_plain(file: pathlib.Path, arrays: Arrays) -> None:
    np.savez(file, **arrays)


def save_deflated(file: pathlib.Path, arrays: Arrays) -> None:
    np.savez_compressed(file, **arrays)


def save_version_2(file: pathlib.Path, arrays: Arrays) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, version=(2, 0))


def mix(key: int) -> int:
    """Of SplitMix64, as of the order's documentation."""
    rest = (1 << 64) - 1
    key = (key + 0x9E3779B97F4A7C15) & rest
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & rest
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & rest
    return key ^ (key >> 31)


def rows_of(step: int, seed: int = 1) -> list[int]:
    """Those that a step sees: of an epoch's permutation by Fisher and Yates."""
    epoch, batch = divmod(step, ROWS // BATCH)
    order = list(range(ROWS))
    key = mix(mix(seed) ^ epoch)
    for place in range(ROWS - 1, 0, -1):
        other = mix(key ^ place) % (place + 1)
        order[place], order[other] = order[other], order[place]
    return order[batch * BATCH : (batch + 1) * BATCH]


@pytest.mark.parametrize("save", [save_plain, save_deflated, save_version_2, save_tensors])
def test_equals_the_python_client(
    save: Callable[[pathlib.Path, Arrays], None], client: penstock.Client, run: Run, tmp_path: pathlib.Path
) -> None:
    """Losses and weights bit for bit, over two and a half epochs, and in two runs, of which the second goes on."""
    file = tmp_path / "rows.npz"
    arrays = columns()
    save(file, arrays)
    pipeline, reference = create_mlp(client), create_mlp(client)
    steps = [reference.train_step(arrays["input"][rows_of(n)], arrays["target"][rows_of(n)]) for n in range(5)]
    first, second = train(run, pipeline, file, 2), train(run, pipeline, file, 3)
    assert [first["loss_first"], first["loss_last"]] == [steps[0].loss, steps[1].loss]
    assert [second["loss_first"], second["loss_last"]] == [steps[2].loss, steps[4].loss]
    assert pipeline.refresh().step == 5
    assert not differing(state_of(pipeline), state_of(reference))


def test_the_seed_orders_the_rows(client: penstock.Client, run: Run, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.npz"
    arrays = columns()
    save_plain(file, arrays)
    for seed in (1, 2):
        loss = create_mlp(client).train_step(arrays["input"][rows_of(0, seed)], arrays["target"][rows_of(0, seed)]).loss
        assert train(run, create_mlp(client), file, 1, "--seed", str(seed))["loss_first"] == loss
    assert rows_of(0) != rows_of(0, 2) and rows_of(0) != rows_of(2)


def test_names_of_the_target(client: penstock.Client, run: Run, tmp_path: pathlib.Path) -> None:
    """As labels, and by the option, which comes first; of integers."""
    tokens, targets = gpt_batch(1, BATCH)
    losses = {}
    for name, labels in (("labels", targets), ("next", targets[:, ::-1])):
        losses[name] = create_gpt(client).train_step(tokens[rows_in(BATCH)], labels[rows_in(BATCH)]).loss
    file = tmp_path / "rows.npz"
    np.savez(file, tokens=tokens, labels=targets, next=np.ascontiguousarray(targets[:, ::-1]))
    assert train(run, create_gpt(client), file, 1)["loss_first"] == losses["labels"]
    assert train(run, create_gpt(client), file, 1, "--target", "next")["loss_first"] == losses["next"]


def rows_in(count: int) -> list[int]:
    """The first step's, where all rows are one mini-batch."""
    order = list(range(count))
    key = mix(mix(1))
    for place in range(count - 1, 0, -1):
        other = mix(key ^ place) % (place + 1)
        order[place], order[other] = order[other], order[place]
    return order


def test_evaluates_each_row_once(client: penstock.Client, run: Run, tmp_path: pathlib.Path) -> None:
    """In order, the last mini-batch with what is left: as the Python client does."""
    file = tmp_path / "rows.npz"
    arrays = columns()
    save_deflated(file, arrays)
    pipeline = create_mlp(client)
    batches = penstock.Batches(arrays["input"], arrays["target"], rows=BATCH, shuffle=False, drop_last=False)
    wanted = penstock.evaluate(pipeline, batches, metrics=["mean_absolute_error"])
    words = ["evaluate", pipeline.name, "--data", str(file), "--batch", str(BATCH), "--metric", "mean_absolute_error"]
    done = run(*words, "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == ROWS and found["counted_elements"] == ROWS * WIDTH and "perplexity" not in found
    assert found["loss"] == pytest.approx(wanted.loss, rel=1e-15)
    assert found["metrics"]["mean_absolute_error"] == pytest.approx(wanted.metrics["mean_absolute_error"], rel=1e-15)
    assert f"of {ROWS * WIDTH} elements in {ROWS} rows" in run(*words).stdout
    assert json.loads(run(*words, "--batches", "1", "-o", "json").stdout)["rows"] == BATCH


def test_archives_above_4_gib(
    client: penstock.Client, run: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sizes and where the directory is stand elsewhere; Python writes the sizes so if it is told to."""
    file = tmp_path / "rows.npz"
    arrays = columns()
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    save_plain(file, arrays)
    whole = file.read_bytes()
    record, locator = whole.index(b"PK\x06\x06"), whole.index(b"PK\x06\x07")
    large = whole[:-14] + b"\xff" * 12 + whole[-2:]  # counts, size and place of the directory are in the record alone
    file.write_bytes(large)
    loss = create_mlp(client).train_step(arrays["input"][rows_of(0)], arrays["target"][rows_of(0)]).loss
    assert train(run, create_mlp(client), file, 1)["loss_first"] == loss
    pipeline = create_mlp(client)
    for place, says in ((record, "its ZIP64 record is damaged"), (locator, "it has no ZIP64 record")):
        file.write_bytes(large[:place] + b"x" + large[place + 1 :])
        assert says in refused(run, pipeline, file)
    file.write_bytes(large[: locator + 8] + b"\xff" * 7 + b"\x00" + large[locator + 16 :])
    assert "rows.npz" in refused(run, pipeline, file)


def test_steps_that_are_not_applied_show_in_the_exit_code(
    mlp: penstock.Pipeline, run: Run, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, input=columns()["input"] * np.nan, target=columns()["target"])
    done = run("train", mlp.name, "--data", str(file), "--steps", "2", "--batch", "4")
    assert done.returncode == 6 and "2 steps were not applied" in done.stderr, done.stderr
    assert mlp.refresh().step == 0
    np.savez(file, **{f"a{number}": np.ones(1) for number in range(20)})
    assert "it has a0, a1, a10" in (said := refused(run, mlp, file)) and said.count(", a") < 13 and ", ..." in said


def test_other_commands_read_archives_too(client: penstock.Client, run: Run, tmp_path: pathlib.Path) -> None:
    """As they write them: numbers without dimensions, and the names of slots, which have slashes."""
    pipeline, other = create_mlp(client), create_mlp(client, seed=8)
    rows = columns()["input"]
    pipeline.train_step(rows, columns()["target"])
    sent, got, state = tmp_path / "sent.npz", tmp_path / "got.npz", tmp_path / "state.npz"
    np.savez(sent, input=rows)
    assert run("infer", pipeline.name, "--input", str(sent), "--to", str(got)).returncode == 0
    with np.load(got) as outputs:
        assert np.array_equal(outputs["output"], pipeline.infer(rows)["output"])
    tensors = pipeline.read_parameters(include_optimizer_state=True)
    np.savez(state, **{name.replace("optimizer.", "optimizer/"): array for name, array in tensors.items()})
    done = run("params", "write", other.name, "--from", str(state), "--step", "1")
    assert done.returncode == 0, done.stderr
    assert not differing(state_of(other), state_of(pipeline))
    state.write_bytes(b"no archive")
    assert f"{state}: is neither .npz nor safetensors" in run("params", "write", other.name, "--from", str(state)).stderr
    plain = tmp_path / "state"
    np.savez(plain, x=np.ones(1))
    plain.with_suffix(".npz").rename(plain)
    assert f"{plain}: " in run("params", "write", other.name, "--from", str(plain)).stderr


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"input": columns()["input"].T.copy().T}, "input: must be in C order, is in Fortran order"),
        ({"input": columns()["input"].astype(">f4")}, "input: must be little-endian, is of dtype '>f4'"),
        ({"input": np.array([{}] * ROWS)}, "input: holds objects of Python (dtype '|O')"),
        ({"input": columns()["input"].astype(np.complex64)}, "input: is of dtype '<c8', which no tensor has"),
        ({"input": np.array(["a"] * ROWS)}, "input: is of dtype '<U1', which no tensor has"),
        ({"input": np.zeros(ROWS, [("a", "<f4")])}, "input: holds records (a structured dtype)"),
        ({"input": columns()["input"][:20]}, "target: must have 20 rows, as input, has 21"),
        ({"input": columns()["input"][:0]}, "input: must have rows, has 0"),
        ({"input": np.float32(1)}, "input: must have rows, is a single number"),
        ({"target": columns()["target"][1:]}, "target: must have 21 rows, as input, has 20"),
    ],
)
def test_arrays_that_are_no_rows(
    changed: Arrays, says: str, mlp: penstock.Pipeline, run: Run, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, **{**columns(), **changed})
    assert f"{file}: {says}" in refused(run, mlp, file)


def test_arrays_that_are_not_there(mlp: penstock.Pipeline, run: Run, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, inputs=columns()["input"], y=columns()["target"])
    assert "has no array input, which the pipeline takes; it has inputs, y" in refused(run, mlp, file)
    np.savez(file, input=columns()["input"], y=columns()["target"])
    assert "has no array target, which the pipeline takes; it has input, y" in refused(run, mlp, file)
    assert "has no array z, which" in refused(run, mlp, file, "--target", "z")
    assert "--batch: must be at most 21, the rows of --data, got 22" in refused(
        run, mlp, file, "--target", "y", batch=22
    )
    assert "cannot be read" in refused(run, mlp, tmp_path / "absent.npz")
    assert "it is no plain file" in refused(run, mlp, tmp_path)
    assert "excludes" in refused(run, mlp, file, "--text", str(file))
    done = run("train", mlp.name)
    assert done.returncode == 2 and "--text: missing; or give --data" in done.stderr


def test_a_type_that_the_pipeline_does_not_take(mlp: penstock.Pipeline, run: Run, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, input=columns()["input"].astype(np.float16), target=columns()["target"])
    done = run("train", mlp.name, "--data", str(file), "--steps", "1", "--batch", "4")
    assert done.returncode == 1 and "FP32" in done.stderr and "FP16" in done.stderr, done.stderr


def test_float64_is_rounded_as_by_the_python_client(client: penstock.Client, run: Run, tmp_path: pathlib.Path) -> None:
    plain, wide = create_mlp(client), create_mlp(client)
    file = tmp_path / "rows.npz"
    np.savez(file, **columns())
    train(run, plain, file, 3)
    np.savez(file, **{name: array.astype(np.float64) for name, array in columns().items()})
    train(run, wide, file, 3)
    assert not differing(state_of(wide), state_of(plain))
    np.savez(file, input=columns()["input"].astype(np.float64) * 1e40, target=columns()["target"])
    done = run("evaluate", wide.name, "--data", str(file), "--batch", "4")
    assert done.returncode == 2 and "input: must be of FP32, has " in done.stderr, done.stderr


@pytest.mark.parametrize("save", [save_plain, save_deflated, save_tensors])
def test_damaged_files(
    save: Callable[[pathlib.Path, Arrays], None], mlp: penstock.Pipeline, run: Run, tmp_path: pathlib.Path
) -> None:
    """Each is refused; those that are cut off, wherever; those with another byte, where a checksum stands."""
    file = tmp_path / "rows"
    save(file.with_suffix(".npz"), columns())
    whole = file.with_suffix(".npz").read_bytes()
    for end in (0, 1, 4, 7, 8, 30, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        file.write_bytes(whole[:end])
        assert str(file) in refused(run, mlp, file), end
    if save is save_tensors:
        return
    places = [whole.index(b"PK\x01\x02") + 28, whole.index(b"PK\x01\x02") + 42, len(whole) - 6, len(whole) - 10]
    for place in (400, 600, *places):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert str(file) in refused(run, mlp, file), place


def test_archives_that_are_no_arrays(mlp: penstock.Pipeline, run: Run, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.npz"
    array = tmp_path / "one.npy"

    def archive(content: bytes, method: int = zipfile.ZIP_STORED) -> str:
        with zipfile.ZipFile(file, "w", method) as made:
            made.writestr("input.npy", content)
        return refused(run, mlp, file)

    np.save(array, columns()["input"])
    good = array.read_bytes()
    assert "input: is no array that numpy wrote" in archive(b"no array")
    assert "input: must hold 1344 bytes, as its type and shape say, holds 1343" in archive(good[:-1])
    assert "input: must hold 1344 bytes, as its type and shape say, holds 1345" in archive(good + b"x")
    assert "input: must be of version 1 or 2 of numpy's format, is of version 3" in archive(
        good.replace(b"NUMPY\x01", b"NUMPY\x03")
    )
    assert "input: has a header that numpy does not write" in archive(good.replace(b"'shape'", b"'shapf'"))
    assert "input: has a header that numpy does not write" in archive(good.replace(b"(21, 16)", b"(21, -6)"))
    huge = good.replace(b"'shape': (21, 16), }".ljust(40), b"'shape': (9999999999, 9999999999)}".ljust(40))
    assert "2^63" in archive(huge)
    assert "input.npy: must be stored or deflated, is compressed by method 12" in archive(good, zipfile.ZIP_BZIP2)
    file.write_bytes(b"PK\x05\x06" + bytes(18))
    assert "has no array input, which the pipeline takes; it has none" in refused(run, mlp, file)
    file.write_bytes(b"not at all such a file")
    assert "is neither .npz nor safetensors" in refused(run, mlp, file)

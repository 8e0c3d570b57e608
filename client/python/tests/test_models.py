"""Exported programs on their way to the fake daemon, and pipelines made from them."""

from __future__ import annotations

import asyncio
import hashlib
import pathlib

import grpc
import penstock
import pytest
from fake_daemon import FakeDaemon, status
from penstock.model_files import ModelUpload
from penstock.v1 import model_pb2, pipeline_pb2


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "mine.pt2"
    path.write_bytes(bytes(range(250)) * 12000)  # three million bytes: three chunks, each of other bytes
    return path


def test_a_file_is_brought(client: penstock.Client, daemon: FakeDaemon, file: pathlib.Path) -> None:
    seen: list[tuple[int, int]] = []
    model = client.models.upload(file, progress=lambda sent, all: seen.append((sent, all)))
    digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    assert (model.name, model.digest) == ("models/mine.pt2", digest)
    assert daemon.uploaded["mine.pt2"] == file.read_bytes()
    assert seen[-1] == (3000000, 3000000) and seen == sorted(set(seen))


def test_progress_ends_with_all_where_the_daemon_has_the_file(file: pathlib.Path) -> None:
    seen: list[tuple[int, int]] = []
    upload = ModelUpload(file, "mine.pt2", lambda sent, all: seen.append((sent, all)))
    for _ in upload.chunks(0, 0):  # the sender need not come back after the last chunk
        pass
    assert (3000000, 3000000) not in seen
    assert upload.credit(model_pb2.UploadModelResponse(model=model_pb2.Model(name="models/mine.pt2"))) is None
    assert seen[-1] == (3000000, 3000000)


def test_a_broken_upload_goes_on_where_it_was(client: penstock.Client, daemon: FakeDaemon, file: pathlib.Path) -> None:
    daemon.break_upload_at = 1_000_000
    client.models.upload(file, "other.pt2")
    assert daemon.uploaded["other.pt2"] == file.read_bytes()
    first, second = daemon.requests["UploadStart"]
    assert first == second and first.model_id == "other.pt2"


def test_a_refusal_is_not_repeated(client: penstock.Client, daemon: FakeDaemon, file: pathlib.Path) -> None:
    daemon.fail("UploadModel", status(grpc.StatusCode.ALREADY_EXISTS, "MODEL_EXISTS", "another file has the name"))
    with pytest.raises(penstock.PenstockError) as error:
        client.models.upload(file)
    assert error.value.reason == "MODEL_EXISTS" and not daemon.requests["UploadStart"]


def test_a_file_that_is_not_there(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        client.models.upload(tmp_path / "absent.pt2")


def test_lists_gets_and_deletes(client: penstock.Client, daemon: FakeDaemon) -> None:
    assert [model.name for model in client.models.list()] == ["models/a.pt2", "models/b.pt2"]
    assert client.models.get("mine.pt2").name == client.models.get("models/mine.pt2").name == "models/mine.pt2"
    client.models.delete("mine.pt2")
    assert daemon.requests["DeleteModel"][0].name == "models/mine.pt2"


@pytest.mark.parametrize(
    ("model", "program", "cuts", "digest"),
    [
        ("mine.pt2", "mine.pt2", pipeline_pb2.PROGRAM_CUTS_MODULES, ""),
        (
            model_pb2.Model(name="models/mine.pt2", digest="sha256:0"),
            "mine.pt2",
            pipeline_pb2.PROGRAM_CUTS_MODULES,
            "sha256:0",
        ),
        (penstock.Program("mine.pt2", cuts="nodes"), "mine.pt2", pipeline_pb2.PROGRAM_CUTS_NODES, ""),
    ],
)
def test_what_a_pipeline_is_made_of(
    model: str | model_pb2.Model | penstock.Program,
    program: str,
    cuts: int,
    digest: str,
    client: penstock.Client,
    daemon: FakeDaemon,
) -> None:
    client.create_pipeline(
        "demo",
        model=model,
        starts=["layer2"],
        loss="cross_entropy",
        loss_output="logits",
        loss_options={"class_dimension": 1},
    )
    spec = daemon.requests["CreatePipeline"][0].spec
    assert (spec.model.program, spec.model.program_cuts, spec.model.program_digest) == (program, cuts, digest)
    assert not spec.model.name and list(spec.cut.starts) == ["layer2"] and spec.cut.stages == 0
    assert spec.loss.output == "logits" and spec.loss.options["class_dimension"].int_value == 1


def test_what_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="cuts is one of modules, nodes"):
        penstock.pipeline_spec(model=penstock.Program("mine.pt2", cuts="lines"))
    with pytest.raises(ValueError, match="name it"):
        penstock.pipeline_spec(model="mine.pt2", loss_output="logits")


class Stop(Exception):
    """Of who looks."""


def stop(sent: int, all: int) -> None:
    raise Stop


def test_an_error_of_who_looks_ends_an_upload(
    client: penstock.Client, daemon: FakeDaemon, file: pathlib.Path
) -> None:
    file.write_bytes(bytes(3 << 20))
    with pytest.raises(Stop):
        client.models.upload(file, progress=stop)

    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as aio:
            await aio.models.upload(file, "other.pt2", progress=stop)

    with pytest.raises(Stop):
        asyncio.run(main())


def test_a_file_that_becomes_shorter_ends_its_upload(
    client: penstock.Client, daemon: FakeDaemon, file: pathlib.Path
) -> None:
    """The daemon and the client would wait for each other."""

    def cut_off(sent: int, all: int) -> None:
        file.write_bytes(file.read_bytes()[: sent - 1])

    file.write_bytes(bytes(3 << 20))
    with pytest.raises(OSError, match="mine.pt2: was 3145728 bytes long, and is 1048576 now"):
        client.models.upload(file, progress=cut_off)
    file.write_bytes(bytes(3 << 20))

    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as aio, asyncio.timeout(10):
            await aio.models.upload(file, "other.pt2", progress=cut_off)

    with pytest.raises(OSError, match="mine.pt2: was 3145728 bytes long, and is 1048576 now"):
        asyncio.run(main())


def test_one_name_is_a_list_of_one(client: penstock.Client, daemon: FakeDaemon) -> None:
    """And not of its letters."""
    pipeline = client.create_pipeline("demo", devices="cpu:0", starts="head")
    spec = daemon.requests["CreatePipeline"][0].spec
    assert list(spec.devices) == ["cpu:0"] and list(spec.cut.starts) == ["head"]
    rows = [[1.0, 2.0, 3.0, 4.0]]
    pipeline.infer(rows, outputs="output")
    pipeline.train_step(rows, rows, outputs="output")
    pipeline.forward_backward(rows, rows, outputs="output")
    pipeline.forward(rows, outputs="output")
    for method in ("Infer", "TrainStep", "ForwardBackward", "Forward"):
        assert list(daemon.requests[method][0].outputs) == ["output"], method
    pipeline.read_parameters("weight")
    assert list(daemon.requests["ReadParameters"][0].names) == ["weight"]


def test_an_option_of_another_type_is_named() -> None:
    with pytest.raises(TypeError, match="^widths: an option is a bool, int, float or str, not list"):
        penstock.pipeline_spec(options={"widths": [1, 2]})  # type: ignore[dict-item]

"""Exported programs through the API: brought, listed, trained, restored, deleted.

What is wrong with a file is a named error; the daemon lives, and nothing of the file stays on its disk.
"""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import journal_pb2, model_pb2, pipeline_pb2, work_pb2

import model_files as files
from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon, eventually
from model_files import MODEL, WEIGHTS, OpenUpload, chunk_of, golden, packed, records, replaced, start_of, upload
from raw_calls import INVALID, Raw, given, infer, refused, tensor, train, waiting
from small_models import differing, fresh_name, request_id, state_of

Code = grpc.StatusCode
SMALL = "counting_both.pt2"
IMAGES = "conv_net_both.pt2"
WORDS = "language_dropout_both.pt2"
OWN_LOSS = "own_loss.pt2"
SCALED = "scaled.pt2"
LIMIT = 1 << 20


def flags(root: pathlib.Path) -> tuple[str, ...]:
    return (
        *QUICK_DRAIN,
        f"--model-root={root}",
        "--allow-model-upload",
        f"--max-model-bytes={LIMIT}",
        f"--model-root-bytes={4 * LIMIT}",
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, root: pathlib.Path) -> Iterator[Daemon]:
    """A daemon that takes models; it must live to the end and then exit with 0."""
    with Daemon(tmp_path_factory.mktemp("daemon"), *flags(root)).running() as shared:
        yield shared


@pytest.fixture(autouse=True)
def lives_and_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test with the shared daemon: it lives, and its folder has models only."""
    yield
    if "daemon" in request.fixturenames:
        shared: Daemon = request.getfixturevalue("daemon")
        assert shared.alive(), shared.log[-4000:]
        eventually(lambda: not [name for name in on_disk(request.getfixturevalue("root")) if not name.endswith(".pt2")])


def on_disk(root: pathlib.Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != "lock")


def brought(raw: Raw, name: str) -> str:
    """Brings a golden file, if it is not there; its id."""
    upload(raw, name, golden(name))
    return name


def spec(program: str, loss: str | None = None, **changes: Any) -> pipeline_pb2.PipelineSpec:
    """Two stages, two micro-batches, AdamW."""
    made = pipeline_pb2.PipelineSpec(
        model=pipeline_pb2.ModelSpec(program=program),
        cut=pipeline_pb2.Cut(stages=2),
        schedule=pipeline_pb2.ScheduleSpec(kind="1f1b", micro_batches=2),
        optimizer=pipeline_pb2.OptimizerSpec(name="adamw"),
        seed=5,
    )
    if loss is not None:
        made.loss.name = loss
    for field, value in changes.items():
        getattr(made, field).CopyFrom(value)
    return made


def create(client: penstock.Client, program: str, loss: str | None = None, **changes: Any) -> penstock.Pipeline:
    return client.create_pipeline_from(fresh_name("own"), spec(program, loss, **changes))


def image_batch(step: int, rows: int = 6) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(step)
    return random.standard_normal((rows, 3, 8, 8), np.float32), random.integers(0, 5, rows)


def word_batch(step: int, rows: int = 6) -> tuple[dict[str, np.ndarray], np.ndarray]:
    ids = np.random.default_rng(step).integers(0, 11, (rows, 7))
    return {"ids": ids, "mask": np.ones_like(ids)}, ids


# --- bringing ---------------------------------------------------------------------------------------------------------


def test_a_model_is_brought_listed_used_and_deleted(
    client: penstock.Client, raw: Raw, root: pathlib.Path
) -> None:
    file = golden(IMAGES)
    model = upload(raw, "mine.pt2", file)
    assert (root / "mine.pt2").read_bytes() == file
    assert model.name == "models/mine.pt2" and model.byte_size == len(file) and model.digest == files.digest_of(file)
    assert [(one.name, list(one.shape)) for one in model.signature.inputs] == [("images", [-1, 3, 8, 8])]
    assert [list(one.shape) for one in model.signature.outputs] == [[-1, 5]]
    assert [(one.least, one.most, list(one.inputs)) for one in model.dimensions] == [(1, 4096, ["images[0]"])]
    assert model.evaluation_graph and model.training_graph
    operators = {one.name: one.calls for one in model.operators}
    assert operators["aten.conv2d.default"] == 16 and sum(operators.values()) == model.nodes
    assert sum(layer.parameters for layer in model.layers) == model.parameters > 0
    assert model.parameter_bytes == 4 * model.parameters and model.buffer_bytes > 0

    listed = raw.call("ListModels", model_pb2.ListModelsRequest()).models
    assert model.name in [one.name for one in listed]
    assert raw.call("GetModel", model_pb2.GetModelRequest(name=model.name)) == model
    assert upload(raw, "mine.pt2", file) == model, "the same file again is no error"

    pipeline = create(client, "mine.pt2", "cross_entropy")
    assert pipeline.message.spec.model.program_digest == model.digest
    assert list(raw.call("GetModel", model_pb2.GetModelRequest(name=model.name)).pipelines) == [pipeline.name]
    refused(
        lambda: raw.call("DeleteModel", model_pb2.DeleteModelRequest(name=model.name)),
        Code.FAILED_PRECONDITION,
        "MODEL_IN_USE",
        "name",
        "mine.pt2",
    )
    pipeline.delete()
    raw.call("DeleteModel", model_pb2.DeleteModelRequest(name=model.name))
    assert "mine.pt2" not in on_disk(root)
    refused(
        lambda: raw.call("DeleteModel", model_pb2.DeleteModelRequest(name=model.name)), Code.NOT_FOUND, "MODEL_NOT_FOUND"
    )
    refused(lambda: create(client, "mine.pt2"), Code.NOT_FOUND, "MODEL_NOT_FOUND", "spec.model.program", "mine.pt2")


def test_pages_of_models_and_files_that_are_none(raw: Raw, root: pathlib.Path) -> None:
    for name in ("page-a.pt2", "page-b.pt2", "page-c.pt2"):
        upload(raw, name, golden(SMALL))
    (root / "page-d.pt2").write_bytes(b"no archive at all")
    (root / "page-e.pt2").symlink_to(root / "page-a.pt2")
    (root / "notes.txt.pt2").mkdir()
    try:
        found, token = [], ""
        while True:
            page = raw.call("ListModels", model_pb2.ListModelsRequest(page_size=2, page_token=token))
            assert len(page.models) <= 2
            found += list(page.models)
            token = page.next_page_token
            if not token:
                break
        assert [one.name for one in found] == sorted(one.name for one in found)
        broken = {one.name: one.error.message for one in found if one.HasField("error")}
        assert set(broken) == {"models/page-d.pt2", "models/page-e.pt2", "models/notes.txt.pt2"}, broken
        assert "plain file" in broken["models/page-e.pt2"]
        refused(lambda: raw.call("GetModel", model_pb2.GetModelRequest(name="models/page-d.pt2")), INVALID, "SPEC_INVALID")
    finally:
        (root / "page-d.pt2").unlink()
        (root / "page-e.pt2").unlink()
        (root / "notes.txt.pt2").rmdir()
        for name in "abc":
            raw.call("DeleteModel", model_pb2.DeleteModelRequest(name=f"models/page-{name}.pt2"))


def parts(root: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in root.iterdir() if path.name.startswith(".upload-")]


def test_an_upload_goes_on_where_it_was_cut(daemon: Daemon, raw: Raw, root: pathlib.Path) -> None:
    file = golden(WORDS)
    first = OpenUpload(daemon.address)
    first.put(start_of("cut.pt2", file))
    assert first.answer().credit.next_offset == 0
    for offset in range(0, 3 * files.CHUNK, files.CHUNK):
        first.put(chunk_of(file, offset))
    eventually(lambda: [part.stat().st_size for part in parts(root)] == [3 * files.CHUNK])
    first.cut()

    second = OpenUpload(daemon.address)
    second.put(start_of("cut.pt2", file))
    credit = second.answer().credit
    assert credit.next_offset == 3 * files.CHUNK and credit.bytes > 0
    for offset in range(3 * files.CHUNK, len(file), files.CHUNK):
        second.put(chunk_of(file, offset))
    assert second.answer().model.digest == files.digest_of(file)
    assert (root / "cut.pt2").read_bytes() == file and not parts(root)
    raw.call("DeleteModel", model_pb2.DeleteModelRequest(name="models/cut.pt2"))


def test_the_latest_stream_has_the_upload(daemon: Daemon, raw: Raw, root: pathlib.Path) -> None:
    file = golden(WORDS)
    first, second = OpenUpload(daemon.address), OpenUpload(daemon.address)
    first.put(start_of("taken.pt2", file))
    first.answer()
    second.put(start_of("taken.pt2", file))
    second.answer()
    first.put(chunk_of(file, 0))
    refused(first.answer, INVALID, "STREAM_PROTOCOL")
    for offset in range(0, len(file), files.CHUNK):
        second.put(chunk_of(file, offset))
    assert second.answer().HasField("model")
    raw.call("DeleteModel", model_pb2.DeleteModelRequest(name="models/taken.pt2"))


def test_what_a_killed_daemon_leaves_is_removed(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "models"
    daemon = start_daemon(*flags(root))
    raw = Raw(daemon.address)
    upload(raw, "kept.pt2", golden(SMALL))
    file = golden(WORDS)
    open_upload = OpenUpload(daemon.address)
    open_upload.put(start_of("lost.pt2", file))
    open_upload.put(chunk_of(file, 0))
    eventually(lambda: [part.stat().st_size for part in parts(root)] == [files.CHUNK])
    daemon.kill()
    open_upload.cut()
    assert parts(root)
    daemon.start()
    assert on_disk(root) == ["kept.pt2"]
    raw = Raw(daemon.address)
    upload(raw, "lost.pt2", file)
    assert on_disk(root) == ["kept.pt2", "lost.pt2"]
    # A second one that may write there would remove the first one's uploads.
    with pytest.raises(AssertionError, match="STATE_IN_USE|same state folder|has ended"):
        start_daemon(*flags(root))
    daemon.stop()
    raw.close()


# --- bad uploads ------------------------------------------------------------------------------------------------------


def _escaping() -> bytes:
    return packed({**records(golden(SMALL)), "../../outside.pt2": b"x"})


def _bomb() -> bytes:
    return packed({**records(golden(SMALL)), "extra/zeros": bytes(200 << 20)}, compress=True)


def _second_line(text: bytes) -> Callable[[dict[str, bytes]], None]:
    def edit(content: dict[str, bytes]) -> None:
        content[MODEL] = text

    return edit


BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "random bytes": (lambda: np.random.default_rng(0).bytes(5000), "archive"),
    "a pickle": (lambda: pickle.dumps({"weight": list(range(1000))}), "archive"),
    "an empty archive": (lambda: packed({}), ""),
    "half of a file": (lambda: golden(SMALL)[: len(golden(SMALL)) // 2], "archive"),
    "all but the last byte": (lambda: golden(SMALL)[:-1], "archive"),
    "a flipped bit in a graph": (
        lambda: files.flipped(golden(SMALL), golden(SMALL).index(b'"nodes"') + 20),
        "checksum",
    ),
    "a flipped bit in the directory": (
        lambda: files.flipped(golden(SMALL), files.directory_of(golden(SMALL)) + 50),
        "",
    ),
    "a zip bomb": (_bomb, "stored"),
    "a path that escapes": (_escaping, "must stay in the archive"),
    "a directory that lies": (lambda: files.lying_directory(golden(SMALL)), ""),
    "a tensor larger than its record": (
        lambda: replaced(OWN_LOSS, WEIGHTS, '{"as_int": 8}', '{"as_int": 4000000000000}'),
        "must lie within its record",
    ),
    "a size that overflows": (
        lambda: replaced(OWN_LOSS, WEIGHTS, '{"as_int": 8}', '{"as_int": 9223372036854775807}'),
        "must lie within its record",
    ),
    "a negative size": (lambda: replaced(OWN_LOSS, WEIGHTS, '{"as_int": 8}', '{"as_int": -8}'), "from 0"),
    "a wrong element type": (lambda: replaced(OWN_LOSS, WEIGHTS, '"dtype": 7', '"dtype": 8'), ""),
    "an unknown element type": (lambda: replaced(OWN_LOSS, WEIGHTS, '"dtype": 7', '"dtype": 99'), ""),
    "a pickle for weights": (
        lambda: replaced(OWN_LOSS, WEIGHTS, '"use_pickle": false', '"use_pickle": true'),
        "got a pickle",
    ),
    "a pickle in a weight's place": (
        lambda: files.edited(
            OWN_LOSS, lambda content: content.update({"data/weights/weight_0": pickle.dumps(list(range(99)))})
        ),
        "must hold the 128 bytes",
    ),
    "a cycle": (
        lambda: replaced(
            OWN_LOSS,
            MODEL,
            '{"name": "self", "arg": {"as_tensor": {"name": "linear"}}',
            '{"name": "self", "arg": {"as_tensor": {"name": "tanh"}}',
        ),
        "no operator before it makes, got tanh",
    ),
    "a value from nowhere": (
        lambda: replaced(
            OWN_LOSS,
            MODEL,
            '{"name": "self", "arg": {"as_tensor": {"name": "linear"}}',
            '{"name": "self", "arg": {"as_tensor": {"name": "nowhere"}}',
        ),
        "no operator before it makes, got nowhere",
    ),
    "an unknown operator": (
        lambda: replaced(OWN_LOSS, MODEL, "torch.ops.aten.tanh.default", "torch.ops.aten.from_file.default"),
        "aten.from_file",
    ),
    "an operator of nobody": (
        lambda: replaced(OWN_LOSS, MODEL, "torch.ops.aten.tanh.default", "torch.ops.mine.explode.default"),
        "mine.explode",
    ),
    "a schema of the future": (
        lambda: replaced(OWN_LOSS, MODEL, '"schema_version": {"major": 8', '"schema_version": {"major": 9'),
        "schema_version must be",
    ),
    "JSON without an end": (lambda: files.edited(OWN_LOSS, _second_line(b"[" * 100_000)), ""),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_bad_file_is_refused_by_name(fault: str, raw: Raw, root: pathlib.Path) -> None:
    make, sentence = BAD_FILES[fault]
    before = on_disk(root)
    bad_id = f"bad-{list(BAD_FILES).index(fault)}.pt2"
    error = refused(lambda: upload(raw, bad_id, make()), INVALID, "SPEC_INVALID")
    assert sentence in error.message, error.message
    assert error.values["field"] and error.values["model"] == bad_id
    assert on_disk(root) == before
    refused(
        lambda: raw.call("GetModel", model_pb2.GetModelRequest(name=f"models/{bad_id}")), Code.NOT_FOUND, "MODEL_NOT_FOUND"
    )


def test_a_repacked_file_is_good(raw: Raw) -> None:
    """So it is the faults above that were refused."""
    upload(raw, "repacked.pt2", packed(records(golden(OWN_LOSS))))
    raw.call("DeleteModel", model_pb2.DeleteModelRequest(name="models/repacked.pt2"))


def test_all_unknown_operators_are_named_at_once(raw: Raw) -> None:
    content = records(golden(OWN_LOSS))
    text = content[MODEL].decode().replace("torch.ops.aten.tanh.default", "torch.ops.mine.one.default")
    content[MODEL] = text.replace("torch.ops.aten.cross_entropy_loss.default", "torch.ops.mine.two.default").encode()
    error = refused(lambda: upload(raw, "bad.pt2", packed(content)), INVALID, "SPEC_INVALID")
    assert "mine.one" in error.message and "mine.two" in error.message


@pytest.mark.parametrize(
    "name",
    ["", "x", ".pt2", "../x.pt2", "a/b.pt2", "/etc/x.pt2", "-x.pt2", ".x.pt2", "a b.pt2", "x.pt2/..", "a\n.pt2"]
    + ["x.PT2", "x.zip", "ü.pt2", "x" * 200 + ".pt2"],
)
def test_bad_names(name: str, raw: Raw, root: pathlib.Path, client: penstock.Client) -> None:
    before = on_disk(root)
    refused(lambda: files.send(raw, iter([start_of(name, b"x")])), INVALID, "NAME_INVALID", "model_id")
    for method, request in (("GetModel", model_pb2.GetModelRequest), ("DeleteModel", model_pb2.DeleteModelRequest)):
        refused(lambda: raw.call(method, request(name=f"models/{name}")), INVALID, "NAME_INVALID", "name")  # noqa: B023
    if name:
        refused(lambda: create(client, name), INVALID, "SPEC_INVALID", "spec.model.program")
    assert on_disk(root) == before


def test_names_without_their_prefix(raw: Raw) -> None:
    refused(lambda: raw.call("GetModel", model_pb2.GetModelRequest(name=SMALL)), INVALID, "NAME_INVALID", "name")


def test_starts_that_are_refused(raw: Raw) -> None:
    file = golden(SMALL)
    for changes, code, reason, field in (
        ({"byte_size": 0}, INVALID, "FIELD_INVALID", "byte_size"),
        ({"byte_size": -1}, INVALID, "FIELD_INVALID", "byte_size"),
        ({"byte_size": LIMIT + 1}, Code.RESOURCE_EXHAUSTED, "MODEL_TOO_LARGE", "byte_size"),
        ({"byte_size": 1 << 62}, Code.RESOURCE_EXHAUSTED, "MODEL_TOO_LARGE", "byte_size"),
        ({"digest": ""}, INVALID, "FIELD_INVALID", "digest"),
        ({"digest": "sha256:" + "x" * 64}, INVALID, "FIELD_INVALID", "digest"),
        ({"digest": "crc32c:00000000"}, INVALID, "FIELD_INVALID", "digest"),
    ):
        start = start_of("start.pt2", file, **changes)
        refused(lambda: files.send(raw, iter([start])), code, reason, field)  # noqa: B023


def test_streams_out_of_order(daemon: Daemon, raw: Raw, root: pathlib.Path) -> None:
    file = golden(WORDS)
    start = start_of("order.pt2", file)
    refused(lambda: files.send(raw, iter([])), INVALID, "STREAM_PROTOCOL")
    refused(lambda: files.send(raw, iter([chunk_of(file, 0)])), INVALID, "STREAM_PROTOCOL")
    refused(lambda: files.send(raw, iter([model_pb2.UploadModelRequest()])), INVALID, "STREAM_PROTOCOL")
    refused(lambda: files.send(raw, iter([start, start])), INVALID, "STREAM_PROTOCOL")
    refused(lambda: files.send(raw, iter([start])), INVALID, "CHUNK_SIZE")
    whole = [chunk_of(file, offset) for offset in range(0, len(file), files.CHUNK)]
    for bad, code, reason in (
        (chunk_of(file, files.CHUNK), INVALID, "CHUNK_SIZE"),
        (chunk_of(file, 0, 100), INVALID, "CHUNK_SIZE"),
        (chunk_of(file, 0, offset=-1), INVALID, "CHUNK_SIZE"),
        (chunk_of(file, 0, data=b""), INVALID, "CHUNK_SIZE"),
        (chunk_of(bytes(2 << 20), 0, 1 << 20), INVALID, "CHUNK_SIZE"),  # beyond the end
        (chunk_of(bytes(2 << 20), 0, 2 << 20), Code.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"),
        (chunk_of(file, 0, crc32c=1), Code.DATA_LOSS, "CHUNK_CHECKSUM"),
    ):
        refused(lambda: files.send(raw, iter([start, bad])), code, reason)  # noqa: B023
    # None of them spoilt the upload.
    files.send(raw, iter([start, *whole]))
    assert (root / "order.pt2").read_bytes() == file
    raw.call("DeleteModel", model_pb2.DeleteModelRequest(name="models/order.pt2"))


def test_another_digest(raw: Raw, root: pathlib.Path) -> None:
    file = golden(SMALL)
    announced = start_of("digest.pt2", file, digest=files.digest_of(b"another file"))
    requests = [announced, *(chunk_of(file, offset) for offset in range(0, len(file), files.CHUNK))]
    refused(lambda: files.send(raw, iter(requests)), Code.DATA_LOSS, "MODEL_DIGEST", "digest")
    assert "digest.pt2" not in on_disk(root) and not parts(root)


def test_another_file_of_the_same_name(raw: Raw, root: pathlib.Path) -> None:
    upload(raw, "same.pt2", golden(SMALL))
    refused(lambda: upload(raw, "same.pt2", golden(OWN_LOSS)), Code.ALREADY_EXISTS, "MODEL_EXISTS", "model_id")
    assert (root / "same.pt2").read_bytes() == golden(SMALL)
    raw.call("DeleteModel", model_pb2.DeleteModelRequest(name="models/same.pt2"))


def test_quotas(daemon: Daemon, raw: Raw, root: pathlib.Path) -> None:
    """The folder has room for 4 MiB; uploads count with all that they announce."""
    file = golden(SMALL)
    opened: list[tuple[OpenUpload, int]] = []

    def begin(byte_size: int, caller: str | None = None) -> OpenUpload:
        upload = OpenUpload(daemon.address, caller)
        upload.put(start_of(f"open-{len(opened)}.pt2", file, byte_size=byte_size))
        return upload

    def admitted(byte_size: int, caller: str | None = None) -> None:
        upload = begin(byte_size, caller)
        assert upload.answer().HasField("credit")
        opened.append((upload, byte_size))

    try:
        for byte_size in (LIMIT, LIMIT, len(file)):
            admitted(byte_size)
        # With that, the caller would have more than three quarters of the room.
        refused(begin(LIMIT).answer, Code.RESOURCE_EXHAUSTED, "CALLER_QUOTA", value="bytes open at once")
        for _ in range(3):
            admitted(len(file))
        refused(begin(len(file)).answer, Code.RESOURCE_EXHAUSTED, "CALLER_QUOTA", value="at most 6 uploads open at once")
        admitted(LIMIT, "bob")
        refused(begin(LIMIT, "carol").answer, Code.RESOURCE_EXHAUSTED, "STORAGE_FULL", value="--model-root-bytes")
    finally:
        # Finished with what is no model, they go.
        for upload, byte_size in opened:
            for offset in range(0, byte_size, 256 << 10):
                upload.put(chunk_of(bytes(byte_size), offset, 256 << 10))
            refused(upload.answer, Code.DATA_LOSS, "MODEL_DIGEST")
    assert not parts(root)


def test_a_daemon_that_takes_no_models(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    without = Raw(start_daemon(*QUICK_DRAIN).address)
    calls: dict[str, Callable[[Raw], Any]] = {
        "upload": lambda raw: upload(raw, "x.pt2", golden(SMALL)),
        "delete": lambda raw: raw.call("DeleteModel", model_pb2.DeleteModelRequest(name=f"models/{SMALL}")),
        "list": lambda raw: raw.call("ListModels", model_pb2.ListModelsRequest()),
        "get": lambda raw: raw.call("GetModel", model_pb2.GetModelRequest(name=f"models/{SMALL}")),
    }
    for call in calls.values():
        refused(lambda: call(without), Code.UNIMPLEMENTED, "FEATURE_DISABLED", "--model-root")  # noqa: B023
    with penstock.Client(without.address) as client:
        refused(lambda: create(client, SMALL), Code.NOT_FOUND, "MODEL_NOT_FOUND", "spec.model.program")
        assert "model_upload" not in client.server_info().features

    (tmp_path / "models").mkdir()
    (tmp_path / "models" / SMALL).write_bytes(golden(SMALL))
    daemon = start_daemon(*QUICK_DRAIN, f"--model-root={tmp_path / 'models'}")
    readable = Raw(daemon.address)
    for name in ("upload", "delete"):
        refused(
            lambda: calls[name](readable), Code.UNIMPLEMENTED, "FEATURE_DISABLED", "--allow-model-upload"  # noqa: B023
        )
    assert [one.name for one in calls["list"](readable).models] == [f"models/{SMALL}"]
    with penstock.Client(daemon.address) as client:
        create(client, SMALL, "mean_squared_error")
    assert on_disk(tmp_path / "models") == [SMALL]


# --- pipelines --------------------------------------------------------------------------------------------------------


def test_inference_equals_eager_pytorch_and_names_are_kept(client: penstock.Client, raw: Raw) -> None:
    expected = files.reference("conv_net.safetensors")
    pipeline = create(client, brought(raw, "conv_net.pt2"), "cross_entropy")
    # Stored on a machine whose kernels may differ in the last bit; own_models compares with this machine's, bit for
    # bit.
    np.testing.assert_allclose(
        pipeline.infer(expected["input.0"], micro_batches=1)["output"], expected["eval.output"], rtol=1e-5, atol=1e-6
    )
    state = pipeline.read_parameters()
    learned = {name.removeprefix("gradient.") for name in expected if name.startswith("gradient.")}
    assert learned <= set(state), "state_dict() has these names"
    state = pipeline.read_parameters(include_optimizer_state=True)
    moments = [name for name in state if name.startswith("optimizer/")]
    assert len(moments) >= 2 * len(learned) and all(name.split("/")[1] in learned for name in moments)


def test_training_has_dropout_and_inference_has_none(client: penstock.Client, raw: Raw) -> None:
    pipeline = create(client, brought(raw, WORDS), "cross_entropy")
    inputs, target = word_batch(0)
    first = pipeline.infer(inputs, outputs=["logits"])["logits"]
    assert np.array_equal(pipeline.infer(inputs, outputs=["logits"])["logits"], first)
    wide = first.astype(np.float64)
    plain = -np.mean(
        np.take_along_axis(wide - np.log(np.exp(wide).sum(-1, keepdims=True)), target[..., None], axis=-1)
    )
    losses = []
    for _ in range(2):
        losses.append(pipeline.forward_backward(inputs, target).loss)
        pipeline.optimizer_step(discard=True)
    trained = pipeline.train_step(inputs, target)
    assert all(abs(loss - plain) > 1e-4 for loss in (*losses, trained.loss)), (losses, plain)
    assert not np.array_equal(pipeline.infer(inputs, outputs=["logits"])["logits"], first), "the weights moved"


def test_forward_and_backward_by_the_client_are_a_step(client: penstock.Client, raw: Raw) -> None:
    images, labels = image_batch(0)
    program = brought(raw, "conv_net.pt2")
    by_server, by_client = (create(client, program, "cross_entropy") for _ in range(2))
    loss = by_server.train_step(images, labels).loss
    outputs, graph = by_client.forward(images)
    logits = outputs.fetch()["output"].astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert np.isclose(-np.log(shares[np.arange(6), labels]).mean(), loss, rtol=1e-5)
    gradient = shares.copy()
    gradient[np.arange(6), labels] -= 1
    by_client.backward(graph, {"output": (gradient / 6).astype(np.float32)})
    by_client.optimizer_step()
    one, other = by_server.read_parameters(), by_client.read_parameters()
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.allclose(value, other[name], rtol=1e-3, atol=2e-5), name


def test_cuts_by_hand(client: penstock.Client, raw: Raw) -> None:
    program = brought(raw, IMAGES)
    images, labels = image_batch(0)
    first_layers = []
    losses = set()
    for cut in (
        pipeline_pb2.Cut(starts=["layer2"]),
        pipeline_pb2.Cut(starts=["layer1.1", "fc"]),
        pipeline_pb2.Cut(stages=2),
        pipeline_pb2.Cut(balance=[1, len(raw.call("GetModel", model_pb2.GetModelRequest(name=f"models/{program}")).layers) - 1]),
    ):
        pipeline = create(client, program, "cross_entropy", cut=cut, schedule=pipeline_pb2.ScheduleSpec(micro_batches=2))
        losses.add(pipeline.train_step(images, labels).loss)
        first_layers.append([stage.layers[0] for stage in pipeline.message.plan.stages])
    assert len(losses) == 1, losses
    assert first_layers[0][1] == "layer2_0" and first_layers[1][1:] == ["layer1_1", "fc"]
    nodes = pipeline_pb2.ModelSpec(program=program, program_cuts=pipeline_pb2.PROGRAM_CUTS_NODES)
    fine = create(client, program, "cross_entropy", model=nodes)
    assert len(fine.message.plan.layers) > 20
    assert np.isfinite(fine.train_step(images, labels).loss)

    for cut, field in (
        (pipeline_pb2.Cut(starts=["nowhere"]), "spec.cut.starts[0]"),
        (pipeline_pb2.Cut(starts=["layer2", "layer1"]), "spec.cut.starts[1]"),
        (pipeline_pb2.Cut(starts=["stem"]), "spec.cut.starts[0]"),
        (pipeline_pb2.Cut(starts=["layer2", "layer2"]), "spec.cut.starts[1]"),
        (pipeline_pb2.Cut(starts=["layer2"], stages=2), "spec.cut.stages"),
        (pipeline_pb2.Cut(starts=["layer2"], balance=[1, 2]), "spec.cut.balance"),
    ):
        refused(lambda: create(client, program, cut=cut), INVALID, "SPEC_INVALID", field)  # noqa: B023


def test_a_plan_of_a_program(client: penstock.Client, raw: Raw) -> None:
    request = pipeline_pb2.PlanPipelineRequest(
        spec=pipeline_pb2.PipelineSpec(model=pipeline_pb2.ModelSpec(program=brought(raw, IMAGES)))
    )
    answer = raw.unary("PipelineService/PlanPipeline", request, pipeline_pb2.PlanPipelineResponse)
    assert answer.candidates and sum(answer.candidates[0].balance) == len(answer.plan.layers)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "mlp"}, "spec.model"),
        ({"dtype": "bf16"}, "spec.model.dtype"),
        ({"program_cuts": 9}, "spec.model.program_cuts"),
        ({"options": {"width": pipeline_pb2.Option(int_value=3)}}, "spec.model.options"),
    ],
)
def test_specifications_that_contradict_themselves(
    changes: dict[str, Any], field: str, client: penstock.Client, raw: Raw
) -> None:
    model = pipeline_pb2.ModelSpec(program=brought(raw, SMALL), **changes)
    refused(lambda: create(client, "", model=model), INVALID, "SPEC_INVALID", field)


def test_a_digest_without_a_program_and_one_of_another_file(client: penstock.Client, raw: Raw) -> None:
    other = files.digest_of(b"another file")
    model = pipeline_pb2.ModelSpec(name="mlp", program_digest=other)
    refused(lambda: create(client, "", model=model), INVALID, "SPEC_INVALID", "spec.model.program_digest")
    model = pipeline_pb2.ModelSpec(program=brought(raw, SMALL), program_digest=other)
    refused(
        lambda: create(client, "", model=model), Code.FAILED_PRECONDITION, "MODEL_MISMATCH", "spec.model.program_digest"
    )


def test_inputs_that_break_what_was_exported(client: penstock.Client, raw: Raw) -> None:
    pipeline = create(client, brought(raw, WORDS), "cross_entropy")
    inputs, target = word_batch(0)
    ids, mask = inputs["ids"], inputs["mask"]
    of_floats = infer(pipeline.name, given("ids", ids.astype(np.float32)), given("mask", mask))  # the client casts no type so
    refused(lambda: raw.call("Infer", of_floats), INVALID, "TENSOR_SIGNATURE", "type")
    refused(lambda: pipeline.infer({"ids": ids[..., None], "mask": mask}), INVALID, "TENSOR_SIGNATURE", "shape")
    refused(lambda: pipeline.infer({"ids": ids}), INVALID, "TENSOR_SIGNATURE", "inputs")
    refused(lambda: pipeline.infer({"ids": ids, "mask": mask[:, :3]}), INVALID, "TENSOR_SIGNATURE")
    long = np.zeros((2, 65), np.int64)  # exported with at most 64
    refused(lambda: pipeline.infer({"ids": long, "mask": np.ones_like(long)}), INVALID, "TENSOR_SIGNATURE")
    floats = train(
        pipeline.name, inputs=[given("ids", ids), given("mask", mask)], target=given("target", target.astype(np.float32))
    )
    refused(lambda: raw.call("TrainStep", floats), INVALID, "TENSOR_SIGNATURE", "target")
    refused(lambda: pipeline.train_step(inputs, target + 11), INVALID, "TENSOR_SIGNATURE", "target")
    assert np.isfinite(pipeline.train_step(inputs, target).loss)


def test_an_input_that_is_a_number(client: penstock.Client, raw: Raw) -> None:
    """Every micro-batch gets it, and the call's rows are those of the other inputs."""
    pipeline = create(client, brought(raw, SCALED), "mean_squared_error")
    rows = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    once = pipeline.infer({"scale": np.float32(1), "rows": rows})["output"]
    np.testing.assert_allclose(
        pipeline.infer({"scale": np.float32(3), "rows": rows})["output"], 3 * once, rtol=1e-6, atol=1e-6
    )
    outcome = pipeline.train_step({"scale": np.float32(1), "rows": rows}, once)
    assert outcome.loss < 1e-9
    refused(lambda: pipeline.infer({"scale": rows[:, 0], "rows": rows}), INVALID, "TENSOR_SIGNATURE", "inputs[0].shape")
    refused(
        lambda: pipeline.train_step({"scale": np.float32(1), "rows": rows}, np.float32(1)), INVALID, "TENSOR_SIGNATURE"
    )
    assert pipeline.train_step({"scale": np.float32(1), "rows": rows}, once).step == 2


def test_an_index_that_is_out_of_range(client: penstock.Client, raw: Raw) -> None:
    """Checked before the operator runs: a GPU would end the work of all pipelines."""
    pipeline = create(client, brought(raw, WORDS), "cross_entropy")
    inputs, _ = word_batch(0)
    bad = {**inputs, "ids": np.full_like(inputs["ids"], 11)}
    error = refused(lambda: pipeline.infer(bad), INVALID, "TENSOR_SIGNATURE", "indices")
    assert "indices: must lie in [0, 10], got 11" in error.message
    assert np.isfinite(pipeline.infer(inputs)["logits"]).all()


OUTPUT = '"mul": {"dtype": 7, "sizes": ['
LIES: dict[str, tuple[dict[str, str], str]] = {
    "another type": ({OUTPUT: '"mul": {"dtype": 8, "sizes": ['}, "outputs[output].dtype: must be Double"),
    "more dimensions": ({OUTPUT: OUTPUT + '{"as_int": 1}, '}, "outputs[output].shape: must be [1, -1, 3]"),
    "a type that can't be sent": (
        {
            "torch.ops.aten.mul.Tensor": "torch.ops.aten.complex.default",
            '{"name": "self", "arg": {"as_tensor": {"name": "linear_1"}}': (
                '{"name": "real", "arg": {"as_tensor": {"name": "linear_1"}}'
            ),
            '{"name": "other", "arg": {"as_tensor": {"name": "scale"}}': (
                '{"name": "imag", "arg": {"as_tensor": {"name": "scale"}}'
            ),
        },
        "outputs[output].dtype: must be Float, as the file says, got ComplexFloat",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_about_its_outputs(lie: str, client: penstock.Client, raw: Raw) -> None:
    changes, sentence = LIES[lie]
    content = records(golden(SCALED))
    text = content[MODEL].decode()
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    content[MODEL] = text.encode()
    name = f"lie-{list(LIES).index(lie)}.pt2"
    upload(raw, name, packed(content))
    error = refused(lambda: create(client, name), INVALID, "SPEC_INVALID")
    assert sentence in error.message, error.message
    assert client.server_info().version


# --- losses -----------------------------------------------------------------------------------------------------------


def train_request(
    pipeline: penstock.Pipeline, loss: pipeline_pb2.LossSpec | None = None, **inputs: np.ndarray
) -> work_pb2.TrainStepRequest:
    """``target`` is among the inputs, if any."""
    request = work_pb2.TrainStepRequest(pipeline=pipeline.name, request_id=request_id(), reply=waiting())
    if loss is not None:
        request.loss.CopyFrom(loss)
    for name, array in inputs.items():
        place = request.target if name == "target" else request.inputs.add(name=name)
        place.tensor.CopyFrom(tensor(array))
    return request


def train_loss(raw: Raw, *arguments: Any, **inputs: np.ndarray) -> float:
    answer = raw.call("TrainStep", train_request(*arguments, **inputs))
    assert answer.outcome.handle.HasField("outcome"), answer
    loss: float = answer.outcome.handle.outcome.loss
    return loss


def test_losses_on_named_outputs(client: penstock.Client, raw: Raw) -> None:
    program = brought(raw, "language.pt2")
    inputs, target = word_batch(3)
    hidden = pipeline_pb2.LossSpec(name="mean_squared_error", output="hidden")
    wanted = np.ones((6, 7, 16), np.float32)
    reached = create(client, program).infer(inputs, outputs=["hidden"])["hidden"].astype(np.float64)
    by_name = train_loss(raw, create(client, program), hidden, target=wanted, **inputs)
    assert np.isclose(by_name, np.mean((reached - 1) ** 2), rtol=1e-5)
    of_pipeline = create(client, program, loss=None)
    position = pipeline_pb2.LossSpec(name="mean_squared_error", output="1")
    assert train_loss(raw, of_pipeline, position, target=wanted, **inputs) == by_name
    default = pipeline_pb2.PipelineSpec()
    default.CopyFrom(spec(program))
    default.loss.CopyFrom(hidden)
    kept = client.create_pipeline_from(fresh_name("own"), default)
    assert kept.message.spec.loss.output == "hidden"
    assert [list(one.shape) for one in kept.message.signature.targets] == [[-1, -1, 16]]
    assert train_loss(raw, kept, target=wanted, **inputs) == by_name

    binary = pipeline_pb2.LossSpec(name="binary_cross_entropy", output="hidden")
    half = np.full_like(wanted, 0.5)
    expected = np.mean(np.maximum(reached, 0) - 0.5 * reached + np.log1p(np.exp(-np.abs(reached))))
    assert np.isclose(train_loss(raw, create(client, program), binary, target=half, **inputs), expected, rtol=1e-5)

    ignored = target.copy()
    ignored[:, :5] = -100
    labels = pipeline_pb2.LossSpec(name="cross_entropy", output="logits")
    both = [train_loss(raw, create(client, program), labels, target=one, **inputs) for one in (target, ignored)]
    assert both[0] != both[1] and all(np.isfinite(both))

    victim = create(client, program)
    for loss, given, code, reason, field in (
        (hidden, {}, INVALID, "FIELD_INVALID", "target"),
        (hidden, {"target": wanted[..., :3]}, INVALID, "TENSOR_SIGNATURE", "target"),
        (binary, {"target": half + 1}, INVALID, "TENSOR_SIGNATURE", "target"),
        (pipeline_pb2.LossSpec(name="cross_entropy", output="nowhere"), {"target": target}, INVALID, "FIELD_INVALID", "loss.output"),
        (pipeline_pb2.LossSpec(name="cross_entropy", output="7"), {"target": target}, INVALID, "FIELD_INVALID", "loss.output"),
        (pipeline_pb2.LossSpec(name="no_such"), {"target": target}, INVALID, "LOSS_UNKNOWN", "name"),
    ):
        request = train_request(victim, loss, **inputs, **given)
        refused(lambda: settled(raw, request), code, reason, field)  # noqa: B023
    assert raw.call("GetPipeline", pipeline_pb2.GetPipelineRequest(name=victim.name)).step == 0


def settled(raw: Raw, request: work_pb2.TrainStepRequest) -> Any:
    """The outcome; an error that the work itself met is raised, too."""
    answer = raw.call("TrainStep", request)
    if answer.outcome.handle.HasField("error"):
        raise penstock.PenstockError.from_status(answer.outcome.handle.error)
    return answer.outcome.handle.outcome


def test_a_model_with_a_loss_of_its_own(client: penstock.Client, raw: Raw) -> None:
    program = brought(raw, OWN_LOSS)
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((8, 4), np.float32), random.integers(0, 3, 8)
    own = create(client, program, "scalar_output")
    assert not own.message.signature.targets
    other = create(client, program)
    by_server = pipeline_pb2.LossSpec(name="cross_entropy", output="scores")
    for _ in range(3):
        # The same mean, computed by the model and by the server.
        mine = settled(raw, train_request(own, x=x, labels=labels))
        theirs = settled(raw, train_request(other, by_server, x=x, labels=labels, target=labels))
        assert np.isclose(mine.loss, theirs.loss, rtol=1e-6) and np.isclose(
            mine.gradient_norm, theirs.gradient_norm, rtol=1e-5
        )
    assert mine.loss < np.log(3) + 1
    refused(
        lambda: settled(raw, train_request(own, x=x, labels=labels, target=labels)), INVALID, "FIELD_INVALID", "target"
    )
    scores = pipeline_pb2.LossSpec(name="scalar_output", output="scores")
    refused(lambda: settled(raw, train_request(own, scores, x=x, labels=labels)), INVALID, "TENSOR_SIGNATURE", "output")


def test_zero_dimensional_outputs_come_as_a_list_by_micro_batch(client: penstock.Client, raw: Raw) -> None:
    """And asking for them changes nothing about the training."""
    program = brought(raw, OWN_LOSS)
    random = np.random.default_rng(1)
    inputs = {"x": random.standard_normal((8, 4), np.float32), "labels": random.integers(0, 3, 8)}
    asking, plain = create(client, program, "scalar_output"), create(client, program, "scalar_output")
    assert asking.infer(inputs, outputs=["loss"], micro_batches=2)["loss"].shape == (2,)
    for step in range(3):
        outcome = asking.train_step(inputs, outputs=["loss", "scores"], micro_batches=2)
        outputs = outcome.outputs.fetch()
        assert outputs["loss"].shape == (2,) and outputs["scores"].shape == (8, 3)
        assert np.isclose(outputs["loss"].mean(), outcome.loss, rtol=1e-6)
        assert plain.train_step(inputs, micro_batches=2).loss == outcome.loss
        assert asking.refresh().step == step + 1
    contributed = asking.forward_backward(inputs, outputs=["loss"], micro_batches=2)
    assert contributed.outputs.fetch()["loss"].shape == (2,)
    plain.forward_backward(inputs, micro_batches=2)
    assert asking.optimizer_step().gradient_norm == plain.optimizer_step().gradient_norm
    assert differing(state_of(asking), state_of(plain)) == []


# --- recovery ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_published_whatever_became_of_the_file(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    """With a journal the daemon has a copy of the program."""
    root = tmp_path / "models"
    daemon = start_daemon(*flags(root))
    raw = Raw(daemon.address)

    def answer_of(pipeline: penstock.Pipeline) -> str:
        return repr(pipeline.infer(word_batch(9)[0]))

    with penstock.Client(daemon.address) as client:
        upload(raw, WORDS, golden(WORDS))
        pipeline = client.create_pipeline_from("trained", spec(WORDS, "cross_entropy"))
        answers: list[str] = []
        for step in range(2):
            pipeline.train_step(*word_batch(step))
            pipeline.save_checkpoint(f"s{step}")
            answers.append(answer_of(pipeline))
        (root / WORDS).unlink()
        pipeline.publish("s0")
        pipeline.train_step(*word_batch(2))
        assert answer_of(pipeline) == answers[0]
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline("trained")
        assert answer_of(pipeline) == answers[0]
        pipeline.publish("s1")
        assert answer_of(pipeline) == answers[1]


def test_training_goes_on_after_kill_bit_for_bit(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "models"
    daemon = start_daemon(*flags(root))
    raw = Raw(daemon.address)
    with penstock.Client(daemon.address) as client:
        upload(raw, WORDS, golden(WORDS))
        upload(raw, SMALL, golden(SMALL))
        pipeline = client.create_pipeline_from("trained", spec(WORDS, "cross_entropy"))
        for step in range(2):
            pipeline.train_step(*word_batch(step))
        pipeline.save_checkpoint("two")
        for step in range(2, 4):
            pipeline.train_step(*word_batch(step))
        undisturbed = state_of(pipeline)
    daemon.kill()
    (root / WORDS).rename(tmp_path / "away")
    (root / WORDS).write_bytes(golden(SMALL))
    daemon.start()
    raw = Raw(daemon.address)
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline("trained")
        assert not differing(state_of(pipeline), undisturbed), "what the journal has was not made again"
        assert [copy.read_bytes() for copy in daemon.state_dir.glob("journal/*/program.pt2")] == [golden(WORDS)]
        (tmp_path / "away").replace(root / WORDS)
        assert pipeline.restore_checkpoint("two").step == 2
        for step in range(2, 4):
            pipeline.train_step(*word_batch(step))
        assert not differing(state_of(pipeline), undisturbed)
        digest = pipeline.message.spec.model.program_digest
        pipeline.delete()
        assert not list(daemon.state_dir.glob("journal/*/program.pt2")), "it goes with its pipeline"

        # The same graph, with one weight changed: another file.
        content = records(golden(WORDS))
        weight = next(name for name in content if name.startswith("data/weights/weight_"))
        content[weight] = bytes(len(content[weight]))
        raw.call("DeleteModel", model_pb2.DeleteModelRequest(name=f"models/{WORDS}"))
        refused(
            lambda: client.create_pipeline_from("trained", spec(WORDS, "cross_entropy")),
            Code.NOT_FOUND,
            "MODEL_NOT_FOUND",
            "spec.model.program",
        )
        upload(raw, WORDS, packed(content))
        pinned = spec(WORDS, "cross_entropy")
        pinned.model.program_digest = digest
        refused(
            lambda: client.create_pipeline_from("trained", pinned),
            Code.FAILED_PRECONDITION,
            "MODEL_MISMATCH",
            "spec.model.program_digest",
        )
        pipeline = client.create_pipeline_from("trained", spec(WORDS, "cross_entropy"))
        before = state_of(pipeline)
        refused(
            lambda: pipeline.restore_checkpoint("two"),
            Code.FAILED_PRECONDITION,
            "MODEL_MISMATCH",
            "spec.model.program_digest",
        )
        assert not differing(state_of(pipeline), before)
        pipeline.delete()

        # Under another name it is the same file.
        upload(raw, "renamed.pt2", golden(WORDS))
        pipeline = client.create_pipeline_from("trained", spec("renamed.pt2", "cross_entropy"))
        assert pipeline.restore_checkpoint("two").step == 2
    daemon.stop()


def test_a_copy_of_the_journal_has_the_program(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    daemon = start_daemon(*flags(tmp_path / "models"))
    raw = Raw(daemon.address)
    copy = tmp_path / "copy"
    with penstock.Client(daemon.address) as client:
        upload(raw, WORDS, golden(WORDS))
        pipeline = client.create_pipeline_from("trained", spec(WORDS, "cross_entropy"))
        pipeline.train_step(*word_batch(0))
        wanted = state_of(pipeline)
        request = journal_pb2.BackUpJournalRequest(folder=str(copy))
        raw.unary("JournalService/BackUpJournal", request, journal_pb2.BackUpJournalResponse)
    (tmp_path / "other").mkdir()
    copy.rename(tmp_path / "other" / "state")
    other = Daemon(tmp_path / "other", *QUICK_DRAIN)  # without a model root
    with other.running(), penstock.Client(other.address) as client:
        assert not differing(state_of(client.pipeline("trained")), wanted)

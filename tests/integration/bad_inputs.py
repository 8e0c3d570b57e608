"""Bad inputs and the errors that they must get, as data: test_bad_inputs.py sends each, docs/bad_inputs.md lists them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.message import Message
from penstock.v1 import admin_pb2, handle_pb2, insight_pb2, journal_pb2, pipeline_pb2, state_pb2, tensor_pb2, work_pb2

import bad_input_messages as messages
from bad_input_messages import Names
from raw_calls import duration, given, infer, train
from small_models import request_id

# What goes wrong, in the order of the page.
CLASSES = {
    "parts": "Many tiny parts",
    "elements": "Numbers of elements that overflow",
    "header": "Headers that lie",
    "outputs": "Outputs without end",
    "size": "Too large",
    "range": "Ranges",
    "path": "Names that are paths",
    "leak": "What an error tells",
    "role": "Another way in",
    "nesting": "Nesting",
    "compression": "Compression",
    "reserved": "Reserved keys and headers",
    "text": "Text that would forge a log or a file",
    "stream": "Streams out of order",
    "peer": "Peers that go away",
    "code": "Code as data",
    "model": "Model files",
    "handle": "Guessed handles",
    "metrics": "Names that would become metrics",
    "slow": "Slow peers",
    "flood": "Floods",
    "number": "Numbers",
    "twice": "Duplicates",
}


Messages = Iterable[Message | bytes]


@dataclasses.dataclass(frozen=True)
class Case:
    group: str  # of CLASSES
    what: str
    method: str  # of penstock.v1: Service/Method
    messages: Callable[[Names], Messages]
    code: str
    reason: str
    field: str = ""  # a part of it
    value: str = ""  # a part of the value, or of the message
    accepted: bool = False  # it is a call that fails in its turn, so the journal has it


def _one(make: Callable[[Names], Message | bytes]) -> Callable[[Names], Messages]:
    return lambda names: [make(names)]


INVALID, EXHAUSTED, RANGE = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE"
FAILED, MISSING = "FAILED_PRECONDITION", "NOT_FOUND"

INFER, EVALUATE = "WorkService/Infer", "WorkService/Evaluate"
FORWARD, BACKWARD = "WorkService/Forward", "WorkService/Backward"
CONTRIBUTE, STEP, TRAIN = "WorkService/ForwardBackward", "WorkService/OptimizerStep", "WorkService/TrainStep"
PUT, FETCH, SHARE = "HandleService/PutTensors", "HandleService/FetchHandle", "HandleService/ShareHandle"
CREATE, PLAN = "PipelineService/CreatePipeline", "PipelineService/PlanPipeline"
SAVE, COPY, RESTORE = "StateService/SaveCheckpoint", "StateService/CopyCheckpoint", "StateService/RestoreCheckpoint"
READ, BACK_UP = "StateService/ReadParameters", "JournalService/BackUpJournal"

SHAPES: dict[str, dict[str, Any]] = {
    "a shape of [2^62, 4]": {"shape": [1 << 62, 4]},
    "a shape of [-1, 16]": {"shape": [-1, 16]},
    "a shape of [2^32, 2^32, 0]": {"shape": [1 << 32, 1 << 32, 0]},
    "a shape whose product wraps to the right one": {"shape": [1 << 32, 1 << 32, 4, 16]},
}
LIES: dict[str, dict[str, Any]] = {
    "a byte more than the shape has": {"byte_size": 257},
    "a byte less than the shape has": {"byte_size": 255},
    "nine dimensions": {"shape": [1] * 7 + [4, 16]},
    "ten thousand dimensions": {"shape": [1] * 10_000},
}
PATHS = {
    "..": "..",
    "a path upwards": "../../etc/passwd",
    "a leading /": "/etc/passwd",
    "a leading -": "-rf",
    "NUL": "a\0b",
    "an empty segment": "a//b",
    "60,000 characters": "x" * 60_000,
}
FORGERIES = {"a newline": "a\nforged line", "an escape sequence": "a\x1b[31mred", "a carriage return": "a\rb"}


def _tensors(group: str, reason: str, what: str, changes: dict[str, Any]) -> list[Case]:
    """A tensor that comes as an input of each method that takes one."""
    return [
        Case(group, f"{what}: an input", INFER, _one(lambda n: infer(n.pipeline, given(**changes))), INVALID, reason,
             "inputs[0]"),
        Case(group, f"{what}: a target", CONTRIBUTE, _one(lambda n: messages.contribution(n.held, target=given("target", **changes))),
             INVALID, reason, "target"),
        Case(group, f"{what}: a weight of rows", TRAIN,
             _one(lambda n: train(n.pipeline, weights=given("weights", **changes))), INVALID, reason, "weights"),
        Case(group, f"{what}: a gradient", BACKWARD, _one(lambda n: messages.backward(n, given("output", **changes))), INVALID,
             reason, "gradients[0]"),
        Case(group, f"{what}: an upload", PUT,
             _one(lambda n: messages.put_start(n, given("x", **{"header_name": "x", **changes}).tensor.header)), INVALID, reason, "tensors[0]"),
        Case(group, f"{what}: a sample for planning", PLAN, _one(lambda _: messages.planning(**changes)), INVALID, reason,
             "sample.inputs[0]"),
    ]  # fmt: skip


def _names(group: str, what: str, name: str) -> list[Case]:
    """A name that comes where each kind of name does."""
    def case(where: str, method: str, make: Callable[[Names], Message], *named: str) -> Case:
        return Case(group, f"{what}: {where}", method, _one(make), INVALID, "NAME_INVALID", *named)

    return [
        case("a pipeline", "PipelineService/GetPipeline",
             lambda _: pipeline_pb2.GetPipelineRequest(name=f"pipelines/{name}"), "name"),
        case("a pipeline to make", CREATE, lambda _: messages.creation(name, spec=messages.mlp_spec()), "pipeline_id"),
        case("a pipeline of work", TRAIN, lambda _: train(f"pipelines/{name}"), "pipeline"),
        case("a checkpoint to save", SAVE, lambda n: messages.save(n, name), "checkpoint_id"),
        case("a checkpoint to restore", RESTORE,
             lambda n: messages.restore(name=f"{n.pipeline}/checkpoints/{name}"), "name"),
        case("a checkpoint to publish", "StateService/PublishCheckpoint",
             lambda n: state_pb2.PublishCheckpointRequest(
                 pipeline=n.pipeline, checkpoint_id=name, request_id=request_id()), "checkpoint_id"),
        case("a checkpoint to copy", COPY, lambda n: messages.copy(n, source=f"{n.pipeline}/checkpoints/{name}"), "source"),
        case("the copy of a checkpoint", COPY, lambda n: messages.copy(n, checkpoint_id=name), "checkpoint_id"),
        case("a checkpoint to read", READ,
             lambda n: state_pb2.ReadParametersRequest(checkpoint=f"{n.pipeline}/checkpoints/{name}"), "checkpoint"),
        case("a checkpoint to begin with", CREATE,
             lambda n: messages.creation(from_checkpoint=f"{n.pipeline}/checkpoints/{name}"), "from_checkpoint"),
        case("a handle", "HandleService/GetHandle",
             lambda n: handle_pb2.GetHandleRequest(name=f"{n.pipeline}/handles/{name}"), "name"),
    ]  # fmt: skip


def _range(method: str, what: str, make: Callable[[Names], Message | bytes], field: str, value: str = "") -> Case:
    return Case("range", what, method, _one(make), INVALID, "FIELD_INVALID", field, value)


PARTS = [
    Case("parts", "an upload in 100,000 chunks of a byte", PUT, messages.tiny_chunks, INVALID, "CHUNK_SIZE"),
    Case("parts", "a million unknown fields", INFER,
         _one(lambda n: infer(n.pipeline).SerializeToString() + b"\xf8\x7f\x01" * 1_000_000), INVALID, "FIELD_INVALID",
         "message", "at most 65536 entries"),
    Case("parts", "a million empty inputs", INFER,
         _one(lambda n: messages.field(1, n.pipeline.encode()) + b"\x12\0" * 1_000_000), INVALID,
         "FIELD_INVALID", "message", "at most 65536 entries"),
    Case("parts", "1,001 names", "HandleService/ReleaseHandles",
         _one(lambda n: handle_pb2.ReleaseHandlesRequest(names=[n.handle] * 1001)), INVALID, "FIELD_INVALID", "names", "1001"),
    Case("parts", "65 uploaded tensors", PUT,
         _one(lambda n: messages.put_start(n, *[messages.header(f"x{i}") for i in range(65)])), INVALID, "TENSOR_HEADER", "tensors", "65"),
]  # fmt: skip

OUTPUTS = [
    Case("outputs", f"{what}: {method.partition('/')[2]}", method, _one(lambda n, make=make, outputs=outputs: make(n, outputs)), INVALID,
         reason, "outputs")
    for what, outputs, reason in (
        ("an unknown output", ["nothing"], "TENSOR_SIGNATURE"),
        ("an output twice", ["output", "output"], "FIELD_INVALID"),
        ("65 outputs", ["output"] * 65, "FIELD_INVALID"),
    )
    for method, make in (
        (INFER, lambda n, outputs: infer(n.pipeline, outputs=outputs)),
        (FORWARD, lambda n, outputs: messages.forward(n, outputs=outputs)),
        (CONTRIBUTE, lambda n, outputs: messages.contribution(n.held, outputs=outputs)),
        (TRAIN, lambda n, outputs: train(n.pipeline, outputs=outputs)),
    )
]  # fmt: skip
OUTPUTS += [
    Case("outputs", "a million outputs", INFER,
         _one(lambda n: messages.field(1, n.pipeline.encode()) + b"\x1a\0" * 1_000_000), INVALID,
         "FIELD_INVALID", "message", "at most 65536 entries"),
    Case("outputs", "an unknown metric", EVALUATE, _one(lambda n: messages.evaluate(n, metrics=["beauty"])), INVALID,
         "FIELD_INVALID", "metrics", "beauty"),
    Case("outputs", "a metric twice", EVALUATE, _one(lambda n: messages.evaluate(n, metrics=["mean_absolute_error"] * 2)),
         INVALID, "FIELD_INVALID", "metrics"),
]  # fmt: skip

LIES_OF_ONE_METHOD = [
    Case("header", "a million dimensions", INFER, _one(lambda n: infer(n.pipeline, given(shape=[1] * 1_000_000))), INVALID,
         "TENSOR_HEADER", "shape", "1000000"),
    Case("header", "a start of 100,000 dimensions", PUT,
         _one(lambda n: messages.put_start(n, messages.header(shape=[1] * 100_000))), INVALID, "STREAM_PROTOCOL", "message"),
]  # fmt: skip

SIZES = [
    Case("size", "a tensor of 3 GB", PUT,
         _one(lambda n: messages.put_start(n, messages.header(shape=[750_000_000], byte_size=3_000_000_000))),
         EXHAUSTED, "TENSOR_TOO_LARGE", "tensors[0]", "3000000000"),
    Case("size", "five tensors of 1 GiB", PUT,
         _one(lambda n: messages.put_start(
             n, *[messages.header(f"x{i}", [1 << 28], 1 << 30) for i in range(5)])), EXHAUSTED, "TENSOR_TOO_LARGE"),
    Case("size", "a control message of 70,000 bytes", "PipelineService/GetPipeline",
         _one(lambda _: pipeline_pb2.GetPipelineRequest(name="pipelines/" + "x" * 70_000)), EXHAUSTED, "MESSAGE_TOO_LARGE"),
    Case("size", "a chunk of more than 1 MiB", PUT,
         lambda n: [messages.put_start(n, messages.header(shape=[1 << 19], byte_size=2 << 20)), messages.put_chunk(bytes((1 << 20) + 1))],
         INVALID, "CHUNK_SIZE"),
    Case("size", "a rate of learning that is a text of 100,000 characters", CREATE,
         _one(lambda _: messages.creation(spec=messages.with_optimizer_option("learning_rate", "9" * 100_000))), INVALID,
         "SPEC_INVALID", "learning_rate"),
]  # fmt: skip

RANGES = [
    Case("range", "an offset of 2^63 - 1", FETCH, _one(lambda n: messages.fetch(n, offset=2**63 - 1)), RANGE,
         "OFFSET_OUT_OF_RANGE", "offset", str(2**63 - 1)),
    _range(FETCH, "an offset of 2^64 - 1",
           lambda n: messages.fetch(n).SerializeToString() + messages.varint(3 << 3) + messages.varint(2**64 - 1), "offset", "-1"),
    _range(FETCH, "a limit of -1", lambda n: messages.fetch(n, limit=-1), "limit", "-1"),
    Case("range", "a planned step of 2^63 - 1", "InsightService/GetSchedule",
         _one(lambda n: insight_pb2.GetScheduleRequest(pipeline=n.pipeline, source=2, step=2**63 - 1)), RANGE, "STEP_NOT_RETAINED"),
    _range("InsightService/GetSchedule", "a step of -1",
           lambda n: insight_pb2.GetScheduleRequest(pipeline=n.pipeline, source=2, step=-1), "step", "-1"),
    _range("InsightService/GetSchedule", "an unknown source",
           lambda n: insight_pb2.GetScheduleRequest(pipeline=n.pipeline, source=99), "source", "99"),
    Case("range", "steps of a trace up to 2^63 - 1", "InsightService/ExportTrace",
         _one(lambda n: insight_pb2.ExportTraceRequest(pipeline=n.pipeline, first_step=2**63 - 2, last_step=2**63 - 1)), RANGE,
         "STEP_NOT_RETAINED"),
    _range("InsightService/ExportTrace", "a first step of -1",
           lambda n: insight_pb2.ExportTraceRequest(pipeline=n.pipeline, first_step=-1), "first_step", "-1"),
    _range("InsightService/ExportTrace", "2^31 - 1 steps to record",
           lambda n: insight_pb2.ExportTraceRequest(pipeline=n.pipeline, steps=2**31 - 1), "steps", str(2**31 - 1)),
    _range("InsightService/ExportTrace", "an unknown format",
           lambda n: insight_pb2.ExportTraceRequest(pipeline=n.pipeline, format=99), "format", "99"),
    _range("InsightService/WatchStatistics", "an interval of a millisecond",
           lambda n: insight_pb2.WatchStatisticsRequest(pipeline=n.pipeline, interval=duration(0, 1_000_000)), "interval"),
    _range("InsightService/WatchStatistics", "-1 updates",
           lambda n: insight_pb2.WatchStatisticsRequest(pipeline=n.pipeline, interval=duration(1), max_updates=-1), "max_updates", "-1"),
    Case("range", "chunks of a byte", READ, _one(lambda n: state_pb2.ReadParametersRequest(pipeline=n.pipeline, chunk_size=1)), INVALID,
         "CHUNK_SIZE", "chunk_size", "1"),
    _range(SAVE, "-1 checkpoints to keep", lambda n: messages.save(n, "x", keep=-1), "keep", "-1"),
    _range("HandleService/WaitHandles", "an unknown mode",
           lambda n: handle_pb2.WaitHandlesRequest(names=[n.handle], mode=99), "mode", "99"),
    _range(SHARE, "a recipient of no name", lambda n: handle_pb2.ShareHandleRequest(name=n.handle), "recipient"),
    _range(SHARE, "a recipient of 300 characters",
           lambda n: handle_pb2.ShareHandleRequest(name=n.handle, recipient="x" * 300), "recipient"),
    _range(SHARE, "a lease of a day",
           lambda n: handle_pb2.ShareHandleRequest(name=n.handle, recipient="bob", lease=duration(86400)), "lease"),
    _range("AdminService/SetLogLevel", "an unknown level of the log", lambda _: admin_pb2.SetLogLevelRequest(level=99), "level", "99"),
    _range(STEP, "an unknown action", lambda n: messages.step(n, action=99), "action", "99"),
    _range(FORWARD, "an unknown mode of Forward", lambda n: messages.forward(n, mode=99), "mode", "99"),
]  # fmt: skip
LISTS: list[tuple[str, Callable[..., Message], Callable[[Names], dict[str, str]]]] = [
    ("PipelineService/ListPipelines", pipeline_pb2.ListPipelinesRequest, lambda _: {}),
    ("HandleService/ListHandles", handle_pb2.ListHandlesRequest, lambda n: {"parent": n.pipeline}),
    ("StateService/ListCheckpoints", state_pb2.ListCheckpointsRequest, lambda n: {"parent": n.pipeline}),
    ("JournalService/ListJournalCalls", journal_pb2.ListJournalCallsRequest, lambda n: {"pipeline": n.pipeline}),
    ("JournalService/GetHistory", journal_pb2.GetHistoryRequest, lambda n: {"pipeline": n.pipeline}),
    ("InsightService/GetSchedule", insight_pb2.GetScheduleRequest, lambda n: {"pipeline": n.pipeline}),
]
for method, request, of in LISTS:
    called = method.partition("/")[2]
    RANGES += [
        _range(method, f"a page of -1: {called}", lambda n, r=request, of=of: r(page_size=-1, **of(n)), "page_size", "-1"),
        Case("range", f"a page that is made up: {called}", method, _one(lambda n, r=request, of=of: r(page_token="x" * 40, **of(n))),
             INVALID, "PAGE_TOKEN_INVALID", "page_token"),
    ]  # fmt: skip

FOLDERS = [
    Case("path", f"a folder of a copy: {what}", BACK_UP, _one(lambda _, folder=folder: journal_pb2.BackUpJournalRequest(folder=folder)),
         code, reason, "folder")
    for what, folder, code, reason in (
        ("a relative path", "copies/x", INVALID, "FIELD_INVALID"),
        ("nothing", "", INVALID, "FIELD_INVALID"),
        ("NUL", "/a\0b", INVALID, "FIELD_INVALID"),
        ("a folder that is there", "/proc", INVALID, "FIELD_INVALID"),
        ("60,000 characters", "/" + "x" * 60_000, INVALID, "FIELD_INVALID"),
    )
]  # fmt: skip
PROGRAMS = [
    Case("path", f"a model's file: {what}", CREATE,
         _one(lambda _, name=name: messages.creation(spec=pipeline_pb2.PipelineSpec(model=pipeline_pb2.ModelSpec(program=name)))),
         INVALID, "SPEC_INVALID", "program")
    for what, name in (("a path upwards", "../x.pt2"), ("a leading /", "/etc/x.pt2"), ("NUL", "a\0.pt2"), ("a newline", "a\n.pt2"))
]  # fmt: skip

TEXTS = [
    *(Case("text", f"{what}: a request id", TRAIN, _one(lambda n, t=text: train(n.pipeline, request_id=request_id()[:-9] + t)),
           INVALID, "FIELD_INVALID", "request_id") for what, text in FORGERIES.items()),
    *(Case("text", f"{what}: an unknown model", CREATE,
           _one(lambda _, t=text: messages.creation(spec=pipeline_pb2.PipelineSpec(model=pipeline_pb2.ModelSpec(name=t)))), MISSING,
           "MODEL_NOT_FOUND", "model") for what, text in FORGERIES.items()),
    *(Case("text", f"{what}: a parameter", READ,
           _one(lambda n, t=text: state_pb2.ReadParametersRequest(pipeline=n.pipeline, names=[t])), MISSING, "PARAMETER_NOT_FOUND")
      for what, text in FORGERIES.items()),
    Case("text", "bytes that are no UTF-8", "PipelineService/GetPipeline", _one(lambda _: messages.field(1, b"pipelines/\xff\xfe")),
         INVALID, "FIELD_INVALID", "message"),
]  # fmt: skip

STREAMS = [
    Case("stream", "an upload that does not begin", PUT, lambda _: [], INVALID, "STREAM_PROTOCOL"),
    Case("stream", "an upload that begins with a chunk", PUT, lambda _: [messages.put_chunk(bytes(16))], INVALID, "STREAM_PROTOCOL"),
    Case("stream", "an empty message", PUT, lambda _: [b""], INVALID, "STREAM_PROTOCOL"),
    Case("stream", "an upload that begins twice", PUT, lambda n: [messages.put_start(n)] * 2, INVALID, "STREAM_PROTOCOL"),
    Case("stream", "an end before the last byte", PUT, lambda n: [messages.put_start(n), messages.put_chunk(bytes(8))], INVALID, "CHUNK_SIZE"),
    Case("stream", "a gap between chunks", PUT, lambda n: [messages.put_start(n), messages.put_chunk(bytes(8), 8)], INVALID, "CHUNK_SIZE"),
    Case("stream", "bytes that are no message in mid-stream", PUT, lambda n: [messages.put_start(n), b"\xff" * 100], INVALID, "FIELD_INVALID", "message"),
    Case("stream", "a chunk that was damaged on the way", PUT,
         lambda n: [messages.put_start(n), messages.put_chunk(bytes(16), checksum=1)], "DATA_LOSS", "CHUNK_CHECKSUM"),
]  # fmt: skip

NESTED = [
    Case("nesting", "10,000 groups", INFER, _one(lambda _: b"\x0b" * 10_000), INVALID, "FIELD_INVALID", "message", "unknown kind"),
    Case("nesting", "lists in 10,000 lists", INFER, _one(messages.nested_value), INVALID, "FIELD_INVALID", "message", "at most 100 deep"),
    Case("nesting", "layers in 10,000 layers", CREATE, _one(messages.nested_layers), INVALID, "FIELD_INVALID", "message", "at most 100 deep"),
]

GUESSES = [
    Case("handle", f"{what}: {method.partition('/')[2]}", method, _one(lambda n, make=make, guess=guess: make(n, guess(n))), code, reason)
    for what, guess, code, reason in (
        ("a guessed handle", lambda n: n.handle[:-32] + "0" * 32, MISSING, "HANDLE_NOT_FOUND"),
        ("a handle of an earlier life", lambda n: f"{n.pipeline}/handles/00000000-{'0' * 32}", FAILED, "EPOCH_MISMATCH"),
        ("a malformed handle", lambda n: f"{n.pipeline}/handles/1-2", INVALID, "NAME_INVALID"),
    )
    for method, make in (
        ("HandleService/GetHandle", lambda _, name: handle_pb2.GetHandleRequest(name=name)),
        (FETCH, lambda _, name: handle_pb2.FetchHandleRequest(name=name)),
        (SHARE, lambda _, name: handle_pb2.ShareHandleRequest(name=name, recipient="bob")),
        (INFER, lambda n, name: infer(n.pipeline, tensor_pb2.Input(name="input", handle=tensor_pb2.HandleTensor(handle=name)))),
        (BACKWARD, lambda n, name: messages.backward(n, given("output"), graph=name)),
        ("StateService/WriteParameters",
         lambda n, name: state_pb2.WriteParametersRequest(pipeline=n.pipeline, handles=[name], request_id=request_id())),
    )
]  # fmt: skip

NUMBERS = [
    *(Case("number", f"{what}: {name}", INFER,
           _one(lambda n, name=name, d=value: infer(n.pipeline, reply=work_pb2.ReplyOptions(**{name: d}))), INVALID, "FIELD_INVALID", name)
      for what, value in (("-1 s", duration(-1)), ("2^63 - 1 s", duration(2**63 - 1)), ("2^31 - 1 ns more", duration(1, 2**31 - 1)))
      for name in ("wait_for", "work_timeout", "lease")),
    *(Case("number", f"{value}: {name}", STEP, _one(lambda n, name=name, v=value: messages.step(n, **{name: v})), INVALID,
           "FIELD_INVALID", name, f"{value:g}")
      for value in (math.nan, math.inf, -1.0) for name in ("learning_rate", "clip_norm")),
    *(Case("number", f"{value}: total_rows", CONTRIBUTE, _one(lambda n, v=value: messages.contribution(n.held, total_rows=v)), INVALID,
           "FIELD_INVALID", "total_rows", str(value)) for value in (0, -1, 3)),
    *(Case("number", f"{value}: total_elements", CONTRIBUTE, _one(lambda n, v=value: messages.contribution(n.held, total_elements=v)),
           INVALID, "FIELD_INVALID", "total_elements") for value in (0.0, math.nan, math.inf, -1.0)),
    *(Case("number", f"{value}: micro_batches", CONTRIBUTE, _one(lambda n, v=value: messages.contribution(n.held, micro_batches=v)),
           INVALID, "FIELD_INVALID", "micro_batches", str(value)) for value in (0, -1, 2**31 - 1)),
    Case("number", "-1 s: accumulation_lease", CONTRIBUTE,
         _one(lambda n: messages.contribution(n.held, accumulation_lease=duration(-1))), INVALID, "FIELD_INVALID", "accumulation_lease", "-1"),
    Case("number", "-1: step", "StateService/WriteParameters",
         _one(lambda n: state_pb2.WriteParametersRequest(pipeline=n.pipeline, step=-1, request_id=request_id())), INVALID,
         "FIELD_INVALID", "step", "-1"),
    Case("number", "NaN: planning_seconds", CREATE,
         _one(lambda _: messages.creation(spec=messages.mlp_spec(planning_seconds=math.nan))), INVALID, "SPEC_INVALID", "planning_seconds",
         "nan"),
]  # fmt: skip

DUPLICATES = [
    Case("twice", "a request id for another payload", CONTRIBUTE,
         _one(lambda n: messages.contribution(n.held, request_id=n.used, total_rows=400)), INVALID, "REQUEST_ID_REUSED"),
    Case("twice", "a call for a state that is over", TRAIN, _one(lambda n: train(n.pipeline, expected_state="of another time")), FAILED,
         "STATE_MISMATCH"),
    Case("twice", "a change without a request id", STEP, _one(lambda n: messages.step(n, identifier="")), INVALID, "REQUEST_ID_MISSING",
         "request_id"),
    Case("twice", "a name that is taken", CREATE, _one(lambda n: messages.creation("victim", spec=messages.mlp_spec())), "ALREADY_EXISTS",
         "PIPELINE_EXISTS"),
    Case("twice", "a checkpoint that is there", SAVE, _one(lambda n: messages.save(n, n.checkpoint.rpartition("/")[2])), "ALREADY_EXISTS",
         "CHECKPOINT_EXISTS", accepted=True),
]  # fmt: skip

CASES = [
    *PARTS,
    *(case for what, changes in SHAPES.items() for case in _tensors("elements", "TENSOR_HEADER", what, changes)),
    *(case for what, changes in LIES.items() for case in _tensors("header", "TENSOR_HEADER", what, changes)),
    *LIES_OF_ONE_METHOD,
    *OUTPUTS,
    *SIZES,
    *RANGES,
    *(case for what, name in PATHS.items() for case in _names("path", what, name)),
    *FOLDERS,
    *PROGRAMS,
    *NESTED,
    *(case for what, name in FORGERIES.items() for case in _names("text", what, name)),
    *TEXTS,
    *STREAMS,
    *GUESSES,
    *NUMBERS,
    *DUPLICATES,
]

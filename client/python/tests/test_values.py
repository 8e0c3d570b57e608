"""Values that are no tensors: without a daemon."""

from __future__ import annotations

from typing import Any

import numpy as np
import penstock
import pytest

from penstock import tensors, values
from penstock.download import Download
from penstock.errors import PenstockError
from penstock.inputs import Prepared
from penstock.v1 import handle_pb2, tensor_pb2


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return value


def there_and_back(value: Any) -> Any:
    """As a model that gives its input back would do it."""
    prepared = Prepared({"x": value})
    (message,) = prepared.messages()
    assert message.WhichOneof("source") == "value", message
    return values.decode(renamed(message.value, prepared), prepared.arrays)


def renamed(value: tensor_pb2.Value, prepared: Prepared) -> tensor_pb2.Value:
    """What the daemon answers: tensors inside by their names."""
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        return tensor_pb2.Value(handle=tensor_pb2.HandleTensor(tensor=value.tensor.header.name))
    made = tensor_pb2.Value()
    made.CopyFrom(value)
    for items in (made.list.items, made.tuple.items) if kind in ("list", "tuple") else ():
        for item in items:
            item.CopyFrom(renamed(item, prepared))
    for entry in made.dict.entries if kind == "dict" else ():
        entry.value.CopyFrom(renamed(entry.value, prepared))
    return made


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        penstock.Plain(3),
        penstock.Plain(True),
        penstock.Plain(0.5),
        penstock.Plain([]),
        penstock.Plain(()),
        {},
        [None, 1],
        ["a", ["b"]],
        penstock.Plain([1, 2]),
        {"a": 1, "b": {"c": [None, (True, -(2**63))]}, "": 2.5},
    ],
)
def test_values_go_there_and_back(value: Any) -> None:
    plain = value.value if isinstance(value, penstock.Plain) else value
    back = there_and_back(value)
    assert back == plain and type(back) is type(plain)


def test_arrays_inside_of_values() -> None:
    rows, more = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, np.int64)
    back = there_and_back({"cache": [rows, (more, None)], "count": np.int64(3), "rate": np.float32(0.5)})
    assert np.array_equal(back["cache"][0], rows) and np.array_equal(back["cache"][1][0], more)
    assert back["cache"][1][1] is None and back["count"] == 3 and back["rate"] == 0.5
    large = np.zeros((1 << 20, 1), np.float32)
    prepared = Prepared({"x.0": rows, "x": [None, large, rows]})
    assert prepared.too_large and list(prepared.arrays) == ["x.0", "x.1", "x.2"]
    assert list(Prepared({"x": [None, rows], "x.0": rows}).arrays) == ["x.1", "x.0"], "the names of inputs that follow, too"
    by_name, by_place = prepared.messages(["pipelines/p/handles/h"])
    assert by_name.handle.tensor == "x.0"
    assert [item.handle.tensor for item in by_place.value.list.items] == ["", "x.1", "x.2"]


class Counted(dict[str, Any]):
    """A dictionary that counts how often it is asked."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def test_names_of_arrays_inside_are_found_in_one_go() -> None:
    prepared = Prepared({"x.1": ROWS})
    prepared.arrays = Counted(prepared.arrays)
    prepared._fill(tensor_pb2.Input(name="x"), [None, *[ROWS] * 100], None)
    assert list(prepared.arrays) == ["x.1", "x.0", *(f"x.{number}" for number in range(2, 101))]
    assert prepared.arrays.asked <= 101


ROWS = np.ones(1, np.float32)
itself: list[Any] = [1]
itself.append(itself)


@pytest.mark.parametrize(
    ("value", "error", "sentence"),
    [
        ({1: "a"}, TypeError, "x: keys must be strings, got 1"),
        (penstock.Plain(2**63), ValueError, "x: must be an integer of 64 bits, got 9223372036854775808"),
        (penstock.Plain([10**5000]), ValueError, r"x\[0\]: must be an integer of 64 bits, got one of 16610 bits"),
        ([10**5000], ValueError, "x: must be numbers of at most 64 bits, got one of 16610 bits"),
        pytest.param(
            *(penstock.Plain([np.longdouble("1e4000")]), ValueError, r"x\[0\]: must fit float64, got 1e\+4000"),
            marks=pytest.mark.skipif(np.isinf(np.longdouble("1e4000")), reason="longdouble is float64 here"),
        ),
        (penstock.Plain({"a": [2**64]}), ValueError, r"x\['a'\]\[0\]: must be an integer of 64 bits"),
        (penstock.Plain({"a": object()}), TypeError, r"x\['a'\]: can't be sent, got object"),
        (penstock.Plain(nested(17)), ValueError, "x: must be nested at most 16 deep"),
        (penstock.Plain({"a": np.array(["text"])}), TypeError, "elements of type .* can't be sent"),
        ("\ud800", ValueError, "x: must be text that UTF-8 can have"),
        ({"a": {"\ud800": 1}}, ValueError, r"x\['a'\]: must be text that UTF-8 can have"),
        (itself, ValueError, "x: must be nested at most 16 deep"),
        ([[1, 2], [3]], ValueError, "x: is no array"),
        ([1, object()], TypeError, "x: an array has numbers of one type, got <object"),
    ],
)
def test_what_is_no_value_is_named(value: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Prepared({"x": value}).messages()
    assert Prepared({"x": penstock.Plain(nested(16))}).messages()


# --- results ----------------------------------------------------------------------------------------------------------


def handle_of(arrays: dict[str, np.ndarray], **named: tensor_pb2.Value) -> handle_pb2.Handle:
    return handle_pb2.Handle(
        name="pipelines/p/handles/h",
        tensors=[tensors.header_of(name, array) for name, array in arrays.items()],
        values=list(named),
    )


def test_a_download_asks_for_values_then_tensors() -> None:
    rows = np.arange(3, dtype=np.int64)
    state = tensor_pb2.Value()
    state.list.items.add().handle.tensor = "state.0"
    state.list.items.add()
    download = Download(handle_of({"state.0": rows}, count=tensor_pb2.Value(), state=state))
    for name, value in (("count", tensor_pb2.Value(int_value=3)), ("state", state)):
        request = download.start_stream()
        assert request is not None and request.tensor == name
        with pytest.raises(PenstockError, match=f"the stream ended without {name}"):
            download.end_stream()
        named = tensor_pb2.NamedValue(name=name, value=value)
        download.accept(handle_pb2.FetchHandleResponse(value=named))
        if name == "count":
            download.end_stream()  # that of `state` breaks off
    request = download.start_stream()
    assert request is not None and request.tensor == "state.0"
    with pytest.raises(PenstockError, match="the stream ended at 0"):
        download.end_stream()
    download._done[0] = rows.nbytes  # as if its chunks had come
    download._arrays[0][:] = rows
    assert download.request() is None
    results = download.results()
    assert list(results) == ["count", "state"] and results["count"] == 3
    assert np.array_equal(results["state"][0], rows) and results["state"][1] is None

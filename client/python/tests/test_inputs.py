"""What calls take: arrays, handles, whole and plain values, targets; and arguments that they have not."""

from __future__ import annotations

import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_whole_tensors_and_plain_values(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    handle = pipeline.put({"a": ROWS})
    large = np.random.default_rng(0).random((300_000, 4), np.float32)
    values = {
        "input": ROWS,
        "whole": penstock.Whole(ROWS),
        "kept": penstock.Whole((handle, "a")),
        "large": penstock.Whole(large),
        "flag": penstock.Plain(True),
        "count": penstock.Plain(3),
        "rate": penstock.Plain(0.5),
        "word": "yes",
        "nothing": None,
        "number": 3,
    }
    pipeline.infer(values)
    sent = {entry.name: entry for entry in daemon.requests["Infer"][0].inputs}
    assert list(sent) == list(values)
    assert [name for name, entry in sent.items() if entry.whole] == ["whole", "kept", "large"]
    assert sent["kept"].handle.handle == handle.name and sent["large"].HasField("handle")
    plain = {name: entry.value.WhichOneof("kind") for name, entry in sent.items() if entry.HasField("value")}
    assert plain == {
        "flag": "bool_value",
        "count": "int_value",
        "rate": "double_value",
        "word": "string_value",
        "nothing": None,
    }
    assert sent["flag"].value.bool_value and sent["count"].value.int_value == 3
    assert sent["rate"].value.double_value == 0.5 and sent["word"].value.string_value == "yes"
    for array in (ROWS, handle):
        with pytest.raises(TypeError, match="input: Plain is for what is no tensor by itself"):
            pipeline.infer({"input": penstock.Plain(array)})


def test_infer_by_name_equals_infer_of_the_only_input(pipeline: penstock.Pipeline) -> None:
    assert np.array_equal(pipeline.infer({"input": ROWS})["output"], pipeline.infer(ROWS)["output"])


def test_handles_are_inputs(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    handle = pipeline.put({"a": ROWS, "b": ROWS + 1})
    assert np.array_equal(pipeline.infer((handle, "b"))["output"], 2 * (ROWS + 1))
    first = pipeline.submit_infer(ROWS)
    assert np.array_equal(pipeline.infer(first)["output"], 4 * ROWS)


def test_weights_go_with_the_target(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    weights = np.array([0.5, 2], np.float32)
    pipeline.train_step(ROWS, ROWS, weights=weights, loss="cross_entropy", class_weights=[1, 2])
    pipeline.forward_backward(ROWS, ROWS, weights=weights, total_elements=2.5)
    for method in ("TrainStep", "ForwardBackward"):
        request = daemon.requests[method][0]
        assert [one.name for one in request.inputs] == ["input"] and request.target.name == "target"
        assert np.frombuffer(request.weights.tensor.data, np.float32).tolist() == [0.5, 2]
    assert daemon.requests["ForwardBackward"][0].total_elements == 2.5
    assert list(daemon.requests["TrainStep"][0].loss.class_weights) == [1, 2]
    with pytest.raises(ValueError, match="name it"):
        pipeline.train_step(ROWS, ROWS, class_weights=[1, 2])


def test_a_target_among_the_inputs_is_refused(pipeline: penstock.Pipeline) -> None:
    with pytest.raises(ValueError, match="twice"):
        pipeline.train_step({"input": ROWS, "target": ROWS}, ROWS)


@pytest.mark.parametrize("method", ["infer", "submit_infer", "train_step", "submit_train_step"])
def test_an_argument_that_a_call_has_not_is_refused_before_anything_is_sent(
    pipeline: penstock.Pipeline, daemon: FakeDaemon, method: str
) -> None:
    with pytest.raises(TypeError, match="wait: no argument of this call, got False"):
        getattr(pipeline, method)(np.zeros((1 << 18, 4), np.float32), wait=False)  # 4 MiB: uploaded
    assert not {"PutStart", "Infer", "TrainStep"} & set(daemon.requests)

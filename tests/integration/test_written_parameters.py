"""WriteParameters: weights and optimizer state go into a pipeline, wholly or not at all."""

from __future__ import annotations

import pathlib

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import state_pb2

from daemon_process import Daemon, eventually
from raw_calls import INVALID, Raw, refused
from small_models import create_gpt, create_mlp, differing, gpt_batch, mlp_batch, request_id, state_of

Code = grpc.StatusCode


def write(raw: Raw, pipeline: penstock.Pipeline, *handles: str, **fields: object) -> state_pb2.WriteParametersResponse:
    request = state_pb2.WriteParametersRequest(
        pipeline=pipeline.name,
        handles=handles,
        **{"request_id": request_id(), **fields},  # type: ignore[arg-type]
    )
    return raw.unary("StateService/WriteParameters", request, state_pb2.WriteParametersResponse)


def test_a_state_that_goes_into_another_pipeline_trains_on_as_there(client: penstock.Client) -> None:
    """Other seed, cut and schedule; with dropout, which follows the step."""
    source = create_gpt(client, dropout=0.1, learning_rate_schedule="warmup_cosine", warmup_steps=3, total_steps=9)
    target = create_gpt(
        client,
        dropout=0.1,
        learning_rate_schedule="warmup_cosine",
        warmup_steps=3,
        total_steps=9,
        balance=[1, len(source.plan.layers) - 1],
        stages=0,
        schedule="gpipe",
    )
    for step in range(2):
        source.train_step(*gpt_batch(step))
    everything = source.read_parameters(include_optimizer_state=True)
    assert target.write_parameters(everything, step=everything.step) == 2
    assert target.refresh().step == 2 and not differing(state_of(target), state_of(source))
    for step in range(2, 4):
        assert target.train_step(*gpt_batch(step)).loss == source.train_step(*gpt_batch(step)).loss
    assert not differing(state_of(target), state_of(source))


def test_a_part_is_written_and_the_rest_stays(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    pipeline = create_mlp(client)
    pipeline.train_step(*mlp_batch(0))
    before = state_of(pipeline)
    name, array = next(iter(pipeline.read_parameters().items()))
    pipeline.write_parameters({name: array + 1})
    assert differing(state_of(pipeline), before) == [name]
    assert pipeline.refresh().step == 1
    assert np.array_equal(pipeline.read_parameters([name])[name], array + 1)
    pipeline.write_parameters({})
    pipeline.save_safetensors(tmp_path / "all", include_optimizer_state=True)
    trained = state_of(pipeline)
    pipeline.train_step(*mlp_batch(1))
    pipeline.load_safetensors(tmp_path / "all", step=1)
    assert not differing(state_of(pipeline), trained) and pipeline.refresh().step == 1
    eventually(lambda: not pipeline.handles())  # what was uploaded is released in the background


def test_what_is_refused_changes_nothing(client: penstock.Client, raw: Raw, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    pipeline.train_step(*mlp_batch(0))
    before = state_of(pipeline)
    weights = dict(pipeline.read_parameters())
    first, second = list(weights)[:2]
    good = {first: weights[first] + 1}

    def writing(arrays: dict[str, np.ndarray]) -> None:
        pipeline.write_parameters({**good, **arrays})

    absent = refused(lambda: writing({"absent": weights[first]}), Code.NOT_FOUND, "PARAMETER_NOT_FOUND")
    assert absent.message == "the pipeline has no parameter of this name, got absent"
    refused(lambda: writing({second: np.zeros(3, np.float32)}), INVALID, "TENSOR_SIGNATURE", second)
    refused(lambda: writing({second: weights[second].astype(np.float64)}), INVALID, "TENSOR_SIGNATURE", second)
    refused(lambda: writing({f"optimizer/{first}/absent": weights[first]}), Code.NOT_FOUND, "PARAMETER_NOT_FOUND")
    with pipeline.put(good) as held:
        twice = refused(lambda: write(raw, pipeline, held.name, held.name), Code.INVALID_ARGUMENT, "FIELD_INVALID")
        assert twice.message == f"handles[1]: names a parameter twice, got {first}"
        for step in (-1, 2**52 + 1, 2**63 - 1):
            refused(lambda: write(raw, pipeline, held.name, step=step), INVALID, "FIELD_INVALID", "step")
        refused(lambda: write(raw, pipeline, held.name, request_id=""), INVALID, "REQUEST_ID_MISSING")
        other = Raw(daemon.address, caller="stranger")
        refused(lambda: write(other, pipeline, held.name), Code.NOT_FOUND, "HANDLE_NOT_FOUND")
        other.close()
    refused(lambda: write(raw, pipeline, held.name), Code.NOT_FOUND, "HANDLE_RELEASED")
    refused(lambda: write(raw, pipeline, "nonsense"), INVALID, "NAME_INVALID")
    refused(lambda: write(raw, pipeline, *[held.name] * 4097), INVALID, "FIELD_INVALID", "handles")
    _, graph = pipeline.forward(mlp_batch(0)[0])
    refused(lambda: write(raw, pipeline, graph.name), INVALID, "HANDLE_KIND")
    assert not differing(state_of(pipeline), before)


def test_contributions_and_graphs(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    inputs, target = mlp_batch(0)
    weights = dict(pipeline.read_parameters())
    pipeline.forward_backward(inputs, target)
    refused(lambda: pipeline.write_parameters(weights), Code.FAILED_PRECONDITION, "ACCUMULATION_OPEN")
    assert pipeline.write_parameters(weights, force=True) == 0
    refused(pipeline.optimizer_step, Code.FAILED_PRECONDITION, "ACCUMULATION_EMPTY")
    outputs, graph = pipeline.forward(inputs)
    gradients = outputs.fetch()
    pipeline.write_parameters(weights)
    refused(lambda: pipeline.backward(graph, gradients), Code.FAILED_PRECONDITION, "GRAPH_STALE")
    assert pipeline.train_step(inputs, target).step == 1


def test_a_retry_is_answered_and_not_done_again(client: penstock.Client, raw: Raw) -> None:
    pipeline = create_mlp(client)
    weights = dict(pipeline.read_parameters())
    with pipeline.put({name: array * 0 for name, array in list(weights.items())[:3]}) as held:
        again = request_id()
        first = write(raw, pipeline, held.name, request_id=again, step=5)
        pipeline.train_step(*mlp_batch(0))
        assert write(raw, pipeline, held.name, request_id=again, step=5) == first
        assert pipeline.refresh().step == 6
        refused(lambda: write(raw, pipeline, held.name, request_id=again, step=7), INVALID, "REQUEST_ID_REUSED")


@pytest.mark.parametrize("mode", ["loads", "refuses"])
def test_load_state_dict_is_strict(client: penstock.Client, mode: str) -> None:
    pipeline = create_mlp(client)
    state = dict(pipeline.state_arrays())
    if mode == "loads":
        pipeline.load_state_dict({name: array * 0 for name, array in state.items()})
        assert not any(array.any() for array in pipeline.read_parameters().values())
        return
    state.pop(next(iter(state)))
    with pytest.raises(ValueError, match="missing"):
        pipeline.load_state_dict(state)
    pipeline.load_state_dict(state, strict=False)

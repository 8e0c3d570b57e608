"""Types that arrays are given, labels of batches, and tensors of PyTorch: without a daemon."""

from __future__ import annotations

from typing import Any

import numpy as np
import penstock
import pytest

from penstock import requests, tensors
from penstock.casting import cast
from penstock.v1 import pipeline_pb2, tensor_pb2


def signature(name: str, dtype: str) -> tensor_pb2.TensorSignature:
    return tensor_pb2.TensorSignature(name=name, type=f"DATA_TYPE_{dtype}", shape=[-1])


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wanted", "dtype"),
    [
        ([1, 2], "INT64", np.int64),
        ([1, 2], "INT32", np.int32),
        ([0, 255], "UINT8", np.uint8),
        ([True, False], "BOOL", np.bool_),
        ([True, False], "INT64", np.int64),
        ([1, 2.5], "FP32", np.float32),
        ([1, 2], "FP32", np.float32),
        ([[0.1]], "FP16", np.float16),
        ([], "INT64", np.int64),
        (3, "INT64", np.int64),
        (0.5, "FP32", np.float32),
        (np.array([0.1, np.nan, np.inf]), "FP32", np.float32),
        (np.arange(3), "FP32", np.float32),
        (np.arange(3, dtype=np.int32), "INT64", np.int64),
        (np.arange(3), "INT8", np.int8),
        (np.ones(2, np.float32), "FP64", np.float64),
        (np.ones(2, np.float16), "FP32", np.float32),
    ],
)
def test_arrays_get_the_type_of_the_signature(value: Any, wanted: str, dtype: type) -> None:
    made = cast("x", value, signature("x", wanted))
    assert made.dtype == dtype
    assert np.array_equal(made, np.asarray(value).astype(dtype), equal_nan=made.dtype.kind == "f")


@pytest.mark.parametrize(
    ("value", "wanted", "error", "sentence"),
    [
        ([1.5, 2.0], "INT64", TypeError, "x: must be of int64, got 1.5 of float64"),
        ([1.0, 2.0], "INT64", TypeError, "x: must be of int64, got 1.0"),
        ([float("nan")], "INT64", TypeError, "x: must be of int64, got nan"),
        (np.ones(2, np.float32), "INT32", TypeError, "x: must be of int32, got 1.0 of float32"),
        ([1, 2**31], "INT32", ValueError, "x: must fit int32, got 2147483648"),
        ([1, 2**70], "INT64", ValueError, f"x: must be numbers of at most 64 bits, got {2**70}"),
        ([257], "BF16", ValueError, "x: must fit bfloat16, got 257"),
        (np.array([-300]), "BF16", ValueError, "x: must fit bfloat16, got -300"),
        ([-1], "UINT8", ValueError, "x: must fit uint8, got -1"),
        ([2**24 + 1], "FP32", ValueError, "x: must fit float32, got 16777217"),
        ([1e39], "FP32", ValueError, r"x: must fit float32, got 1e\+39"),
        (np.array([0.5, -7e4]), "FP16", ValueError, "x: must fit float16, got -70000"),
    ],
)
def test_what_would_be_lost_is_refused(value: Any, wanted: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        cast("x", value, signature("x", wanted))


def test_what_is_the_givers_to_round_is_left_to_the_daemon() -> None:
    single = np.ones(2, np.float32)
    assert cast("x", single, signature("x", "BF16")).dtype == np.float32
    assert cast("x", single, signature("x", "FP16")).dtype == np.float32
    assert cast("x", [1, 2], signature("x", "BOOL")).dtype == np.int64
    assert cast("x", [0.5], None).dtype == np.float64
    assert cast("x", [0.5], tensor_pb2.TensorSignature(any=True)).dtype == np.float64


def test_lists_of_numbers_as_bfloat16() -> None:
    given = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, -2.5, 3e38, float("inf"), float("nan"), 1e-40]
    made = cast("x", given, signature("x", "BF16"))
    assert made.dtype == tensors.BFLOAT16 and made.shape == (10,)
    bits = made.view("<u2").tolist()
    # To even: 1 + 2^-8 becomes 1, 1 + 3 * 2^-8 becomes 1 + 2^-6.
    assert bits[:5] == [0x0000, 0x8000, 0x3F80, 0x3F80, 0x3F82] and bits[5] == 0xC020
    assert bits[6] == 0x7F62 and bits[7] == 0x7F80 and bits[8] == 0x7FC0 and bits[9] == 0x0001
    with pytest.raises(ValueError, match="x: must fit bfloat16"):
        cast("x", [3.4e38], signature("x", "BF16"))


def test_bfloat16_widens() -> None:
    given = [0.0, -2.5, 0.00390625, 3e38, float("inf"), float("nan")]
    halves = cast("x", [given, given], signature("x", "BF16"))
    for name, dtype in (("FP32", np.float32), ("FP64", np.float64)):
        made = cast("x", halves[:, ::-1], signature("x", name))
        assert made.dtype == dtype and made.shape == (2, 6)
        assert made[1, 5] == 0 and made[0, 4] == -2.5 and made[0, 3] == 2**-8 and made[0, 2] == 0xE2 * 2.0**120
        assert np.isinf(made[0, 1]) and np.isnan(made[0, 0])
    assert cast("x", halves, signature("x", "FP16")) is halves and cast("x", halves, signature("x", "INT64")) is halves
    assert cast("x", halves[0, 1:2].reshape(()), signature("x", "FP32")) == -2.5


# --- labels -----------------------------------------------------------------------------------------------------------


def model(*inputs: str, target: bool = True) -> pipeline_pb2.ModelSignature:
    return pipeline_pb2.ModelSignature(
        inputs=[signature(name, "INT64") if name else tensor_pb2.TensorSignature(any=True) for name in inputs],
        targets=[signature("target", "INT64")] if target else [],
    )


def test_labels_of_a_mapping_are_the_target_where_the_loss_needs_one() -> None:
    batch = {"input_ids": [1], "labels": [2]}

    def split(given: Any, target: Any, signature: Any, loss: str | None = None) -> tuple[Any, Any]:
        return requests.with_labels(given, target, signature, loss)

    assert split(batch, None, model("input_ids")) == ({"input_ids": [1]}, [2])
    assert batch == {"input_ids": [1], "labels": [2]}, "the caller's stays"
    assert split(batch, None, model("input_ids", target=False), "cross_entropy") == ({"input_ids": [1]}, [2])
    # They stay where the model takes them, the loss needs none, a target is given, or any values are taken.
    for arguments in (
        (model("input_ids", "labels"), None),
        (model("input_ids", target=False), None),
        (model("input_ids"), "scalar_output"),
        (model(""), None),
    ):
        assert split(batch, None, *arguments) == (batch, None)
    assert split(batch, [3], model("input_ids")) == (batch, [3])
    assert split([1], None, model("input_ids")) == ([1], None)


def test_batches_of_tensors_with_gradients() -> None:
    """Stand-ins for tensors of PyTorch; own_models has real ones."""

    class Tensor:
        dtype = "torch.float32"
        requires_grad = True

        def __init__(self, array: np.ndarray) -> None:
            self._array = array

        def detach(self) -> Tensor:
            made = Tensor(self._array)
            made.requires_grad = False
            return made

        def cpu(self) -> Tensor:
            return self

        def numpy(self) -> np.ndarray:
            assert not self.requires_grad, "as PyTorch has it"
            return self._array

        def __array__(self, *arguments: Any) -> np.ndarray:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    rows = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert np.array_equal(tensors.as_array([Tensor(rows), Tensor(rows)]), np.stack([rows, rows]))
    with pytest.raises(ValueError, match="its parts differ"):
        tensors.as_array([Tensor(rows), Tensor(rows[0])])
    with pytest.raises(ValueError, match="its parts differ"):
        tensors.as_array([Tensor(rows), Tensor(rows.astype(np.float64))])
    batches = list(penstock.Batches(Tensor(rows), Tensor(rows[:, 0]), rows=1, shuffle=False))
    assert np.array_equal(batches[1].inputs, rows[1:]) and np.array_equal(batches[1].target, rows[1:, 0])


def test_integers_that_bfloat16_has_are_taken() -> None:
    for value in ([-256, 256], np.array([-256, 256], np.int32), [[True, False]]):
        made = cast("x", value, signature("x", "BF16"))
        assert made.dtype == tensors.BFLOAT16
        bits = np.asarray(value).astype(np.float32).view(np.uint32) >> 16
        assert np.array_equal(made.view(np.uint16), bits)


def test_a_tensor_without_an_array_is_named() -> None:
    class Sparse:
        """As a sparse tensor of PyTorch."""

        dtype = "torch.float32"

        def detach(self) -> Sparse:
            return self

        def cpu(self) -> Sparse:
            return self

        def numpy(self) -> None:
            raise TypeError("can't convert Sparse layout tensor to numpy")

    with pytest.raises(TypeError, match="^x: is no array: can't convert Sparse layout"):
        cast("x", Sparse(), signature("x", "FP32"))

"""Sum and difference of two rows of numbers, as Triton's own examples have it, for its Python backend."""

import os
import sys
from typing import Any

sys.path.insert(0, os.environ["T_NUMPY"])
import triton_python_backend_utils as backend  # noqa: E402


class TritonPythonModel:
    """The name that the backend looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        answers = []
        for request in requests:
            one, other = (backend.get_input_tensor_by_name(request, f"INPUT{k}").as_numpy() for k in (0, 1))
            wanted = request.requested_output_names()
            made = {"OUTPUT0": one + other, "OUTPUT1": one - other}
            answers.append(backend.InferenceResponse([backend.Tensor(name, made[name]) for name in wanted]))
        return answers

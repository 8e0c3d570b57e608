"""Layers of Linear and ReLU in eager PyTorch, for Triton's Python backend: all requests of a batch in one pass."""

import os
import site
import sys
from typing import Any

sys.path.insert(0, os.environ["T_NUMPY"])
site.addsitedir(os.environ["T_TORCH"])
import torch  # noqa: E402
import triton_python_backend_utils as backend  # noqa: E402


class TritonPythonModel:
    """The name that the backend looks for."""

    def initialize(self, _: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        width = int(os.environ["T_WIDTH"])
        layers = range(int(os.environ["T_LAYERS"]))
        self.model = torch.nn.Sequential(
            *(part for _ in layers for part in (torch.nn.Linear(width, width), torch.nn.ReLU()))
        ).eval()

    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [torch.from_numpy(backend.get_input_tensor_by_name(one, "input").as_numpy()) for one in requests]
        with torch.inference_mode():
            outputs = self.model(torch.cat(inputs)).split([len(rows) for rows in inputs])
        return [backend.InferenceResponse([backend.Tensor("output", rows.numpy())]) for rows in outputs]

"""Folders in the format of PyTorch's distributed checkpoints, which ``torch.distributed.checkpoint.load()`` reads."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any

from penstock.parameters import OPTIMIZER_PREFIX, Parameters, slots_of
from penstock.tensors import as_tensor


def write_distributed(path: str | os.PathLike[str], parameters: Parameters) -> None:
    """Writes ``{"model": {NAME: tensor}, "optimizer": {"state": {NAME: {SLOT: tensor}}}, "step": number}`` to a new
    folder, whole or not at all: under another name until it is complete. Without optimizer state there is no
    ``"optimizer"``.

    Raises:
        ImportError: PyTorch is not installed.
        FileExistsError: there is something of that name.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    target = pathlib.Path(path)
    if target.exists():
        raise FileExistsError(f"{target}: a distributed checkpoint is written to a new folder, and this is there")
    state: dict[str, Any] = {
        "model": {name: as_tensor(array) for name, array in parameters.items() if not name.startswith(OPTIMIZER_PREFIX)}
    }
    slots: dict[str, dict[str, Any]] = {}
    for name, slot, array in slots_of(parameters):
        slots.setdefault(name, {})[slot] = as_tensor(array)
    if slots:
        state["optimizer"] = {"state": slots}
    state["step"] = parameters.step
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        save(state, checkpoint_id=partial, no_dist=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)

"""From a PyTorch model to a file that the daemon trains and serves. Needs PyTorch 2.11; nothing else of the client
does."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pathlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_TRAINING_GRAPH = "penstock_training.json"  # beside the evaluation's graph, which torch.export.save writes itself
_NAMES = "penstock_names.json"


class ExportError(RuntimeError):
    """A model that can't be exported, and why in plain words. PyTorch's own words are in ``__cause__``."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: the file.
        byte_size: of the file.
        inputs, outputs: names.
        nodes: operator calls of each graph: evaluation, training.
        operators: how often each is called, over both graphs.
        parameters: numbers that the model learns: those of frozen parameters are not counted.
    """

    path: pathlib.Path
    byte_size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Mapping[str, int]
    operators: Mapping[str, int]
    parameters: int


def export(
    model: torch.nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    fixed: Mapping[str, Any] | None = None,
    outputs: Sequence[str | int] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_batch: bool = True,
    max_batch: int = 4096,
    dynamic_shapes: Any = None,
    modes: Sequence[str] = ("evaluation", "training"),
) -> Exported:
    """Writes a model as an exported program (``.pt2``): two graphs, for training and for evaluation, over one set of
    weights.

    The model is left as it was. The file is data without code; ``torch.export.load`` reads its evaluation graph too.

    Example::

        model = torchvision.models.resnet18()
        penstock.export(model, torch.randn(2, 3, 224, 224), "resnet18.pt2")

        bert = transformers.BertForSequenceClassification(config)
        penstock.export(bert, {"input_ids": ids, "attention_mask": mask}, "bert.pt2", outputs=["logits"])

    Args:
        example_inputs: of ``forward``: a tensor, a tuple, or a mapping by argument name. Values don't matter, shapes
            do. A batch of one row is doubled, for PyTorch would take it for a constant.
        path: the file; its name should end in ``.pt2`` and will be the model's id. It is written whole or not at all.
        fixed: further arguments of ``forward`` with fixed values, such as ``{"use_cache": False}``.
        outputs: which outputs the file gives: names, or positions; ``None``: all. Caches and other things that are no
            tensors must be left out.
        input_names, output_names: what clients call inputs and outputs, in the order of the example's tensors and of
            ``outputs``: 1 to 128 printable ASCII characters each, none twice. ``None``: as ``forward`` calls its
            arguments and the keys of what it gives, in the same letters; ``output0`` and so on for a tuple.
        dynamic_batch: dimension 0 of every input is the batch and may have any size; ``False``: that of the example.
        max_batch: the largest batch, of a micro-batch as of a whole one.
        dynamic_shapes: instead of ``dynamic_batch``: as ``torch.export.export`` wants it, for further dimensions.
        modes: with ``"evaluation"`` alone the daemon switches dropout and normalisation in the one graph it has, which
            is right for models that do nothing else in training.

    Raises:
        ExportError: the model can't be exported; the message says why and what helps.
        ImportError: PyTorch is not installed.
    """
    if not modes or not set(modes) <= {"evaluation", "training"}:
        raise ValueError(f"modes are evaluation and training, got {list(modes)}")
    torch = _torch()
    arguments = _by_name(model, example_inputs, fixed or {})
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise ExportError("example_inputs: no tensor is among them")
    if dynamic_batch and dynamic_shapes is None:
        _check_batch(tensors)
        if next(iter(tensors.values())).shape[0] == 1:
            tensors = {name: torch.cat((value, value)) for name, value in tensors.items()}
            arguments.update(tensors)
        batch = torch.export.Dim("batch", min=1, max=max_batch)
        dynamic_shapes = {name: {0: batch} for name in tensors}
    programs = {}
    with _as_it_was(model), _only(model, outputs, fixed or {}, arguments):
        for mode in modes:
            model.train(mode == "training")
            try:
                programs[mode] = torch.export.export(model, (), arguments, strict=False, dynamic_shapes=dynamic_shapes)
            except Exception as problem:
                raise ExportError(f"{type(model).__name__}, in {mode} mode: {_plain_words(str(problem))}") from problem
            _forget_machine(programs[mode])
    _check_outputs(programs)
    main = programs.get("evaluation", programs.get("training"))
    names = {
        "inputs": _chosen("input_names", input_names, _input_names(main)),
        "outputs": _chosen("output_names", output_names, _output_names(main)),
    }
    return _write(programs, names, pathlib.Path(path))


def _torch() -> Any:
    try:
        import torch
        import torch.export
    except ImportError as missing:
        raise ImportError(
            "penstock.export needs PyTorch 2.11: pip install torch==2.11.0 (this brings gigabytes of CUDA; docs/models.md "
            "tells how to leave them out)"
        ) from missing
    return torch


def _by_name(model: torch.nn.Module, example_inputs: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The example by the names of forward's arguments."""
    if isinstance(example_inputs, Mapping):
        return dict(example_inputs)
    given = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    parameters = [
        parameter
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if name not in fixed and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(given) > len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        raise ExportError(
            f"example_inputs: {len(given)} are given, and forward takes {len(parameters)} by name: {names}"
        )
    return {parameter.name: value for parameter, value in zip(parameters, given)}


def _check_batch(tensors: Mapping[str, torch.Tensor]) -> None:
    rows = {name: value.shape[0] if value.dim() else None for name, value in tensors.items()}
    if len(set(rows.values())) != 1 or None in rows.values():
        raise ExportError(
            "example_inputs: dimension 0 of every input is the batch, so all must have as many rows, got "
            f"{rows}; else give dynamic_shapes"
        )


@contextlib.contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Gives every module its mode back. No fast paths meanwhile: these are other operators than those that training
    uses."""
    torch = _torch()
    modes = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def _only(
    model: torch.nn.Module, outputs: Sequence[str | int] | None, fixed: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Iterator[None]:
    """While it lasts, forward takes the example's arguments only and gives the chosen outputs. A module around the
    model would do the same, and change the names of all weights."""
    if outputs is None and not fixed:
        yield
        return
    original = model.forward

    def forward(**given: Any) -> Any:
        made = original(**given, **fixed)
        if outputs is None:
            return made
        chosen = {_word(key): _pick(made, key) for key in outputs}
        return next(iter(chosen.values())) if len(chosen) == 1 and isinstance(outputs[0], int) else chosen

    own = "forward" in vars(model)
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in arguments]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    model.forward = forward
    try:
        yield
    finally:
        if own:
            model.forward = original
        else:
            del model.forward


def _word(key: str | int) -> str:
    return key if isinstance(key, str) else f"output{key}"


def _pick(made: Any, key: str | int) -> Any:
    try:
        return made[key]
    except (KeyError, IndexError, TypeError):
        known = list(made) if isinstance(made, Mapping) else f"positions of {type(made).__name__}"
        raise ExportError(f"outputs: the model gives no {key!r}; known: {known}") from None


def _forget_machine(program: Any) -> None:
    """Takes out where in which file each operator was called: a machine's paths."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
            node.meta.pop("torch_fn", None)


def _check_outputs(programs: Mapping[str, Any]) -> None:
    torch = _torch()
    for mode, program in programs.items():
        given = {
            spec.arg.name: type(spec.arg).__name__
            for spec in program.graph_signature.output_specs
            if spec.kind.name == "USER_OUTPUT"
        }
        if "TensorArgument" not in given.values():
            raise ExportError(f"the model gives no tensor in {mode} mode: choose outputs")
        for tensor in (*program.state_dict.values(), *program.constants.values()):
            if isinstance(tensor, torch.Tensor) and (tensor.is_quantized or tensor.layout != torch.strided):
                raise ExportError("the model holds quantized or sparse tensors, which the daemon does not run")


def _leaves(spec: Any, path: str, position_name: str) -> list[str]:
    """What the model's own code calls the leaves of a tree: keys of dictionaries, positions of others."""
    if spec.is_leaf():
        return [path]
    keys = spec.context if spec.type is dict else [f"{'' if path else position_name}{i}" for i in range(spec.num_children)]
    return [
        name
        for key, child in zip(keys, spec.children())
        for name in _leaves(child, f"{path}.{key}" if path else str(key), position_name)
    ]


def _input_names(program: Any) -> list[str]:
    """Of the tensors among forward's arguments, which were all given by name; torch.export's own are in lower case."""
    named = _leaves(program.call_spec.in_spec.child(1), "", "input")
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return [name for name, spec in zip(named, specs) if type(spec.arg).__name__ == "TensorArgument"]


def _output_names(program: Any) -> list[str]:
    return [name or "output" for name in _leaves(program.call_spec.out_spec, "", "output")]


def _chosen(argument: str, names: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    if names is not None and (isinstance(names, str) or len(names) != len(own)):
        raise ExportError(f"{argument}: must name each of {list(own)}, got {names!r}")
    chosen = list(own if names is None else names)
    for i, name in enumerate(chosen):
        if not isinstance(name, str) or not re.fullmatch(r"[ -~]{1,128}", name):
            raise ExportError(f"{argument}[{i}]: must be 1 to 128 printable ASCII characters, got {name!r}")
        if name in chosen[:i]:
            raise ExportError(f"{argument}[{i}]: must not repeat, got {name!r}")
    return chosen


def _write(programs: Mapping[str, Any], names: Mapping[str, list[str]], path: pathlib.Path) -> Exported:
    """Both graphs over the evaluation's weights; first under another name."""
    torch = _torch()
    from torch._export.serde.serialize import serialize

    main = programs.get("evaluation", programs.get("training"))
    assert main is not None
    extra = {_NAMES: json.dumps(names)}
    if len(programs) == 2:
        extra[_TRAINING_GRAPH] = serialize(programs["training"]).exported_program.decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".penstock-export-") as folder:
        partial = pathlib.Path(folder) / "model.pt2"
        torch.export.save(main, partial, extra_files=extra)
        partial.replace(path)
    operators: Counter[str] = Counter()
    nodes = {}
    for mode, program in programs.items():
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        nodes[mode] = len(calls)
        operators.update(str(node.target) for node in calls)
    return Exported(
        path=path,
        byte_size=path.stat().st_size,
        inputs=tuple(names["inputs"]),
        outputs=tuple(names["outputs"]),
        nodes=nodes,
        operators=dict(operators.most_common()),
        parameters=sum(parameter.numel() for parameter in main.parameters() if parameter.requires_grad),
    )


_FIXED_ROWS = (
    "the model works for the example's batch only: somewhere it uses a fixed number of rows (a view or reshape with "
    "a number, a buffer of that size, a loop over rows). Write x.shape[0] or -1 there, or export with "
    "dynamic_batch=False and always give as many rows"
)
_FIXED_SIZE = (
    "dynamic_shapes says that {names} may vary, and the model does not take every size: somewhere it uses a fixed one, "
    "or needs a multiple of one. Write x.shape[i] there, or give torch.export.Dim.DYNAMIC for that dimension, and PyTorch "
    "finds the sizes that the model takes"
)

# What PyTorch says, in whole or in part, and what it means.
_REASONS = (
    (
        r"for expert_idx in expert_hit",
        "the model goes through its experts in a loop that depends on data, transformers' experts_implementation='eager'. "
        "Call model.set_experts_implementation('batched_mm') before the export",
    ),
    (
        r"GuardOnDataDependentSymNode|Could not guard on data-dependent|data-dependent expression",
        "what the model does next depends on the values of a tensor (an if, a loop, .item(), a size taken from data), "
        "and a graph is fixed. Compute both ways and choose with torch.where, or take the decision out of forward",
    ),
    (
        r"(?s)specialized|not equal to|was inferred to be a constant",
        _FIXED_ROWS,
    ),
    (
        r"Dynamic control flow|torch\.cond|branch",
        "the model takes branches in Python that depend on data. Choose with torch.where or torch.cond",
    ),
    (
        r"DynamicCache|Unsupported.*output|UserOutput|pytree|only expects tensor|not.*valid output",
        "the model gives something that is no tensor, such as a cache. Choose outputs=[...] and switch it off, for "
        "example fixed={'use_cache': False}",
    ),
    (
        r"missing a required argument|unexpected keyword|takes \d+ positional|forward\(\) missing|got multiple values",
        "example_inputs don't fit the arguments of forward. Give them by name, as a mapping",
    ),
    (
        r"FakeTensor|fake tensor|meta kernel|no fake impl|custom op|numpy\(\)",
        "the model calls something that PyTorch can't trace: numpy, an operator of an extension, or a tensor made "
        "outside",
    ),
)


def _plain_words(said: str) -> str:
    first = next((line.strip() for line in said.splitlines() if line.strip()), "no reason given")
    where = re.search(r'File "([^"]+)", line (\d+), in (\w+)', said)
    place = f" (at {pathlib.Path(where[1]).name}:{where[2]}, in {where[3]})" if where else ""
    if violated := re.search(r"Constraints violated \(([^)]+)\)", said):
        return _violated(violated[1].split(", "), said, place)
    for pattern, words in _REASONS:
        if re.search(pattern, said):
            return f"{words}{place}. PyTorch says: {first}"
    return f"PyTorch can't export it{place}: {first}"


def _violated(names: Sequence[str], said: str, place: str) -> str:
    """The words for dimensions that were promised to vary and can't, with PyTorch's own line for each."""
    told = []
    for name in names:
        line = next((line for line in said.splitlines() if re.match(rf"\s*- .*\b{re.escape(name)}\b", line)), "")
        fix = re.search(rf"(?m)^  {re.escape(name)} = .*$", said)
        told += [text.strip(" -") for text in (line, fix[0] if fix else "") if text]
    words = _FIXED_ROWS if list(names) == ["batch"] else _FIXED_SIZE.format(names=" and ".join(names))
    return f"{words}{place}. PyTorch says: {'; '.join(told)}"

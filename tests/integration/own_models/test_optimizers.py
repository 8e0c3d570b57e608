"""Optimizers, groups, schedules and weighted losses over gRPC, beside PyTorch's own: the same model, weights and batches, 20
steps, cut in two, four micro-batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import penstock
import pytest
import torch
from penstock import Layer, ParameterGroup
from torch import nn
from torch.nn import functional

STEPS = 20
ROWS, WIDTH, CLASSES = 12, 8, 5
RATE = 0.01

Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2, line by line."""

    def __init__(self, parameters: Iterable[Any], lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                moment = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                update = (beta1 * moment + (1 - beta1) * parameter.grad).sign()
                parameter -= group["lr"] * (update + group["weight_decay"] * parameter)
                moment.copy_(beta2 * moment + (1 - beta2) * parameter.grad)


# The daemon's name and options, and PyTorch's class and arguments. The epsilons are large enough that a gradient's rounding is not
# what decides a step.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (
        "sgd",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "adamw": (
        "adamw",
        {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4, "weight_decay": 0.1},
        torch.optim.AdamW,
        {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    ),
    "adam": (
        "adam",
        {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4, "weight_decay": 0.1},
        torch.optim.Adam,
        {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    ),
    "nadam": (
        "nadam",
        {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4, "weight_decay": 0.1, "momentum_decay": 0.02},
        torch.optim.NAdam,
        {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1, "momentum_decay": 0.02},
    ),
    "adagrad": (
        "adagrad",
        {"lr_decay": 0.1, "initial_accumulator_value": 0.01, "epsilon": 1e-4, "weight_decay": 0.1},
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.01, "eps": 1e-4, "weight_decay": 0.1},
    ),
    "rmsprop": (
        "rmsprop",
        {"alpha": 0.9, "epsilon": 1e-3, "weight_decay": 0.1},
        torch.optim.RMSprop,
        {"alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1},
    ),
    "rmsprop, centered, with momentum": (
        "rmsprop",
        {"alpha": 0.9, "epsilon": 1e-2, "momentum": 0.5, "centered": True},
        torch.optim.RMSprop,
        {"alpha": 0.9, "eps": 1e-2, "momentum": 0.5, "centered": True},
    ),
    "lion": (
        "lion",
        {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1},
        Lion,
        {"betas": (0.8, 0.95), "weight_decay": 0.1},
    ),
}

LAYERS = [
    Layer("linear", "first", {"in": WIDTH, "out": WIDTH}),
    Layer("gelu", "bend"),
    Layer("layer_norm", "norm", {"width": WIDTH}),
    Layer("linear", "second", {"in": WIDTH, "out": WIDTH}),
    Layer("gelu", "bow"),
    Layer("linear", "head", {"in": WIDTH, "out": CLASSES}),
]


class Reference(nn.Module):
    """The same layers by the same names."""

    def __init__(self, pipeline: penstock.Pipeline) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.load_state_dict(pipeline.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(functional.gelu(self.first(x)))
        return self.head(functional.gelu(self.second(x)))


def create(client: penstock.Client, **changes: Any) -> penstock.Pipeline:
    arguments: dict[str, Any] = {
        "model": LAYERS,
        "balance": [3, 3],
        "micro_batches": 4,
        "loss": "cross_entropy",
        "optimizer": "sgd",
        "optimizer_options": {"learning_rate": RATE},
        "seed": 3,
    }
    return client.create_pipeline(f"p-{uuid.uuid4().hex[:12]}", **{**arguments, **changes})


def batches(steps: int = STEPS, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(ROWS, WIDTH, generator=generator), torch.randint(0, CLASSES, (ROWS,), generator=generator))
        for _ in range(steps)
    ]


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def same(pipeline: penstock.Pipeline, module: Reference, tolerance: float = 1e-6) -> None:
    for name, mine in pipeline.state_dict().items():
        difference = (mine - module.state_dict()[name]).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


def train_beside(
    pipeline: penstock.Pipeline,
    module: Reference,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    loss: Loss = functional.cross_entropy,
    clip_norm: float = 0.0,
) -> None:
    """Both over the same batches; each step's loss and rate, and the weights after each, must agree."""
    for x, y in batches():
        optimizer.zero_grad()
        value = loss(module(x), y)
        value.backward()
        learnt = [parameter for parameter in module.parameters() if parameter.grad is not None]
        norm = nn.utils.clip_grad_norm_(learnt, clip_norm or float("inf")).item()
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        if schedule is not None:
            schedule.step()
        outcome = pipeline.train_step(x, y)
        assert outcome.loss == pytest.approx(value.item(), abs=2e-6)
        assert outcome.gradient_norm == pytest.approx(norm, rel=1e-5)
        assert outcome.learning_rate == pytest.approx(rate, rel=1e-9)
        same(pipeline, module)


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_every_optimizer_steps_as_pytorchs(client: penstock.Client, case: str) -> None:
    name, options, kind, arguments = OPTIMIZERS[case]
    pipeline = create(client, optimizer=name, optimizer_options={**options, "learning_rate": RATE})
    module = Reference(pipeline)
    train_beside(pipeline, module, kind(module.parameters(), lr=RATE, **arguments))
    pipeline.delete()


@pytest.mark.parametrize("case", [case for case in OPTIMIZERS if case != "lion"])
def test_training_goes_on_in_pytorch_and_back(client: penstock.Client, case: str) -> None:
    """The state has PyTorch's names: ten steps here, ten there, ten here."""
    name, options, kind, arguments = OPTIMIZERS[case]
    pipeline = create(client, optimizer=name, optimizer_options={**options, "learning_rate": RATE})
    reference, module = Reference(pipeline), Reference(pipeline)
    whole = kind(reference.parameters(), lr=RATE, **arguments)
    part = kind(module.parameters(), lr=RATE, **arguments)

    def steps(model: Reference, optimizer: torch.optim.Optimizer, some: Any) -> None:
        for x, y in some:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    all_batches = batches(30)
    steps(reference, whole, all_batches)
    for x, y in all_batches[:10]:
        pipeline.train_step(x, y)
    assert pipeline.load_into(module, part) == 10
    steps(module, part, all_batches[10:20])
    pipeline.load_from(module, part)
    for x, y in all_batches[20:]:
        pipeline.train_step(x, y)
    same(pipeline, reference, 2e-6)
    pipeline.delete()


SCHEDULES: dict[str, tuple[dict[str, Any], Schedule]] = {
    "linear": (
        {"learning_rate_schedule": "linear", "total_steps": 15, "final_ratio": 0.1},
        lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=15),
    ),
    "step": (
        {"learning_rate_schedule": "step", "step_size": 4, "gamma": 0.5},
        lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=4, gamma=0.5),
    ),
    "polynomial": (
        {"learning_rate_schedule": "polynomial", "total_steps": 15, "power": 2.0},
        lambda o: torch.optim.lr_scheduler.PolynomialLR(o, total_iters=15, power=2.0),
    ),
    "cosine": (
        {"learning_rate_schedule": "warmup_cosine", "total_steps": 20},
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
    ),
    "linear after a warm-up": (
        {"learning_rate_schedule": "linear", "warmup_steps": 4, "total_steps": 14},
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, start_factor=0.25, total_iters=3),
                torch.optim.lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=10),
            ],
            milestones=[4],
        ),
    ),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules_move_the_rates_of_all_groups_as_pytorchs(client: penstock.Client, case: str) -> None:
    settings, schedule = SCHEDULES[case]
    pipeline = create(client, groups=[ParameterGroup(["head.*"], {"learning_rate": 5 * RATE})], **settings)
    module = Reference(pipeline)
    rest = [parameter for name, parameter in module.named_parameters() if not name.startswith("head.")]
    optimizer = torch.optim.SGD([{"params": rest}, {"params": module.head.parameters(), "lr": 5 * RATE}], lr=RATE)
    train_beside(pipeline, module, optimizer, schedule(optimizer))
    pipeline.delete()


GROUPS = [
    ParameterGroup(["first.*"], frozen=True),
    ParameterGroup(["*.bias", "norm.*"], {"weight_decay": 0.0}),
    ParameterGroup(["head.*"], {"learning_rate": 3 * RATE, "beta1": 0.7}),
]


def grouped(module: Reference) -> torch.optim.Optimizer:
    module.first.requires_grad_(False)
    plain = [module.second.bias, module.head.bias, module.norm.weight, module.norm.bias]
    return torch.optim.AdamW(
        [
            {"params": [module.second.weight]},
            {"params": plain, "weight_decay": 0.0},
            {"params": [module.head.weight], "lr": 3 * RATE, "betas": (0.7, 0.999)},
        ],
        lr=RATE,
        weight_decay=0.1,
        eps=1e-4,
    )


def test_groups_have_options_of_their_own_and_the_norm_is_that_of_what_is_learnt(client: penstock.Client) -> None:
    options = {"learning_rate": RATE, "weight_decay": 0.1, "epsilon": 1e-4}
    for schedule in ("1f1b", "zb-h1"):
        pipeline = create(
            client, optimizer="adamw", optimizer_options=options, groups=GROUPS, clip_norm=0.3, schedule=schedule
        )
        module = Reference(pipeline)
        frozen = pipeline.state_arrays()["first.weight"].copy()
        train_beside(pipeline, module, grouped(module), clip_norm=0.3)
        assert np.array_equal(pipeline.state_arrays()["first.weight"], frozen)
        slots = pipeline.read_parameters(include_optimizer_state=True)
        assert not slots["optimizer/first.weight/first_moment"].any()
        assert slots["optimizer/first.weight/step"] == 0
        assert slots["optimizer/head.weight/step"] == STEPS
        pipeline.delete()


CLASS_WEIGHTS = [0.2, 1.0, 3.0, 0.5, 2.0]

LOSSES: dict[str, tuple[dict[str, Any], Loss]] = {
    "label smoothing": (
        {"loss_options": {"label_smoothing": 0.1}},
        lambda output, target: functional.cross_entropy(output, target, label_smoothing=0.1),
    ),
    "class weights": (
        {"class_weights": CLASS_WEIGHTS},
        lambda output, target: functional.cross_entropy(output, target, weight=torch.tensor(CLASS_WEIGHTS)),
    ),
    "both, and a label that is ignored": (
        {"class_weights": CLASS_WEIGHTS, "loss_options": {"label_smoothing": 0.2, "ignore_index": 3}},
        lambda output, target: functional.cross_entropy(
            output, target, weight=torch.tensor(CLASS_WEIGHTS), label_smoothing=0.2, ignore_index=3
        ),
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_weighted_mean_is_that_of_the_whole_step(client: penstock.Client, case: str) -> None:
    settings, loss = LOSSES[case]
    pipeline = create(client, optimizer_options={"learning_rate": 0.1}, **settings)
    module = Reference(pipeline)
    train_beside(pipeline, module, torch.optim.SGD(module.parameters(), lr=0.1), loss=loss)
    pipeline.delete()


ELEMENT_LOSSES: dict[str, tuple[dict[str, Any], tuple[int, ...], Callable[..., torch.Tensor]]] = {
    "cross entropy by rows": (
        {"class_weights": CLASS_WEIGHTS},
        (ROWS,),
        lambda output, labels: (
            functional.cross_entropy(output, labels, weight=torch.tensor(CLASS_WEIGHTS), reduction="none"),
            torch.tensor(CLASS_WEIGHTS)[labels],
        ),
    ),
    "squared error by rows": (
        {"loss": "mean_squared_error"},
        (ROWS,),
        lambda output, target: ((output - target) ** 2, torch.ones_like(target)),
    ),
    "squared error by elements": (
        {"loss": "mean_squared_error"},
        (ROWS, CLASSES),
        lambda output, target: ((output - target) ** 2, torch.ones_like(target)),
    ),
    "binary cross entropy with pos_weight": (
        {"loss": "binary_cross_entropy", "loss_options": {"pos_weight": 2.5}},
        (ROWS, 1),
        lambda output, target: (
            functional.binary_cross_entropy_with_logits(
                output, target, pos_weight=torch.tensor(2.5), reduction="none"
            ),
            torch.ones_like(target),
        ),
    ),
}


@pytest.mark.parametrize("case", ELEMENT_LOSSES)
def test_weights_of_elements_weigh_in_steps_and_in_contributions(client: penstock.Client, case: str) -> None:
    settings, shape, elements = ELEMENT_LOSSES[case]
    pipeline = create(client, optimizer_options={"learning_rate": 0.1}, **settings)
    module = Reference(pipeline)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(5)
    for number, (x, labels) in enumerate(batches()):
        target = labels if "loss" not in settings else torch.rand(ROWS, CLASSES, generator=generator).round()
        weights = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) > 0.3)
        optimizer.zero_grad()
        losses, counts = elements(module(x), target)
        wide = weights.reshape(*shape, *[1] * (losses.dim() - len(shape))).expand_as(losses) * counts
        own = weights.reshape(*shape, *[1] * (losses.dim() - len(shape))).expand_as(losses)
        value = (losses * own).sum() / wide.sum()
        value.backward()
        optimizer.step()
        if number % 2 == 0:
            outcome = pipeline.train_step(x, target, weights=weights)
            assert outcome.loss == pytest.approx(value.item(), abs=2e-6)
        else:
            for rows in (slice(0, 5), slice(5, ROWS)):
                pipeline.forward_backward(
                    x[rows], target[rows], weights=weights[rows], total_elements=wide.sum().item(), micro_batches=2
                )
            pipeline.optimizer_step()
        same(pipeline, module)
    pipeline.delete()


def test_settings_change_after_creation(client: penstock.Client) -> None:
    """Frozen first, then learnt, at another rate, under a schedule: as PyTorch, whose state stays too."""
    pipeline = create(
        client,
        optimizer="adamw",
        optimizer_options={"learning_rate": RATE, "epsilon": 1e-4},
        groups=[ParameterGroup(["first.*", "norm.*"], frozen=True)],
    )
    module = Reference(pipeline)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, eps=1e-4)
    frozen = [module.first, module.norm]
    for part in frozen:
        part.requires_grad_(False)
    train_beside(pipeline, module, optimizer)

    for part in frozen:
        part.requires_grad_(True)
    optimizer.param_groups[0].update(lr=RATE / 2, weight_decay=0.2)
    answer = pipeline.update_optimizer(
        optimizer_options={"learning_rate": RATE / 2, "weight_decay": 0.2}, groups=[], clip_norm=0.4
    )
    assert answer.spec.optimizer.options["learning_rate"].double_value == RATE / 2
    assert answer.spec.optimizer.options["epsilon"].double_value == 1e-4
    assert not answer.spec.optimizer.groups and answer.step == STEPS
    assert pipeline.refresh().spec.optimizer == answer.spec.optimizer
    train_beside(pipeline, module, optimizer, clip_norm=0.4)

    module.head.requires_grad_(False)
    optimizer.zero_grad()
    pipeline.update_optimizer(groups=[ParameterGroup(["head.*"], frozen=True)], clip_norm=0.0)
    before = pipeline.state_arrays()["head.weight"].copy()
    train_beside(pipeline, module, optimizer)
    assert np.array_equal(pipeline.state_arrays()["head.weight"], before)
    pipeline.delete()

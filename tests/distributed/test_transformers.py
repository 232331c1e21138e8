"""Hugging Face Trainer and Accelerate: whichever wrapper of the optimizer a user has, steps are the optimizer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.distributed.models import Net, batch, by_hand, loss_of
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import assert_rows, numbers, rows_of, watch
from tests.required import require, require_installed
from tests.tables import Row, Rows

torch = require("torch")
require_installed("transformers", "accelerate")

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
STEPS, MICRO_BATCHES, LR = 3, 2, 0.1
WEIGHTS = ("grad_unreduced", "grad_reduced", "param_origin", "param_updated")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two processes that Accelerate joins with DistributedDataParallel."""
    processes = Ranks(2, environment=OFFLINE | {"ACCELERATE_USE_CPU": "true"})
    yield processes
    processes.close()


# Accelerate.


def unwrapped(optimizer: Any, given: str) -> Any:
    """``optimizer``, or what is inside of it: ``inner`` or ``innermost``."""
    for _ in range(["wrapper", "inner", "innermost"].index(given)):
        optimizer = getattr(optimizer, "optimizer", optimizer)
    return optimizer


def accumulating(given: str) -> tuple[Rows, dict[Row, Any]]:
    """Rows of a loop that calls ``optimizer.step`` for every micro batch, as Accelerate's documentation has it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), LR))
    monitor = watch(model, unwrapped(optimizer, given), MICRO_BATCHES, xy_distribution=False)
    for step in range(STEPS):
        for i in range(MICRO_BATCHES):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(batch(step, i))) * MICRO_BATCHES)
                optimizer.step()
                optimizer.zero_grad()
    expected: dict[Row, Any] = {}
    for step, reference in enumerate(by_hand(STEPS, MICRO_BATCHES, LR)):
        for name in reference.before:
            expected[Row("grad_unreduced", step, name)] = sum(local[name] for local in reference.local)
            expected[Row("grad_reduced", step, name)] = reference.reduced[name]
            expected[Row("param_origin", step, name)] = reference.before[name]
            expected[Row("param_updated", step, name)] = reference.after[name]
    return rows_of(monitor), expected


@pytest.mark.parametrize("given", ["wrapper", "inner"])
def test_accumulated_calls_of_accelerates_step_are_one_step(ranks: Ranks, given: str) -> None:
    for rows, expected in ranks.run(accumulating, given):
        assert_rows(rows, expected, WEIGHTS, relative=1e-5)


def scaled(given: str) -> tuple[list[str], Rows]:
    """Outcomes of Accelerate's wrapper with a scaler for three steps, of which the second overflows, and the rows.
    (Accelerate itself makes a scaler on a GPU only.)"""
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    Accelerator(cpu=True)
    model, scaler, said = Net(), torch.amp.GradScaler("cpu", init_scale=1024.0), []
    optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), LR), scaler=scaler)
    monitor = watch(model, unwrapped(optimizer, given), xy_distribution=False)
    for step in range(3):
        scaler.scale(loss_of(model(batch(step, 0))) * (float("inf") if step == 1 else 1)).backward()
        optimizer.step()
        said.append("skipped" if optimizer.step_was_skipped else "applied")
        optimizer.zero_grad()
    return said, rows_of(monitor)


@pytest.mark.parametrize("given", ["wrapper", "inner"])
def test_a_step_that_accelerates_scaler_skips_changes_nothing(ranks: Ranks, given: str) -> None:
    """It has its own number; gradients are free of the scale."""
    for said, rows in ranks.run(scaled, given):
        assert said == ["applied", "skipped", "applied"]
        for name, _ in Net().named_parameters():
            changed = [rows[Row("param_origin", s, name)] != rows[Row("param_updated", s, name)] for s in range(3)]
            assert changed == [True, False, True], name
            assert [rows[Row("grad_reduced", step, name)]["nans"] > 0 for step in range(3)] == [False, True, False]
            assert rows[Row("grad_reduced", 0, name)] == pytest.approx(rows[Row("grad_unreduced", 0, name)])


# Trainer.


class Tokens(torch.utils.data.Dataset[Any]):
    """Sequences of eight tokens, another one for each rank and index: Trainer shares out where it knows of ranks."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(100 * self._rank + index)
        tokens = torch.randint(0, 32, (8,), generator=generator)
        return {"input_ids": tokens, "labels": tokens.clone()}


def language_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**size, **dropout, bos_token_id=0, eos_token_id=0))


def watcher(given: str, **settings: Any) -> Any:
    """A callback as a user would write it; it also keeps what the optimizer is about to apply, and the results."""
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):
        monitor: Any = None

        def __init__(self) -> None:
            self.gradients: dict[Row, dict[str, float]] = {}
            self.parameters: dict[Row, dict[str, float]] = {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            optimizer = unwrapped(kwargs["optimizer"], given)
            self.monitor = watch(kwargs["model"], optimizer, args.gradient_accumulation_steps, **settings)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for name, p in kwargs["model"].named_parameters():
                if p.grad is not None:
                    self.gradients[Row("grad_reduced", state.global_step, name)] = numbers(p.grad)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for name, p in kwargs["model"].named_parameters():
                self.parameters[Row("param_updated", state.global_step - 1, name)] = numbers(p)

    return Watcher()


def finetune(directory: str, callbacks: list[Any], deepspeed: dict[str, Any] | None) -> tuple[list[float], Any]:
    """The losses that Trainer logs, and what this rank holds of the parameters afterwards."""
    import torch.distributed as dist
    from transformers import Trainer, TrainingArguments

    where = {"deepspeed": deepspeed} if deepspeed else {"use_cpu": True, "ddp_backend": "gloo"}
    arguments = TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=MICRO_BATCHES,
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        learning_rate=1e-2,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **where,
    )
    data = Tokens(dist.get_rank() if deepspeed else 0)
    trainer = Trainer(model=language_model(), args=arguments, train_dataset=data, callbacks=callbacks)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    held = [getattr(p, "ds_tensor", p).detach().nan_to_num().clone() for p in trainer.model.parameters()]
    return losses, held


def watched(directory: str, givens: list[str], deepspeed: dict[str, Any] | None) -> tuple[list[Rows], Any, bool]:
    """The rows with each of ``givens``, the last callback's own, and whether training was always the same as without a
    monitor."""
    losses, held = finetune(directory, [], deepspeed)
    same, found = len(losses) == STEPS, []
    for given in givens:
        callback = watcher(given)
        again, after = finetune(directory, [callback], deepspeed)
        same &= losses == again and all(map(torch.equal, held, after))
        found.append(rows_of(callback.monitor))
    return found, (callback.gradients, callback.parameters), same


def test_trainer_with_ddp(ranks: Ranks, tmp_path: Any) -> None:
    """A monitor attached in on_train_begin: reduced gradients and parameters are those that a callback sees."""
    first, second = ranks.run(watched, str(tmp_path), ["wrapper", "inner"], None)
    for (rows, other), (gradients, parameters), same in (first, second):
        assert rows == other
        assert same, "losses or weights differ from those without a monitor"
        assert {row.step for row in rows} == set(range(STEPS))
        assert len(gradients) == len(parameters) > 10
        found = {row for row in rows if row.signal in ("grad_reduced", "param_updated")}
        assert found == gradients.keys() | parameters.keys()
        for row, values in (gradients | parameters).items():
            for op, value in values.items():
                assert rows[row][op] == pytest.approx(value, rel=1e-5, abs=1e-5 * values["norm"]), (row, op)
        assert {row.micro_step for row in rows if row.signal == "actv"} == set(range(MICRO_BATCHES))
        assert {row.signal for row in rows} >= {"exp_avg", "exp_avg_sq", "actv_grad"}
    assert first[0] != second[0]


def zero(stage: int) -> dict[str, Any]:
    """A configuration as users of Trainer write it."""
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "overlap_comm": False},
        "bf16": {"enabled": False},
    }


@pytest.mark.parametrize(("version", "stage"), [("0.19.8", 0), ("0.19.8", 2), ("0.19.8", 3), ("0.16.9", 3)])
def test_trainer_with_deepspeed(
    deepspeed_ranks: Callable[[str], Ranks], tmp_path: Any, version: str, stage: int
) -> None:
    """Accelerate's wrapper, whose step does nothing, DeepSpeed's optimizer and torch's inside of it: all the same."""
    givens = ["wrapper", "inner", "innermost"]
    answers = deepspeed_ranks(version).run(watched, str(tmp_path), givens, zero(stage))
    for (rows, *others), _, same in answers:
        assert same, "losses or weights differ from those without a monitor"
        assert [*map(repr, others)] == [repr(rows)] * 2  # a rank without a part of a tensor has NaN for its extremes
        assert {row.step for row in rows} == set(range(STEPS))
        each = set(range(MICRO_BATCHES)) if stage >= 2 else {0}
        assert {row.micro_step for row in rows if row.signal == "grad_unreduced"} == each
        assert {row.signal for row in rows} >= {*WEIGHTS, "exp_avg", "exp_avg_sq", "actv", "actv_grad"}

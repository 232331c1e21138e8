"""Megatron-Core on real processes: what the ranks write comes to what one process computes without any of it."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from probe.core.analysis.merge import merge_directory
from probe.core.faults import Faults
from probe.core.moments import merge
from tests.distributed.ranks import Ranks
from tests.tables import EVERY_SIGNAL

VERSIONS = ("0.16.1", "0.12.3")
OPS = ["min", "max", "mean", "norm"]
VOCABULARY, LENGTH, HIDDEN, SAMPLES = 64, 8, 32, 2
STEPS = 2
RATE, EPSILON, CLIP = 1e-2, 1e-2, 0.5
"""Adam's epsilon is large, so that rounding errors in gradients of almost zero make no steps."""


class Setup(NamedTuple):
    """One way to train."""

    size: int = 2
    """Number of processes."""
    tensor: int = 1
    pipeline: int = 1
    virtual: int | None = None
    bf16: bool = False
    distributed: bool = False
    overlap: bool = False
    late: bool = False
    """Whether updated parameters are gathered while the next forward runs."""
    sequence: bool = False
    recompute: bool = False
    micro_batches: int = 2
    layers: int = 2
    own: bool = False
    """Whether each micro batch's own gradient is recorded."""

    @property
    def replicas(self) -> int:
        """How many different sets of data there are."""
        return self.size // (self.tensor * self.pipeline)


SETUPS = {
    "data": Setup(),
    "data, bf16": Setup(bf16=True),
    "data, overlap": Setup(overlap=True, own=True),
    "data, distributed optimizer": Setup(distributed=True),
    "data, distributed optimizer, bf16, overlap": Setup(distributed=True, bf16=True, overlap=True),
    "data, distributed optimizer, late gather": Setup(distributed=True, overlap=True, late=True),
    "tensor, bf16": Setup(tensor=2, bf16=True),
    "tensor, sequence": Setup(tensor=2, sequence=True, own=True),
    "pipeline": Setup(pipeline=2, micro_batches=4, own=True),
    "pipeline, recomputation": Setup(pipeline=2, micro_batches=4, own=True, recompute=True),
    "pipeline, virtual stages": Setup(pipeline=2, virtual=2, layers=4, micro_batches=4, own=True),
    "data and tensor": Setup(size=4, tensor=2, own=True),
    "data and tensor, distributed optimizer": Setup(size=4, tensor=2, distributed=True),
    "data and pipeline, distributed optimizer, bf16, overlap": Setup(
        size=4, pipeline=2, micro_batches=4, bf16=True, distributed=True, overlap=True
    ),
}
OLDER = (
    "data, distributed optimizer, bf16, overlap",
    "pipeline, virtual stages",
    "data and tensor, distributed optimizer",
)
"""The setups that the older version is tried with: each of its parts once."""
CASES = [*((VERSIONS[0], name) for name in SETUPS), *((VERSIONS[1], name) for name in OLDER)]


# What runs in the workers.


def initial(name: str, shape: tuple[int, ...]) -> Any:
    """The whole first value of a parameter."""
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    noise = torch.randn(shape, generator=generator) * 0.1
    return noise + 1 if "norm" in name and name.endswith("weight") else noise


def batch(step: int, micro_batch: int, replica: int) -> tuple[Any, Any]:
    """Tokens and their labels."""
    import torch

    generator = torch.Generator().manual_seed(step * 1000 + micro_batch * 10 + replica)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    return tokens, (tokens * 7 + 3) % VOCABULARY


def forward(model: Any, tokens: Any, labels: Any) -> Any:
    """The losses of all tokens, or what the next stage gets."""
    import torch

    positions = torch.arange(LENGTH).unsqueeze(0).expand_as(tokens)
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)[None, None]
    return model(tokens, positions, mask, labels=labels)


def parallel(setup: Setup) -> None:
    """Process groups as ``setup`` wants them."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from tests.distributed.megatron_cpu import groups

    for left in ("_EMBEDDING_GLOBAL_RANKS", "_POSITION_EMBEDDING_GLOBAL_RANKS"):  # by 0.12
        setattr(parallel_state, left, None)
    groups(
        tensor_model_parallel_size=setup.tensor,
        pipeline_model_parallel_size=setup.pipeline,
        virtual_pipeline_model_parallel_size=setup.virtual,
    )
    model_parallel_cuda_manual_seed(1)


def configuration(setup: Setup) -> Any:
    """Megatron's, of the model."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = torch.bfloat16 if setup.bf16 else torch.float32
    off = ("gradient_accumulation_fusion", "bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion")
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=setup.layers,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        ffn_hidden_size=64,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=setup.bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=setup.tensor,
        pipeline_model_parallel_size=setup.pipeline,
        virtual_pipeline_model_parallel_size=setup.virtual,
        sequence_parallel=setup.sequence,
        deallocate_pipeline_outputs=not setup.virtual,  # gloo would send what is gone already
        overlap_p2p_comm=bool(setup.virtual),  # two stages in a ring need two channels
        batch_p2p_comm=not setup.virtual,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        **dict.fromkeys(off, False),
        **(recompute if setup.recompute else {}),
    )


def chunk(setup: Setup, config: Any, stage: int) -> Any:
    """This rank's part of the model, or one of its virtual stages, with the first values."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    told = {}
    if setup.virtual:
        parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
        told = {"vp_stage": stage} if "vp_stage" in GPTModel.__init__.__code__.co_varnames else {}
    asked = told and {"ignore_virtual": False, **told}
    model = GPTModel(
        config=config,
        transformer_layer_spec=layers(setup),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(**asked),
        post_process=parallel_state.is_pipeline_last_stage(**asked),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        **told,
    )
    rank = parallel_state.get_tensor_model_parallel_rank()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            split = setup.tensor > 1 and getattr(parameter, "tensor_model_parallel", False)
            dim = parameter.partition_dim if split else 0
            shape = [size * setup.tensor if split and i == dim else size for i, size in enumerate(parameter.shape)]
            whole = initial(everywhere(model, name), tuple(shape))
            parameter.copy_(whole.chunk(setup.tensor, dim)[rank] if split else whole)
    return Float16Module(config, model) if setup.bf16 else model


def layers(setup: Setup) -> Any:
    """Modules of the layers."""
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    class Norm(torch.nn.LayerNorm):
        """Megatron's own for sequence parallelism needs a GPU."""

        def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
            super().__init__(hidden_size, eps)
            for parameter in self.parameters():
                parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    spec = get_gpt_layer_local_spec()
    if not setup.sequence:
        return spec
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    return TransformerBlockSubmodules(layer_specs=[spec] * setup.layers, layer_norm=Norm)


def everywhere(model: Any, name: str) -> str:
    """Name of a parameter or module in the model as a whole: stages count their layers from 0."""
    first = model.decoder.layers[0].layer_number - 1
    return re.sub(r"layers\.(\d+)", lambda found: f"layers.{int(found[1]) + first}", name)


def built(setup: Setup) -> tuple[list[Any], Any, Any]:
    """Model chunks, their optimizer and the configuration."""
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    parallel(setup)
    config = configuration(setup)
    chunks = [chunk(setup, config, stage) for stage in range(setup.virtual or 1)]
    reduction = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=setup.overlap,
        overlap_param_gather=setup.late,
        use_distributed_optimizer=setup.distributed,
        bucket_size=4000,
    )
    models = [DistributedDataParallel(config=config, ddp_config=reduction, module=each) for each in chunks]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=RATE,
            adam_eps=EPSILON,
            weight_decay=0.0,
            bf16=setup.bf16,
            params_dtype=torch.bfloat16 if setup.bf16 else torch.float32,
            use_distributed_optimizer=setup.distributed,
            clip_grad=CLIP,
        ),
        models,
    )
    no_sync = [model.no_sync for model in models]
    config.no_sync_func = no_sync if len(models) > 1 else no_sync[0]
    if setup.overlap and setup.pipeline > 1:  # the first time, the reduction is begun twice
        config.grad_sync_func = models[0].start_grad_sync
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    return models, optimizer, config


def steps(setup: Setup, models: list[Any], optimizer: Any) -> list[float]:
    """Trains; the losses that this rank knows."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    def forward_step(data: Iterator[tuple[Any, Any]], model: Any) -> tuple[Any, Any]:
        def loss(output: Any) -> tuple[Any, dict[str, Any]]:
            mean = output.float().mean()
            return mean, {"loss": float(mean.detach())}

        return forward(model, *next(data)), loss

    run, losses = get_forward_backward_func(), []
    for step in range(STEPS):
        for model in models:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        replica = parallel_state.get_data_parallel_rank()
        data = [iter([batch(step, each, replica) for each in range(setup.micro_batches)]) for _ in models]
        found = run(
            forward_step_func=forward_step,
            data_iterator=data if len(models) > 1 else data[0],
            model=models if len(models) > 1 else models[0],
            num_microbatches=setup.micro_batches,
            seq_length=LENGTH,
            micro_batch_size=SAMPLES,
            forward_only=False,
        )
        losses += [each["loss"] for each in found]
        assert optimizer.step()[0]
    return losses


def train(setup: Setup, directory: str | None, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Trains, watched if there is a ``directory``."""
    import torch
    from megatron.core import parallel_state

    from probe.pytorch import TrainerMon

    models, optimizer, _ = built(setup)
    found = as_found(models, optimizer)
    monitor = None
    if directory is not None:
        os.environ["MONITOR_OUTPUT_DIR"] = directory
        settings = {
            **EVERY_SIGNAL,
            "format": ["csv"],
            "ops": OPS,
            "ndigits": 20,
            "monitor_mbs_grad": setup.own,
            "squash_name": False,
        }
        monitor = TrainerMon(settings | (more or {}), process_group=parallel_state.get_pipeline_model_parallel_group())
        groups = {
            "dp_group": parallel_state.get_data_parallel_group(),
            "tp_group": parallel_state.get_tensor_model_parallel_group(),
        }
        monitor.set_monitor(models if len(models) > 1 else models[0], setup.micro_batches, optimizer, **groups)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses = steps(setup, models, optimizer)
    if monitor is not None:
        monitor.stop()
    # Not profile.events(), which takes longer than all of the training.
    names = [event.name() for event in profile.profiler.kineto_results.events()]  # type: ignore[union-attr]
    collectives = Counter(name for name in names if name.startswith(("c10d::", "gloo:")))
    return {
        "losses": losses,
        "weights": [p.detach().float().numpy().copy() for model in models for p in model.parameters()],
        "collectives": collectives,
        "layers": [inside(model).decoder.layers[0].layer_number - 1 for model in models],
        "directory": monitor and monitor.output_directory,
        "faults": monitor and monitor.faults,
        "as found": as_found(models, optimizer) == found,
        "optimizers": [type(each).__name__ for each in getattr(optimizer, "chained_optimizers", [optimizer])],
    }


def inside(model: Any) -> Any:
    """The model within what wraps it."""
    while hasattr(model, "module"):
        model = model.module
    return model


def as_found(models: list[Any], optimizer: Any) -> Any:
    """All that a monitor could have left behind."""
    import torch
    from megatron.core.distributed import DistributedDataParallel, param_and_grad_buffer

    kinds = [param_and_grad_buffer._ParamAndGradBucketGroup, DistributedDataParallel, torch.optim.Optimizer]
    kinds += [kind for each in (optimizer, *optimizer.chained_optimizers) for kind in type(each).__mro__]
    attributes = [(kind.__name__, name, id(value)) for kind in kinds for name, value in vars(kind).items()]
    objects = [sorted(vars(each)) for each in (optimizer, *optimizer.chained_optimizers, optimizer.optimizer)]
    parameters = [p for model in models for p in model.parameters()]
    hooks = [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in parameters]
    modules = [module for model in models for module in model.modules()]
    forwards = [(list(m._forward_pre_hooks.values()), list(m._forward_hooks.values())) for m in modules]
    return attributes, objects, hooks, forwards


def alone(setup: Setup) -> dict[str, Any]:
    """The same training in the first process, nothing shared out, with plain torch: by signal, step, micro batch and
    name what each replica should see."""
    import torch

    whole = setup._replace(tensor=1, pipeline=1, virtual=None, sequence=False, recompute=False)
    parallel(whole)
    if torch.distributed.get_rank():
        return {}
    model = chunk(whole, configuration(whole), 0)
    parameters = dict(inside(model).named_parameters())
    masters = {name: p.detach().float().clone().requires_grad_() for name, p in parameters.items()}
    adam = torch.optim.AdamW(masters.values(), lr=RATE, eps=EPSILON, weight_decay=0.0)
    found: dict[Any, Any] = {}
    for step in range(STEPS):
        sums = []
        for replica in range(setup.replicas):
            sums.append({name: torch.zeros(p.shape) for name, p in parameters.items()})
            for micro in range(setup.micro_batches):
                model.zero_grad()
                with activations(model, found, step, micro, replica):
                    (forward(model, *batch(step, micro, replica)).float().mean() / setup.micro_batches).backward()
                for name, p in parameters.items():
                    found["own", step, micro, name, replica] = p.grad.float().numpy().copy()
                    sums[-1][name] += p.grad
            for name, total in sums[-1].items():
                found["grad_unreduced", step, 0, name, replica] = total.numpy().copy()
        for name, master in masters.items():
            master.grad = sum(each[name] for each in sums) / setup.replicas
            found["grad_reduced", step, 0, name, None] = master.grad.numpy().copy()
            found["param_origin", step, 0, name, None] = parameters[name].detach().float().numpy().copy()
            for kind in ("exp_avg", "exp_avg_sq") if step else ():
                found[kind, step, 0, name, None] = adam.state[master][kind].numpy().copy()
        torch.nn.utils.clip_grad_norm_(masters.values(), CLIP)
        adam.step()
        with torch.no_grad():
            for name, master in masters.items():
                parameters[name].copy_(master)
                found["param_updated", step, 0, name, None] = parameters[name].float().numpy().copy()
    return found


def activations(model: Any, found: dict[Any, Any], step: int, micro: int, replica: int) -> Any:
    """While it is open: the outputs of the layers, and the gradients of those."""
    from contextlib import ExitStack

    placed = ExitStack()
    for number, layer in enumerate(inside(model).decoder.layers):
        name = f"decoder.layers.{number}.mlp.output"

        def heard(_: Any, __: Any, outputs: Any, name: str = name) -> None:
            found["actv", step, micro, name, replica] = outputs[0].detach().float().numpy().copy()
            outputs[0].register_hook(
                lambda g: found.update({("actv_grad", step, micro, name, replica): g.float().numpy().copy()})
            )

        placed.callback(layer.mlp.register_forward_hook(heard).remove)
    return placed


# What the tests see.


class Part(NamedTuple):
    """A row of one rank, or what rows of several come to."""

    where: str
    """Which elements; empty for all."""
    count: int
    whole: tuple[int, ...]
    moments: dict[str, float]
    term: bool = False


Key = tuple[str, int, int, str]
"""Signal, step, micro batch, and the name in the model as a whole."""


def rows(directory: str, first_layers: list[int]) -> dict[Key, Part]:
    """Rows of one rank."""
    found: dict[Key, Part] = {}
    for path in sorted(Path(directory).glob("*.csv")):
        signal = path.stem.rpartition("_")[0]
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                first = first_layers[int(line["vpp_stage"])]
                name = re.sub(r"layers\.(\d+)", lambda each: f"layers.{int(each[1]) + first}", line["name"])  # noqa: B023
                key = signal, int(line["step"]), int(line.get("micro_step") or 0), name
                if not signal.startswith("actv") or name.endswith("mlp.output_0"):
                    assert key not in found, f"{key} twice"
                    found[key] = part(line)
                    if not found[key].count:  # a rank without elements has an empty part
                        assert found.pop(key).where.endswith("0:0")
    return found


def part(line: dict[str, str]) -> Part:
    shape = tuple(json.loads(line["shape"]))
    count, where, whole, term = math.prod(shape), "", shape, False
    if line.get("coverage"):
        told = re.fullmatch(r"(\d+) of (\[.*\]) (at|term) (.*) over ranks .*", line["coverage"])
        assert told is not None, line["coverage"]
        assert int(told[1]) == count
        where, whole, term = told[4], tuple(json.loads(told[2])), told[3] == "term"
    numbers = {op: float(line[op]) for op in OPS}
    moments = {"min": numbers["min"], "max": numbers["max"]}
    moments |= {"sum": numbers["mean"] * count, "sumsq": numbers["norm"] ** 2}
    return Part(where, count, whole, moments, term)


def together(parts: list[Part]) -> Part:
    """Merge the parts of one whole; each counts once, on whichever rank."""
    wholes = {each.whole for each in parts}
    assert len(wholes) == 1, wholes
    distinct = list({each.where: each for each in parts}.values())
    for one in parts:
        assert one == next(each for each in distinct if each.where == one.where), "ranks do not agree"
    count = sum(each.count for each in distinct)
    assert count == math.prod(parts[0].whole), "parts do not make up the whole"
    return Part("", count, parts[0].whole, merge([p.moments for p in distinct], [p.count for p in distinct]))


def apart(whole: Part, expected: Any) -> float:
    """How far these numbers are from those of ``expected``: the norm relative to itself, others to the root mean
    square."""
    expected = np.asarray(expected, dtype=np.float64)
    assert whole.whole == expected.shape
    norm, told = float(np.sqrt((expected**2).sum())), whole.moments
    others = (told["min"] - expected.min(), told["max"] - expected.max(), told["sum"] / whole.count - expected.mean())
    return max(abs(math.sqrt(told["sumsq"]) / norm - 1), *(abs(x) * math.sqrt(expected.size) / norm for x in others))


@dataclass(repr=False)
class Outcome:
    """One setup, run on all ranks without and with a monitor, and alone."""

    setup: Setup
    plain: list[dict[str, Any]]
    watched: list[dict[str, Any]]
    rows: list[dict[Key, Part]]
    alone: dict[Any, Any]

    def replica(self, rank: int) -> int:
        """Which data a rank sees: ranks of a tensor-parallel group come one after the other, then replicas."""
        return rank // self.setup.tensor % self.setup.replicas

    def bound(self, signal: str) -> float:
        """Tensor-parallel ranks add in another order, and in bf16 round what they add. What is squared shows such a
        difference several times as large."""
        bound = 0.1 if self.setup.bf16 and self.setup.tensor > 1 else 1e-5
        return bound * (5 if signal == "exp_avg_sq" and self.setup.tensor > 1 else 1)


@pytest.fixture(scope="module", params=VERSIONS)
def two(request: pytest.FixtureRequest, megatron_ranks: Callable[..., Ranks]) -> Ranks:
    """Two processes with Megatron-Core."""
    return megatron_ranks(request.param)


@pytest.fixture(scope="module")
def references() -> dict[tuple[object, ...], dict[str, Any]]:
    """What :func:`alone` has returned, by all that it depends on."""
    return {}


@pytest.fixture(scope="module", params=CASES, ids=", ".join)
def outcome(
    request: pytest.FixtureRequest,
    megatron_ranks: Callable[..., Ranks],
    references: dict[tuple[object, ...], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcome:
    """Every setup."""
    version, name = request.param
    setup = SETUPS[name]
    ranks = megatron_ranks(version, setup.size)
    plain = ranks.run(train, setup, None)
    watched = ranks.run(train, setup, str(tmp_path_factory.mktemp("out")))
    found = [rows(each["directory"], each["layers"]) for each in watched]
    key = version, setup.replicas, setup.micro_batches, setup.layers, setup.bf16
    if key not in references:
        references[key] = ranks.run(alone, setup)[0]
    return Outcome(setup, plain, watched, found, references[key])


def test_training_is_not_disturbed(outcome: Outcome) -> None:
    """Losses, weights and collectives are the same with a monitor as without; afterwards all is as it was found."""
    for plain, watched in zip(outcome.plain, outcome.watched, strict=True):
        assert plain["losses"] == watched["losses"]
        for one, other in zip(plain["weights"], watched["weights"], strict=True):
            np.testing.assert_array_equal(one, other)
        assert plain["collectives"] == watched["collectives"]
        assert watched["as found"]
        assert watched["faults"] == {}
    assert any(plain["losses"] for plain in outcome.plain)
    assert sum(plain["collectives"].total() for plain in outcome.plain) > 0


def test_names_are_those_of_the_model(outcome: Outcome) -> None:
    """Of all ranks together: every parameter of the model, and nothing of what wraps it."""
    for signal in ("grad_unreduced", "param_origin", "param_updated"):
        written = {key[3] for each in outcome.rows for key in each if key[0] == signal}
        assert written == {key[3] for key in outcome.alone if key[0] == "param_origin"}


@pytest.mark.parametrize("signal", ["grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"])
def test_merged_rows_are_those_of_the_whole(outcome: Outcome, signal: str) -> None:
    """The ranks' rows of a tensor merge to those of one process without sharding."""
    expected = {key[:4]: value for key, value in outcome.alone.items() if key[0] == signal}
    assert len(expected) > 20
    assert {key for each in outcome.rows for key in each if key[0] == signal} == set(expected)
    for key, value in expected.items():
        parts = [each[key] for each in outcome.rows if key in each]
        assert not any(each.term for each in parts)
        assert apart(together(parts), value) <= outcome.bound(signal), key


def test_unreduced_gradients_are_what_each_rank_fed(outcome: Outcome) -> None:
    """Gradients are of each replica's own data: the step's sum, or, with monitor_mbs_grad, those of each micro
    batch."""
    setup = outcome.setup
    source = "own" if setup.own else "grad_unreduced"
    expected = {key: value for key, value in outcome.alone.items() if key[0] == source}
    heard = set()
    for (_, step, micro, name, replica), value in expected.items():
        parts = [
            each[key]
            for rank, each in enumerate(outcome.rows)
            if outcome.replica(rank) == replica and (key := ("grad_unreduced", step, micro, name)) in each
        ]
        assert parts, (step, micro, name)
        heard.add(("grad_unreduced", step, micro, name))
        if parts[0].term:
            terms = np.sum([each.moments["sum"] for each in parts])  # moments of terms do not merge, but sums add
            assert abs(terms - value.sum()) <= 1e-5 * np.abs(value).sum()
            assert len({each.where for each in parts}) == setup.tensor
        else:
            assert apart(together(parts), value) <= outcome.bound("grad_unreduced"), (step, micro, name)
    assert heard == {key for each in outcome.rows for key in each if key[0] == "grad_unreduced"}


def test_activations_belong_to_their_micro_batch(outcome: Outcome) -> None:
    """Also where a pipeline runs several micro batches forward before the first backward. With sequence parallelism
    each rank has its part of the sequence."""
    for (signal, step, micro, name, replica), value in outcome.alone.items():
        if signal in ("actv", "actv_grad"):
            key = signal, step, micro, f"{name}_0"
            ranks = [each for rank, each in enumerate(outcome.rows) if outcome.replica(rank) == replica]
            found = [each[key] for each in ranks if key in each]
            assert len(found) == outcome.setup.tensor, key
            if outcome.setup.sequence:
                moments = merge([each.moments for each in found], [each.count for each in found])
                found = [Part("", sum(each.count for each in found), value.shape, moments)]
            for each in found:
                assert apart(each, value) <= outcome.bound(signal), key


@pytest.mark.parametrize("way", ["data and tensor, distributed optimizer", "data and pipeline, distributed optimizer"])
def test_whole_tensors_while_training(megatron_ranks: Callable[..., Ranks], tmp_path: Path, way: str) -> None:
    """``global_stats`` has the numbers that the files of all ranks merge to, also if a rank has no part of a tensor."""
    setup = SETUPS.get(way) or Setup(size=4, pipeline=2, micro_batches=4, distributed=True)
    directory = str(tmp_path / "out")
    watched = megatron_ranks("0.16.1", 4).run(train, setup, directory, {"global_stats": True, "xy_distribution": False})
    assert [each["faults"] for each in watched] == [{}] * setup.size
    report = merge_directory(Path(directory), tmp_path / "merged")
    assert (report.incomplete, report.differing, report.problems) == (0, [], [])
    whole: dict[tuple[str, ...], dict[str, str]] = {}
    for signal, line in lines(tmp_path / "merged"):
        if signal != "grad_unreduced":
            whole[signal, line["step"], line.get("pp_stage") or "0", line["name"]] = line
    compared = 0
    for rank, each in enumerate(watched):
        stage = str(rank // (setup.size // setup.pipeline)) if setup.pipeline > 1 else "0"
        for signal, line in lines(Path(each["directory"])):
            if line.get("merged") and signal != "grad_unreduced":
                assert line["merged"] == "1", line
                offline = whole[signal, line["step"], stage, line["name"]]
                size = float(offline["norm"]) + 1e-12
                for op in OPS:
                    assert abs(float(line[f"global_{op}"]) - float(offline[op])) <= 2e-5 * size, (signal, line, op)
                compared += 1
    assert compared > 100


def lines(directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Every row of every file, with its signal."""
    for path in sorted(directory.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                yield path.stem.rpartition("_")[0], line


def test_redundant_gradients_are_on_one_rank(outcome: Outcome) -> None:
    """Given the groups, only their first ranks write a reduced gradient that all of them hold; parts that ranks share,
    and parameters, are written where they are."""
    setup = outcome.setup
    for key in {key for each in outcome.rows for key in each if key[0] in ("grad_reduced", "param_origin")}:
        having = [rank for rank, each in enumerate(outcome.rows) if key in each]
        parts = [outcome.rows[rank][key] for rank in having]
        if key[0] == "param_origin" and not setup.late:
            assert len(having) == len(outcome.rows) // setup.pipeline, key
        if key[0] == "grad_reduced":
            assert len({each.where for each in parts}) == len(parts), key
            assert setup.distributed or all(outcome.replica(rank) == 0 for rank in having), key


def test_the_manifest_names_the_groups(outcome: Outcome) -> None:
    """Megatron's groups as they are, and this rank's place in the pipeline."""
    setup, size = outcome.setup, len(outcome.watched)
    across = size // setup.pipeline
    for rank, watched in enumerate(outcome.watched):
        manifest = json.loads(Path(watched["directory"], "manifest.json").read_text(encoding="utf-8"))
        groups, first = manifest["groups"], rank // across * across
        tensor = rank // setup.tensor * setup.tensor
        assert groups["tensor_parallel"] == list(range(tensor, tensor + setup.tensor))
        assert groups["data_parallel"] == list(range(first + rank % setup.tensor, first + across, setup.tensor))
        assert groups["pipeline_parallel"] == list(range(rank % across, size, across))
        assert groups["context_parallel"] == groups["expert_parallel"] == [rank]
        assert manifest["pp_stage"] == rank // across
        assert manifest["raw_names"]["output_layer.weight" if rank >= size - across else "decoder"].startswith(
            "module."
        )


def small(directory: str, half: bool, fused: bool, own: bool, wrapped: bool) -> dict[str, Any]:
    """Two steps of a single layer, the first of them watched."""
    from probe.pytorch import TrainerMon
    from tests.distributed import megatron_tiny

    models, optimizer = megatron_tiny.build(half=half, fused=fused)
    os.environ["MONITOR_OUTPUT_DIR"] = directory
    settings = {"wg_distribution": True, "format": ["csv"], "ops": OPS, "ndigits": 20, "collect_times": 1}
    monitor = TrainerMon(settings | {"monitor_mbs_grad": own})
    monitor.set_monitor(models[0] if wrapped else models[0].module, 2, optimizer)
    before = models[0].module.linear.weight.detach().clone()
    fed, applied = megatron_tiny.step(models, optimizer, 0)
    megatron_tiny.step(models, optimizer, 1)
    monitor.stop()
    assert applied
    return {
        "directory": monitor.output_directory,
        "fed": fed[0].numpy(),
        "faults": monitor.faults,
        "shape": before.shape,
    }


UNREDUCED, REDUCED = ("grad_unreduced", 0, 0, "linear.weight"), ("grad_reduced", 0, 0, "linear.weight")


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_loss_scale_is_divided_out(two: Ranks, tmp_path: Path, wrapped: bool) -> None:
    """Gradients are those of the losses themselves, whether the wrapped model is given or the user's own."""
    found = two.run(small, str(tmp_path), half=True, fused=False, own=False, wrapped=wrapped)
    fed = [each["fed"] / 128 for each in found]
    for each, mine in zip(found, fed, strict=True):
        written = rows(each["directory"], [0])
        assert apart(written[UNREDUCED], mine) < 1e-6
        assert apart(written[REDUCED], sum(fed) / 2) < 1e-6
        assert not each["faults"]


def test_a_fused_weight_gradient_is_read_from_main_grad(two: Ranks, tmp_path: Path) -> None:
    """The sum of a step is there where the kernel of the linear layer has added it up."""
    found = two.run(small, str(tmp_path), half=False, fused=True, own=False, wrapped=True)
    for each in found:
        written = rows(each["directory"], [0])
        assert apart(written[UNREDUCED], each["fed"]) < 1e-6
        assert apart(written[REDUCED], sum(other["fed"] for other in found) / 2) < 1e-6


def test_what_a_fused_kernel_hides_is_counted(two: Ranks, tmp_path: Path) -> None:
    """No micro batch's own gradient exists: that is logged, the reduced one is recorded all the same."""
    found = two.run(small, str(tmp_path), half=False, fused=True, own=True, wrapped=True)
    for each in found:
        written = rows(each["directory"], [0])
        assert [key[0] for key in written] == ["grad_reduced"]
        assert apart(written[REDUCED], sum(other["fed"] for other in found) / 2) < 1e-6
        assert each["faults"] == {"gradient: LookupError": 2}


def broken(directory: str) -> None:
    """The first stage's weights are not numbers."""
    import torch
    from megatron.core import parallel_state

    from probe.pytorch import TrainerMon

    setup = Setup(pipeline=2, micro_batches=2)
    models, optimizer, _ = built(setup)
    os.environ["MONITOR_OUTPUT_DIR"] = directory
    rule = {"rule_name": "AnomalyNan", "args": {"threshold": 1e10}}
    settings = {"xy_distribution": True, "all_xy": True, "format": ["csv"], "ops": OPS}
    settings |= {"alert": {"rules": [rule], "dump": True}}
    monitor = TrainerMon(settings, process_group=parallel_state.get_pipeline_model_parallel_group())
    monitor.set_monitor(models[0], 2, optimizer)
    if parallel_state.is_pipeline_first_stage():
        with torch.no_grad():
            next(models[0].parameters()).fill_(torch.nan)
    steps(setup, models, optimizer)
    monitor.stop()


def test_findings_tell_the_stage(two: Ranks, tmp_path: Path) -> None:
    """Given the pipeline's group, a finding has its stage and its ranks."""
    two.run(broken, str(tmp_path))
    files = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.json")]
    found = [entry for file in files for entry in file.values() if isinstance(entry, dict) and "tag_name" in entry]
    assert {(entry["rank"], entry["pp_stage"], *entry["group_mates"]) for entry in found} == {
        (0, 0, 0, 1),
        (1, 1, 0, 1),
    }
    first = min((entry for entry in found if entry["rank"] == 1), key=lambda entry: entry["call_id"])
    assert (first["step"], first["micro_step"]) == (0, 0)


def losses_past_torch() -> list[float]:
    """The losses that the sentinel sees where Megatron's schedules enter the engine themselves."""
    import torch
    from megatron.core.pipeline_parallel import schedules

    import tests.distributed.megatron_cpu  # noqa: F401 - before Megatron-Core
    from probe.pytorch import training_loop

    seen: list[float] = []
    remove = training_loop.on_backward(
        lambda root, _: seen.append(math.nan if root is None else float(root)), lambda: seen.append(-1.0), Faults()
    )
    weight = torch.ones(3, requires_grad=True)
    schedules.custom_backward((2 * weight).sum(), None)
    hidden = weight * 3.0
    hidden.data = torch.empty(1)
    schedules.custom_backward(hidden, torch.ones(3))
    remove()
    schedules.custom_backward((2 * weight).sum(), None)
    assert weight.grad.tolist() == [7.0] * 3
    return seen


def test_a_loss_is_seen_where_the_schedule_enters_the_engine_itself(megatron_ranks: Callable[..., Ranks]) -> None:
    """Activations that were freed have one element as well, and are no loss."""
    first, began, second, ended = megatron_ranks(VERSIONS[0]).run(losses_past_torch)[0]
    assert (first, began, ended) == (6.0, -1.0, -1.0)
    assert np.isnan(second)

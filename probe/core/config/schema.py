"""Schema of the configuration: every key, its type, range, default and meaning.

`probe config explain` prints the docstring under a field, and docs/reference/configuration.md holds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

import annotated_types as ranges
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from probe.core.alerting.channels import ALSO, CHANNELS
from probe.core.fields import (
    Flag,
    FlagOrAddress,
    Form,
    Integer,
    Names,
    Number,
    Place,
    Rank,
    Section,
    Selector,
    Text,
    Variants,
    address_like,
    args_of,
    not_blank,
    not_empty,
    section_within,
    wrong,
)
from probe.core.histogram import HISTOGRAM
from probe.core.language import message
from probe.core.moments import GROUPS, OPS
from probe.core.output.sinks import FORMATS, offered
from probe.core.output.sinks.otlp import OtlpSettings
from probe.core.output.sinks.prometheus import PrometheusSettings
from probe.core.output.sinks.tracker import TrackerSettings
from probe.core.records import SEVERITIES
from probe.core.rules import GROUP, RULES
from probe.core.rules.spike import SpikeArgs
from probe.core.rules.tails import WARNINGS
from probe.core.run_state.rules import RUN_RULES

ALWAYS_WRITTEN = ("shape", "dtype")
"""Ops that are written in any case."""
EVERY_OP = (*OPS, HISTOGRAM, *GROUPS, *ALWAYS_WRITTEN)
"""Names that ops may contain."""
_FORMAT = Form("name", ", ".join(FORMATS), f"one of {', '.join(FORMATS)}")
_MICRO_BATCH = Form('boolean or "accumulated"', "", 'true, false or "accumulated"')
_TIME = (
    r"^(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?:0[1-9]|[12]\d|3[01])"
    r"_(?:[01]\d|2[0-3])-[0-5]\d-[0-5]\d$"
)
_STAMP = Form("timestamp", "such as Dec03_21-34-40")
_STAMPS = Form("list of timestamps", "none or two", 'two timestamps such as "Dec03_21-34-40", from and to, or none')


def _known_format(name: str) -> str:
    return name if name in FORMATS else Names((*FORMATS, *offered())).check(name)


def _one_or_list(value: object, each: ValidatorFunctionWrapHandler) -> Any:
    return (_known_format(value),) if isinstance(value, str) else each(value)


def _flag_or_accumulated(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    if value == "accumulated":
        return "accumulated"
    raise wrong(_MICRO_BATCH.expected)


def _none_or_two(stamps: tuple[str, ...]) -> tuple[str, ...]:
    if len(stamps) in (0, 2):
        return stamps
    raise wrong(_STAMPS.expected)


def _without_spaces(value: object) -> object:
    return value.replace(" ", "") if isinstance(value, str) else value


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error:
        raise wrong(r"a regular expression such as train.py\[23\]") from None
    return text


Formats = Annotated[
    tuple[Annotated[Text, AfterValidator(_known_format), _FORMAT], ...],
    AfterValidator(not_empty),
    WrapValidator(_one_or_list),
    Form("name or list of names", ", ".join(FORMATS), f"one or a list of {', '.join(FORMATS)}"),
]
"""Names of formats."""
RULE_ARGS: dict[str, type[Section]] = {name: rule.Args for name, rule in RULES.items()}
"""Rules that come with probe, and the models of their arguments."""
DEFAULT_RULES = tuple(name for name, rule in RULES.items() if rule.by_default)
"""Rules that judge if a configuration names none: each had no false alarm in healthy runs of many kinds."""


def _known_rule(name: str) -> str:
    if name in RUN_RULES:
        raise wrong(message("a rule about collected values; those about numbers of the run stand in run.rules"))
    if name not in RULE_ARGS:
        Names((*RULE_ARGS, *(point.name for point in entry_points(group=GROUP)))).check(name)
    return name


_RULE_NAME = Form("name", ", ".join(RULE_ARGS), f"one of {', '.join(RULE_ARGS)}")


class RuleSettings(Section):
    """Alert rule."""

    rule_name: Annotated[Text, AfterValidator(_known_rule), _RULE_NAME] = Field(
        description=f"Name of the rule. {', '.join(f'{name} {rule.finds}' for name, rule in RULES.items())}. Other "
        "names are those of installed packages with an entry point in the group `probe.rules`."
    )
    args: Annotated[Any, args_of("rule_name", RULE_ARGS), Variants(RULE_ARGS)] = Field({}, validate_default=True)
    """Arguments of the rule. A third party's rule gets this mapping as it is."""


CHANNEL_ARGS: dict[str, type[Section]] = {name: channel.Args for name, channel in CHANNELS.items()}
"""Channels of alerts, and the models of their arguments."""


def _args_of_channel(value: object, info: ValidationInfo) -> Any:
    if not isinstance(value, Mapping | Section):  # such as an address, which no error may show
        shown = type(value).__name__
        raise PydanticCustomError("expected", "expected", {"expected": "a mapping", "shown": shown})
    return section_within(CHANNEL_ARGS.get(info.data.get("channel", "")), value)


class ChannelSettings(Section):
    """Channel of alerts."""

    channel: Annotated[Text, Names(tuple(CHANNELS), ALSO)] = Field(
        description="Name of the channel. "
        + " ".join(f"`{name}` {channel.sends}." for name, channel in CHANNELS.items())
    )
    severity: Annotated[Text, Names(SEVERITIES)] = "warning"
    """Least severity of the alerts that it sends: `info`, `warning` or `critical`."""
    args: Annotated[Any, PlainValidator(_args_of_channel), Variants(CHANNEL_ARGS)] = Field({}, validate_default=True)
    """Arguments of the channel. Secrets stand in a file or in an environment variable that is named here."""


class AlertSettings(Section):
    """Automatic alerts."""

    rules: tuple[RuleSettings, ...] = tuple(RuleSettings(rule_name=name, args={}) for name in DEFAULT_RULES)
    """Rules that judge every collected value. For one value the first rule that matches is reported. A rule judges only
    the signals and ops that are collected. Missing: AnomalyNan, AnomalySpike, AnomalyVanish, AnomalyDead,
    AnomalyFrozen, AnomalyExtreme, AnomalyEntropy and AnomalyRouter with their defaults. Empty list: none."""
    warnings_per_10000_steps: Annotated[Number, ranges.Gt(0)] = WARNINGS
    """Rate at which healthy training may be reported by what judges all rows together (`joint` of AnomalySpike), over
    all signals: the limits follow from it. A larger number finds smaller leaps."""
    dump: Flag = False
    """Write findings to `anomaly_detected/rank{rank}/anomaly.json` in the output directory too."""
    channels: tuple[ChannelSettings, ...] = ()
    """Channels to which alerts are sent: findings of these rules and of those about the run (`run.rules`), hangs,
    exceptions, SIGTERM. Empty: none. Every alert is also written to `alerts` in the output directory before it is
    sent."""
    group_seconds: Annotated[Number, ranges.Ge(0)] = 10.0
    """Alerts within this time in seconds after the first one are sent as one message; those of a run within a second in
    any case."""
    language: Annotated[Text, Names(("en", "zh_cn"))] = "en"
    """Language of the alerts; names, numbers and commands are as they are."""
    grace_seconds: Annotated[Number, ranges.Ge(0)] = 10.0
    """Longest time in seconds in which the last alerts are delivered when a run ends; at SIGTERM and at an exception,
    rows are written within it, too. Alerts that could not be delivered stay on disk."""

    @property
    def judging(self) -> tuple[RuleSettings, ...]:
        """Rules as they judge: one without a rate of warnings of its own has that of all."""
        return tuple(self._with_rate(rule) for rule in self.rules)

    def _with_rate(self, rule: RuleSettings) -> RuleSettings:
        if not isinstance(rule.args, SpikeArgs) or rule.args.warnings_per_10000_steps is not None:
            return rule
        rate = {"warnings_per_10000_steps": self.warnings_per_10000_steps}
        return rule.model_copy(update={"args": rule.args.model_copy(update=rate)})


class Target(Section):
    """Watched places of one module."""

    input: Place = None
    """Element of the module's positional inputs to watch, by their type: `tensor`, or `tuple[2]:0` for element 0 of a
    tuple of 2 (`tuple[2]` means the same). `list[3]:1` and `dict[2]:0` are read in the same way, a dict in the order of
    its keys. Of input, output, input_grad and output_grad only those listed are watched; `{}` watches all four with
    every tensor in them."""
    output: Place = None
    """Element of the module's outputs to watch, written as for input."""
    input_grad: Place = None
    """Gradient with respect to the module's inputs to watch, written as for input."""
    output_grad: Place = None
    """Gradient with respect to the module's outputs to watch, written as for input."""

    @property
    def places(self) -> Mapping[str, Selector | None]:
        """Watched places, each with its selector; None stands for every tensor there."""
        listed = {name: place for name in type(self).model_fields if (place := getattr(self, name)) is not None}
        return listed or dict.fromkeys(type(self).model_fields)


class CcDistribution(Section):
    """Monitoring of collective communication."""

    enable: Flag = False
    """Monitor collectives in runs of several processes, from the construction of the monitor on. The calls are logged
    once, before the update of the second training step."""
    cc_codeline: tuple[Annotated[Text, AfterValidator(_expression)], ...] = ()
    r"""Lines of code whose collectives are monitored, as regular expressions such as `train.py\[23\]`, which are
    searched in the lines `path[line] function` of a call's stack. Empty: all."""
    cc_pre_hook: Flag = False
    """Monitor the tensors before communication too. The rule AnomalyCommNan needs them, and they are always collected
    for it."""
    cc_log_only: Flag = False
    """Log the calls (stack, dtype, group) once and collect nothing. Before the update of the second training step,
    training is then stopped on every rank by the exception TrainingStopped."""


class Arm(Section):
    """Data that are collected in addition after a finding."""

    xy_distribution: Flag = False
    """Collect inputs, outputs and their gradients."""
    wg_distribution: Flag = False
    """Collect weight gradients."""
    param_distribution: Flag = False
    """Collect parameters."""
    mv_distribution: Flag = False
    """Collect the optimizer's state."""
    targets: Annotated[Text, Names(("suspects", "all"))] = "suspects"
    """Modules to collect from: `suspects` are the blocks (such as `layers.1`) of the first findings; `all` is the whole
    model."""


class OnAnomaly(Section):
    """Deeper monitoring that the run switches on by itself."""

    arm: Arm
    """Data that are collected in addition to those of the configuration."""
    steps: Integer = Field(10, ge=1)
    """Number of steps; each of them is collected, regardless of step_interval."""
    cool_down: Integer = Field(100, ge=0)
    """Number of steps after that in which findings do not switch it on again."""


class L2Targets(Section):
    """Modules of the interpretable features."""

    attention_hook: tuple[Text, ...] | None = None
    """Attention modules, called with query and key, whose `entropy` and `softmax_max`, means over the queries, are
    recorded at each call, by their exact names such as `0:layers.0.attention`. Missing or empty: none."""
    linear_hook: tuple[Text, ...] | None = None
    """Linear modules whose `kernel_norm`, the spectral norm of the weight, and `sr`, its Frobenius norm divided by the
    spectral norm, are recorded once a step. Missing: none; empty list: every module with a two-dimensional `weight` or
    `wg`."""
    moe_router_weight_hook: tuple[Text, ...] | None = None
    """Router modules of mixtures of experts whose `router_weight_similarity`, the mean cosine between the weights of
    two experts, is recorded once a step. Missing or empty: none."""
    moe_router_logit_hook: tuple[Text, ...] | None = None
    """Router modules of mixtures of experts whose first output are logits: `per_token_expert_entropy`, the mean over
    tokens, and the load of the experts, `load_max` (largest divided by mean), `load_cv` (standard deviation divided
    by mean), `load_min` (smallest divided by mean) and `load_share` (part of all tokens that the busiest has), are
    recorded at each call. Missing or empty: none."""


RUN_RULE_ARGS: dict[str, type[Section]] = {name: rule.Args for name, rule in RUN_RULES.items()}
"""Rules about the run, and the models of their arguments."""


def _known_run_rule(name: str) -> str:
    if name in RULE_ARGS:
        raise wrong(message("a rule about numbers of the run; those about collected values stand in alert.rules"))
    return name


class RunRuleSettings(Section):
    """Rule about numbers of the run."""

    rule_name: Annotated[Text, AfterValidator(_known_run_rule), Names(tuple(RUN_RULES))] = Field(
        description=f"Name of the rule. {', '.join(f'{name} {rule.finds}' for name, rule in RUN_RULES.items())}."
    )
    args: Annotated[Any, args_of("rule_name", RUN_RULE_ARGS), Variants(RUN_RULE_ARGS)] = Field(
        {}, validate_default=True
    )
    """Arguments of the rule."""


class HangSettings(Section):
    """Detection of a run that stands still."""

    enable: Flag = False
    """Watch the progress of every rank of a node by a process of its own. If a rank takes much longer for a step or
    another phase than it has taken so far, the stacks of all ranks of the node are written, and one alert is sent."""
    on_hang: Annotated[Text, Names(("alert", "end"))] = "alert"
    """`alert`: send an alert; `end`: also end the ranks of the node after their stacks are written, so that a launcher
    starts them again."""
    floor_seconds: Annotated[Number, ranges.Gt(0)] = 60.0
    """Shortest time in seconds without progress that counts as standing still."""
    startup_seconds: Annotated[Number, ranges.Gt(0)] = 1800.0
    """Longest time in seconds before the end of the first step."""


class RunSettings(Section):
    """Numbers of the run: loss, learning rate, throughput, phases; at every step and on every rank, regardless of the
    steps that are collected."""

    enable: Flag | None = None
    """Record numbers of the run. Missing: from the first call of `monitor.log` or `monitor.phase` on."""
    job: Annotated[Text, AfterValidator(not_blank)] | None = None
    """Name of the job in alerts and heartbeats. Missing: the name of the script."""
    steps_per_file: Annotated[Integer, ranges.Ge(1)] = 100
    """Number of steps in a CSV or Parquet file of these numbers."""
    rules: tuple[RunRuleSettings, ...] = tuple(
        RunRuleSettings(rule_name=name, args={}) for name, rule in RUN_RULES.items() if rule.by_default
    )
    """Rules that judge these numbers at every step. Missing: those that had no false alarm in healthy runs. Empty list:
    none."""
    flops_per_step: Annotated[Number, ranges.Gt(0)] | None = None
    """Floating-point operations of a step on this rank, for `model_tflops` (TFLOP/s). Missing: not recorded."""
    server: Annotated[Text, address_like("http://10.0.0.1:8765")] | None = None
    """Address of a heartbeat server (`probe serve`), such as `http://10.0.0.1:8765`, to which every rank sends its
    numbers and findings. Its token is read from the environment variable PROBE_SERVER_TOKEN."""
    hang: HangSettings = HangSettings()
    """Detection of a run that stands still."""


class SentinelSettings(Section):
    """The sentinel: the loss, the norms of all gradients and the facts of the training loop, at every step, regardless
    of the steps that are collected. Its checks warn of what cannot be in a meaningful loop."""

    enable: Flag = False
    """Watch at every step."""
    collect: Flag = True
    """With enable: when a check finds something critical, or warns of the numbers of an update, collect activations,
    gradients and parameters of the whole model at every step from the next one on, at most 10 steps an incident, 3
    incidents an hour, 2 % of the run's time (of a minute at least) and 256 MiB, once for each check. Nothing more is
    collected where torch.compile has compiled anything. A change of the configuration ends it."""


class Settings(Section):
    """Everything a user can configure."""

    targets: dict[Text, Target] = Field(default_factory=dict)
    """Names of the modules and parameters to watch, as `named_modules()` or `named_parameters()` returns them, full or
    squashed, with or without the stage prefix `0:`. A module's name includes all its parameters; a name ends at a dot,
    so `layers.1` never includes `layers.10`. A name as earlier tools shortened it (`0.mlp` for `layers.0.mlp`) is
    accepted too. Empty: everything."""
    dynamic_on: Flag = False
    """Switch of monitoring while training runs, if the environment variable DYNAMIC_MONITOR is true; without it this
    key has no effect. The file is then checked after every step: if true, monitoring begins at the next step, or
    continues with the changed keys, and collect_times counts anew; if false, it stops. After collect_times steps
    monitoring stops and false is written here. Only append_output, output_dir, dynamic_broadcast, queue_size,
    when_queue_full, run and sentinel.enable keep their first values; a warning names an edit of them."""
    apply_at_step: Annotated[Integer, ranges.Ge(0)] | None = None
    """In dynamic mode: the step from which on a changed file holds, on all ranks. Missing, or a step that has passed:
    the next one; with several ranks the first rank writes a step here that lies dynamic_seconds ahead. It announces
    every change in the folder `<configuration>.changes` beside the file, which the other ranks read."""
    dynamic_seconds: Annotated[Number, ranges.Ge(0)] = 5.0
    """In dynamic mode with several ranks: longest time in seconds until all of them see a change of the file."""
    dynamic_broadcast: FlagOrAddress = False
    """For ranks that share no file system: changes of the configuration, on_anomaly triggers and max_overhead intervals
    are sent through a TCP store instead of files. The file of the first rank then holds for all. true: the store in
    which PyTorch's processes met; or host and port for a store of the first rank, such as `10.0.0.1:29600`, where that
    rank listens, and nowhere else; MindSpore needs this. Messages are signed with the environment variable
    PROBE_BROADCAST_SECRET, the same on all ranks (`openssl rand -hex 32`, once for each job); others are ignored and
    counted. Keys that end training (print_struct, cc_log_only) are never sent. No rank waits for another."""
    toggle_on_signal: Flag = False
    """In dynamic mode: let SIGUSR1, sent to the process of the first rank, switch monitoring on and off, on all
    ranks."""
    start_step: Integer = Field(0, ge=0)
    """First step that is collected. It has no effect in dynamic mode, where collecting begins with the next step, or at
    apply_at_step."""
    collect_times: Integer = Field(100_000_000, ge=0)
    """Number of steps that are collected; then monitoring ends."""
    step_interval: Integer = Field(1, ge=1)
    """Distance in steps from one collected step to the next. Steps between cost next to nothing."""
    max_overhead: Annotated[Number, ranges.Gt(0), ranges.Le(1)] | None = None
    """Fraction of training time that monitoring may take, such as 0.01. The monitor measures its own cost in collected
    steps. If it exceeds this fraction of training time, it collects less often (every 2nd, 3rd, ... multiple of
    step_interval). Each rank decides alone, so ranks may collect different steps; with global_stats, the first rank
    decides for all. Cost in steps that are not collected (some microseconds a module with xy_distribution) is not
    counted. Missing: no limit. The manifest has the number of steps that were left out."""
    history: Integer = Field(0, ge=0, le=10_000)
    """Number of steps that are kept in memory instead of written at once. When a rule fires or training ends with an
    exception, these steps, the current one and as many after it are written; a healthy run writes only the manifest.
    Each rank decides alone. At most 256 MiB are kept on each rank; beyond that the oldest steps are dropped. 0:
    everything is written at once."""
    print_struct: Flag = False
    """Write the names and structures of all modules, and then stop training. The file is
    `module_struct/rank0/module_struct.json`, and so on, in MONITOR_OUTPUT_DIR; nothing else is collected. Training is
    stopped after the update of the first step (in dynamic mode: the first step after it is switched on), on every rank,
    by the exception TrainingStopped. `probe targets` makes a targets block of such a file."""
    module_ranks: tuple[Rank, ...] = ()
    """Ranks that collect and write. Empty: all."""
    ur_distribution: Flag = False
    """Collect the optimizer's update vectors (`update`) and update ratios (`ratio`), for Adam and other optimizers with
    a first and a second moment. With the format `tensorboard`, their histograms are written too, as if histogram were
    one of the ops."""
    xy_distribution: Flag = False
    """Collect module inputs and outputs (`actv`) and their gradients (`actv_grad`)."""
    all_xy: Flag = False
    """With xy_distribution: watch every module. Modules listed in targets keep the places listed there, in all others
    all four are watched."""
    forward_only: Flag = False
    """With xy_distribution: collect inputs and outputs only, not their gradients."""
    backward_only: Flag = False
    """With xy_distribution: collect gradients of inputs and outputs only. If forward_only is true too, neither is
    collected, and a warning is logged."""
    compiled: Annotated[Text, Names(("skip", "record"))] = "skip"
    """Treatment of modules that run inside code compiled by torch.compile. `skip`: their inputs and outputs are not
    recorded, which is logged once and counted, and the compiled code stays as it is. `record`: operators that read
    inputs, outputs and gradients of outputs are compiled into the code, without a graph break; gradients of inputs are
    not recorded, which is counted. `record` needs torch 2.13 or later."""
    mv_distribution: Flag = False
    """Collect the optimizer's state: `exp_avg`, `exp_avg_sq`, momentum buffers or other tensors that it keeps."""
    param_distribution: Flag = False
    """Collect parameters, before (`param_origin`) and after (`param_updated`) the update."""
    wg_distribution: Flag = False
    """Collect weight gradients, before (`grad_unreduced`) and after (`grad_reduced`) reduction over ranks."""
    monitor_mbs_grad: Annotated[bool | Literal["accumulated"], PlainValidator(_flag_or_accumulated), _MICRO_BATCH] = (
        False
    )
    """With wg_distribution: unreduced gradients that are collected. true: the own gradient of each micro batch;
    `accumulated`: after each micro batch, the running sum over the micro batches of the step, if the framework keeps
    one; false: the step's local total."""
    global_stats: Flag = False
    """For tensors divided among ranks (FSDP, ZeRO, tensor parallelism, distributed optimizers): collect the numbers of
    the whole tensor too (`global_norm`, ...). This costs one small collective for each sampled step and group of
    sharing ranks, on the hosts' network, in parallel with training. Without it, `probe merge` computes the same from
    the files."""
    global_stats_seconds: Annotated[Number, ranges.Gt(0)] = 15.0
    """With global_stats: time in seconds that a rank waits for the others, while training goes on. If one does not
    come, whole tensors are no longer collected in this run. Until then at most 32 steps are held back; rows of earlier
    steps are written without numbers of the whole. stop() waits as long, training never does."""
    mg_direction: Flag = False
    """Collect the fraction of elements whose gradient and momentum agree in sign (`mg_direction`): one number a
    parameter, which every op repeats."""
    relative_update: Flag = False
    """Collect the root mean square of each parameter's change by the update over that of the parameter before it
    (`relative_update`), for every optimizer: one number a parameter. Needs a copy of the parameters during the update,
    in float32 at least."""
    cc_distribution: CcDistribution = CcDistribution()
    """Monitoring of collective communication."""
    alert: AlertSettings = AlertSettings()
    """Rules that report suspicious values while training runs, and channels to which alerts are sent."""
    sentinel: SentinelSettings = SentinelSettings()
    """The sentinel, at every step."""
    run: RunSettings = RunSettings()
    """Numbers of the run, and detection of a run that stands still."""
    on_anomaly: OnAnomaly | None = None
    """Data that are collected in addition for some steps when a rule fires. All ranks start at the same step, which
    with several ranks lies about dynamic_seconds in the future. Missing: nothing."""
    format: Formats = ("csv",)
    """Formats of the output: `csv` files, `tensorboard` event files, a `sqlite` database, `parquet` files, or `api`,
    which writes no file and keeps the values for the program. `csv_v2` writes CSV files in the layout of msprobe's
    Monitor V2. `prometheus` shows the latest numbers to `probe exporter` and to Prometheus, `otlp` sends them to a
    collector of OpenTelemetry. `wandb`, `mlflow`, `swanlab` and `trackio` show a part of the numbers in that tracker of
    experiments. A list writes to several at once. Parquet files are written every step_count_per_record steps and at
    the end: a run that is killed loses the steps since then. Other names are those of installed packages with an entry
    point in the group `probe.sinks`."""
    prometheus: PrometheusSettings = PrometheusSettings()
    """Numbers for Prometheus, with `format: prometheus`."""
    otlp: OtlpSettings = OtlpSettings()
    """Metrics by OpenTelemetry's protocol, with `format: otlp`."""
    trackers: TrackerSettings = TrackerSettings()
    """Trackers of experiments, with `format: wandb` and its like."""
    ops: tuple[Annotated[Text, Names(EVERY_OP)], ...] = ("norm",)
    """Numbers computed for every tensor, in the order of the columns. zeros is the fraction of elements below eps, nans
    and infs are counts, std is the population standard deviation, id is the value of a tensor without dimensions.
    histogram counts elements by sign and power of two; q05, q25, q50, q75 and q95 are quantiles from it, to a factor of
    2, and quantiles stands for all five. shape and dtype are always written. Empty: norm, with a warning."""
    eps: Number = Field(1e-8, ge=0)
    """Magnitude below which the op zeros counts an element."""
    ndigits: Annotated[Integer, ranges.Ge(0), ranges.Le(20)] | None = None
    """Decimal places of the numbers in CSV files. Missing: 6 significant digits, so that small numbers stay
    readable."""
    step_count_per_record: Integer = Field(1, ge=1, le=1_000_000)
    """Number of steps that one CSV or Parquet file holds."""
    output_dir: Annotated[Text, AfterValidator(not_blank)] | None = None
    """Directory of the output. Missing: the environment variable MONITOR_OUTPUT_DIR, else `./monitor_output`."""
    append_output: Annotated[
        tuple[Annotated[Text, StringConstraints(pattern=_TIME), _STAMP], ...],
        AfterValidator(_none_or_two),
        _STAMPS,
    ] = ()
    """When a run is resumed: two timestamps of earlier output directories, such as `Dec03_21-34-40`. Each rank
    continues the directory between them; a rank that finds none begins a new one. Data there from the run's first step
    (start_iteration, which is required) on are moved into a folder `superseded-...` in the directory, as soon as the
    first step is written."""
    squash_name: Flag = True
    """Shorten names to the part from their last layer, embedding, final, output or norm component on. Switch it off if
    shortened names clash, as in multimodal models."""
    stack_info: Flag = False
    """Write the stack of each watched module's first call in the first collected step to `stack_info.csv`: `path[line]
    function`, the nearest first, without the lines of probe and those in which the framework calls modules. Only with
    the format csv."""
    recording_l2_features: Flag = False
    """Record the interpretable features of the modules in l2_targets, in collected steps."""
    l2_targets: L2Targets = L2Targets()
    """Modules whose interpretable features are recorded, by their names as in targets, such as `0:layers.0.attention`.
    A name that no module has is an error; a module that lacks what a feature needs gives a warning and no row."""
    sa_order: Annotated[Text, Names(("s,b,h,d", "b,s,h,d", "b,h,s,d")), BeforeValidator(_without_spaces)] = "s,b,h,d"
    """Order of the dimensions of the query and key tensors of attention_hook: s is the sequence, b the batch, h the
    head, d the dimension within a head."""
    sa_heads: Annotated[Text, Names(("first", "all"))] = "first"
    """Heads over which attention_hook averages: `first` is the first head of the first sample, `all` every head of
    every sample of the micro batch."""
    sa_mask: Annotated[Text, Names(("auto", "causal", "none"))] = "auto"
    """Keys that each query may attend to when attention_hook computes entropy. `auto`: use the mask passed to the
    module, and mask later keys if the call or the module is marked causal (`is_causal`, `causal`, `attn_mask_type`).
    `causal`: use the mask and always mask later keys. `none`: no masking. If `auto` finds neither a mask nor a mark,
    later keys are masked if there are as many keys as queries, with one warning."""
    sa_mask_true: Annotated[Text, Names(("hides", "attends"))] = "hides"
    """Meaning of true in a mask of booleans or integers. `hides`: the key is hidden, as in Megatron, MindSpore and
    torch.nn.MultiheadAttention; `attends`: it is attended to, as in torch's scaled_dot_product_attention."""
    router_top_k: Annotated[Integer, ranges.Ge(1)] | None = None
    """Number of experts per token for moe_router_logit_hook. Missing: the module's own attribute (`top_k`, `topk`,
    `num_experts_per_tok`); if it has none, the load of experts is nan."""
    queue_size: Integer = Field(8, ge=1, le=1000)
    """Number of collected steps that may wait between training and the files."""
    when_queue_full: Annotated[Text, Names(("wait", "drop"))] = "wait"
    """Behaviour if queue_size steps wait and another comes: `wait` holds training up and loses nothing; `drop` drops
    that step and counts it."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats without repetition."""
        return tuple(dict.fromkeys(self.format))

    @property
    def sink_options(self) -> dict[str, Section]:
        """Options of sinks, by name."""
        return {"prometheus": self.prometheus, "otlp": self.otlp, "trackers": self.trackers}

    @property
    def statistics(self) -> tuple[str, ...]:
        """Ops that are computed, in the order of the columns, without repetition; norm if there are none."""
        ops = (each for op in self.ops if op not in ALWAYS_WRITTEN for each in GROUPS.get(op, (op,)))
        return tuple(dict.fromkeys(ops)) or ("norm",)

    @property
    def ends_training(self) -> list[str]:
        """Paths of the keys by which training is stopped. No message of another rank may set them."""
        keys = {"print_struct": self.print_struct, "cc_distribution.cc_log_only": self.cc_distribution.cc_log_only}
        return [key for key, on in keys.items() if on]

"""msprobe's Monitor as a dialect: the configuration here has its keys, in the same sections and with the same names."""

from __future__ import annotations

from probe.core.config.dialect import TOP, Dialect, all_keys, keys_of, not_here
from probe.core.config.schema import AlertSettings, CcDistribution, L2Targets, RuleSettings, Settings, Target
from probe.core.rules import RULES

EVERYTHING = Dialect("probe", tuple(all_keys(Settings)))
"""Every key of this package, for messages about a key in another section."""
_TOP_KEYS = (
    *("targets", "dynamic_on", "collect_times", "start_step", "step_interval", "print_struct", "module_ranks"),
    *("ur_distribution", "xy_distribution", "all_xy", "forward_only", "backward_only", "mv_distribution"),
    *("wg_distribution", "monitor_mbs_grad", "param_distribution", "alert", "cc_distribution", "mg_direction"),
    *("format", "ops", "eps", "ndigits", "step_count_per_record", "append_output", "squash_name", "stack_info"),
    *("recording_l2_features", "l2_targets", "sa_order"),
)
_INFORM = "alert.channels sends alerts, by email with the channel apprise; the folder alerts holds each of them"
_RULE_KEYS = ("threshold",)
MSPROBE = Dialect(
    "msprobe's Monitor",
    (
        *keys_of(Settings, TOP, _TOP_KEYS),
        *keys_of(Target, "targets"),
        *keys_of(CcDistribution, "cc_distribution"),
        *keys_of(AlertSettings, "alert", ("rules", "dump")),
        *keys_of(RuleSettings, "alert.rules"),
        *(key for rule in RULES.values() for key in keys_of(rule.Args, "alert.rules.args", _RULE_KEYS)),
        *keys_of(L2Targets, "l2_targets"),
        *not_here("alert", {"inform": _INFORM}),
    ),
)
"""Keys that msprobe's documentation and its releases have. A key that is unknown, or that stands in another section, is
an error before training."""

"""Board of the layers of one rank: an op of a signal by layer, spread, largest changes, NaN and Inf."""

from __future__ import annotations

from boards.board import CLUSTERS, JOB, JOBS, OF_RANKS, Board, Row, Variable, top
from boards.panel import Panel, Query

RANK = f'{JOB}, rank="$rank"'
TENSORS = f'{RANK}, signal="$signal", layer=~"$layer"'
NOW = f"max by (layer) (probe_tensor_$op{{{TENSORS}}})"
MEAN = f"max by (layer) (avg_over_time(probe_tensor_$op{{{TENSORS}}}[1h]))"
CHANGE = f"exp(abs(ln({NOW} / {MEAN})))"

NUMBERS = Row(
    "Now",
    (
        Panel(
            "Layers",
            "Layers of the chosen signal that the rank exports.",
            "short",
            (Query(f"count({NOW})", "layers"),),
            "number",
            6,
            4,
        ),
        Panel(
            "Series left out",
            "Series beyond the limit of a rank: 200 unless the configuration has another.",
            "short",
            (Query(f"max(probe_series_dropped{{{RANK}}})", "series"),),
            "number",
            6,
            4,
            limit=1,
        ),
        Panel(
            "Step",
            "Last step of the rank. Tensors are those of the last sampled step.",
            "short",
            (Query(f"max(probe_training_step{{{RANK}}})", "step"),),
            "number",
            6,
            4,
        ),
        Panel(
            "Layers with NaN or Inf",
            "Tensors of all signals with at least one such element; needs the ops nans and infs.",
            "short",
            (
                Query(f"sum(probe_tensor_nans{{{RANK}}} > bool 0)", "NaN"),
                Query(f"sum(probe_tensor_infs{{{RANK}}} > bool 0)", "Inf"),
            ),
            "number",
            6,
            4,
            limit=1,
        ),
    ),
)
LAYERS = Row(
    "$op of $signal",
    (
        Panel(
            "Largest layers",
            "The ten layers with the largest value at the end of the shown time.",
            "short",
            (Query(top(10, "layer", NOW), "{{layer}}"),),
            width=12,
            height=10,
            logarithmic=True,
        ),
        Panel(
            "All layers",
            "Decimal logarithm of the magnitude by layer: 1 more is ten times as much.",
            "none",
            (Query(f"log10(abs({NOW}))", "{{layer}}"),),
            "grid",
            12,
            10,
        ),
        Panel(
            "Spread over layers",
            "Quantiles of the chosen signal over its layers.",
            "short",
            tuple(
                Query(f"quantile({part}, {NOW})", name)
                for part, name in ((1, "largest"), (0.9, "90 %"), (0.5, "median"), (0.1, "10 %"), (0, "smallest"))
            ),
            width=12,
            logarithmic=True,
        ),
        Panel(
            "Signals",
            "Largest value of each signal over its layers.",
            "short",
            (Query(f"max by (signal) (probe_tensor_$op{{{RANK}}})", "{{signal}}"),),
            width=12,
            logarithmic=True,
        ),
    ),
)
CHANGES = Row(
    "Changes",
    (
        Panel(
            "Largest changes",
            "Value of a layer against its mean over an hour. The factor is above 1 for growth and shrinkage alike.",
            "short",
            (
                Query(NOW, "now"),
                Query(MEAN, "mean of an hour"),
                Query(CHANGE, "factor"),
            ),
            "table",
            12,
            first=("layer",),
            descending="factor",
        ),
        Panel(
            "Layers that have changed the most",
            "Factor between the value of a layer and its mean over an hour, the ten largest.",
            "short",
            (Query(f"topk(10, {CHANGE})", "{{layer}}"),),
            "bars",
            12,
        ),
        Panel(
            "NaN and Inf by signal",
            "Elements of all layers that are no number; needs the ops nans and infs.",
            "short",
            (
                Query(f"sum by (signal) (probe_tensor_nans{{{RANK}}})", "NaN {{signal}}"),
                Query(f"sum by (signal) (probe_tensor_infs{{{RANK}}})", "Inf {{signal}}"),
            ),
            width=12,
            limit=1,
        ),
        Panel(
            "Ranks with the largest value",
            "Largest value over the chosen layers by rank: one rank above the others has other data or a broken GPU.",
            "short",
            (
                Query(
                    f'topk(10, max by (rank) (probe_tensor_$op{{{JOB}, signal="$signal", layer=~"$layer"}}))',
                    "rank {{rank}}",
                ),
            ),
            "bars",
            12,
        ),
    ),
)

LAYERS_BOARD = Board(
    "layers",
    "probe: layers",
    "Tensors of one rank by signal and layer.",
    (
        CLUSTERS,
        JOBS,
        Variable("rank", "Rank", f"label_values({{{OF_RANKS}, {JOB}}}, rank)", current="0", numeric=True),
        Variable(
            "op",
            "Op",
            f'label_values({{__name__=~"probe_tensor_.+", {RANK}}}, __name__)',
            regex="/probe_tensor_(.*)/",
            current="norm",
        ),
        Variable("signal", "Signal", f"label_values(probe_tensor_$op{{{RANK}}}, signal)", current="grad_reduced"),
        Variable("layer", "Layer", f'label_values(probe_tensor_$op{{{RANK}, signal="$signal"}}, layer)', every=True),
    ),
    (NUMBERS, LAYERS, CHANGES),
)

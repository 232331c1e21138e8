"""Names of a launch: what its ranks have in common, and two launches have not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

CHOSEN = "PROBE_LAUNCH"
"""Environment variable that replaces all others."""
WATCHED = "PROBE_RUN_ID"
"""Environment variable that ``probe run`` gives all processes of a program."""
VARIABLES = (
    *("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "MS_SCHED_HOST", "MS_SCHED_PORT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MLP_TASK_ID"),
)
"""Environment variables of launchers that are equal on all ranks of a launch and differ between launches."""
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""Environment variables that also differ between the restarts of a launch."""
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "RANK_ID")
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "RANK_SIZE")
"""Environment variables with the number of a rank, and with the number of all ranks."""
LOCAL_SIZES = "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"
"""Environment variables of launchers with the number of processes on this node."""


def launched(environ: Mapping[str, str], names: Iterable[str], default: int) -> int:
    """Return the first number among the variables ``names``."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdecimal()), default)


def is_rank(environ: Mapping[str, str]) -> bool:
    """Return whether the environment makes this process one of several ranks."""
    return launched(environ, RANKS, -1) >= 0 and launched(environ, WORLDS, 2) > 1


def local_size(environ: Mapping[str, str]) -> int:
    """Return the number of processes that a launcher has started on this node; 0 if it is unknown."""
    numbers = (environ.get(name, "") for name in LOCAL_SIZES)
    return next((int(number) for number in numbers if number.isdecimal()), 0)


def launch_names(environ: Mapping[str, str], restarts: bool = False) -> dict[str, str]:
    """Return the values that the environment has of the launch, by variable; empty without a launcher.

    Args:
        restarts: whether its restarts have names of their own.
    """
    found = {name: environ.get(name, "").strip() for name in (CHOSEN, *VARIABLES, *(RESTARTS if restarts else ()))}
    if found[CHOSEN]:
        found = {name: value for name, value in found.items() if name not in VARIABLES}
    return {name: value for name, value in found.items() if value}


def is_unnamed(environ: Mapping[str, str]) -> bool:
    """Return whether the environment has a rank among several, and nothing that the ranks of its launch have alone."""
    return bool(environ.get("RANK")) and launched(environ, WORLDS, 1) > 1 and not launch_names(environ)


def number_in(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return the number that a launcher has put into an environment variable, or ``otherwise`` without one.

    Raises:
        RuntimeError: if the variable has something else.
    """
    text = environ.get(name, "").strip()
    if text and not text.isdecimal():
        raise RuntimeError(
            f"environment variable {name}: expected a whole number from 0 on, as a launcher sets it, got {text!r:.80}; "
            "correct or unset it"
        )
    return int(text) if text else otherwise

"""Removal of old files: below one folder, and never a checkpoint, an open file or a linked one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probe.services.remediation import stale_files
from probe.services.remediation.stale_files import MARKS, Removal, StaleFileRemover, StaleFiles, may_be_checkpoint

CHECKPOINTS = [
    *("model.pt", "a.pth", "last.ckpt", "x.safetensors", "__0_0.distcp", "pytorch_model.bin", "model.pt.tmp"),
    *(".model.safetensors.part", "MODEL.PT", "checkpoint-100", "ckpt_7.index", "global_step1000", "iter_0000500"),
    *(
        "mp_rank_00_model_states.tmp",
        "zero_pp_rank_0.tmp",
        "rng_state_0.tmp",
        ".metadata",
        "latest",
        "epoch=3-step=10.tmp",
    ),
    *("latest_checkpointed_iteration.txt", "trainer_state.json", "checkpoints.tar.gz", "step_100.tmp", "optim.bin.1"),
]
OTHERS = ["a.tmp", "core.1234", "worker.log.3", "ptrace.tmp", "binary.tmp", "items.tmp", "literal.tmp", "pt.log"]


def old(path: Path, hours: float = 48) -> Path:
    """A file that was last used long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 100)
    now = path.stat().st_mtime
    os.utime(path, (now - hours * 3600,) * 2)
    return path


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch").resolve()


def clean(folder: Path, *patterns: str, live: bool = True, most: int = 1_000, keep: tuple[str, ...] = ()) -> Removal:
    remover = StaleFileRemover(live, most, lambda: None)
    remover.clean(StaleFiles(folder, patterns or ("*",), keep, 24 * 3600.0))
    return remover.result


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_recognized(name: str) -> None:
    """As trainers name them, half written ones too."""
    assert may_be_checkpoint(name)


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_no_checkpoints(name: str) -> None:
    """A name that only contains such letters is none."""
    assert not may_be_checkpoint(name)


def test_no_checkpoint_is_removed(scratch: Path) -> None:
    """Neither by the pattern for everything, nor inside a folder that is one by its name or by a file in it."""
    kept = [old(scratch / name) for name in CHECKPOINTS if not MARKS.search(name)]
    kept += [old(scratch / "run" / folder / "a.tmp") for folder in ("global_step5", "iter_0000010", "checkpoint-7")]
    kept += [old(scratch / "sharded" / name) for name in (".metadata", "a.tmp", "deeper/b.tmp")]
    kept += [old(scratch / "trainer" / name) for name in ("trainer_state.json", "scheduler", "c.tmp")]
    gone = [old(scratch / name) for name in ("a.tmp", "run/b.tmp", "run/logs/c.tmp")]
    result = clean(scratch)
    assert [path for path in kept if not path.exists()] == []
    assert [path for path in gone if path.exists()] == []
    assert result.files == len(gone)


def test_only_names_and_ages_that_are_configured(scratch: Path) -> None:
    """The time of the last reading counts as well as that of the last writing."""
    stay = [old(scratch / "a.log"), old(scratch / "young.tmp", 1), old(scratch / "important.tmp")]
    read = old(scratch / "read.tmp")
    os.utime(read, (read.stat().st_mtime + 47 * 3600, read.stat().st_mtime))
    gone = old(scratch / "b.tmp")
    result = clean(scratch, "*.tmp", keep=("important*",))
    assert [path for path in (*stay, read) if not path.exists()] == []
    assert not gone.exists()
    assert result.spared == {"young": 2, "kept": 1}


def test_links_lead_nowhere(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Symbolic links to files and folders, and files with a second name, stay, and so does all behind them."""
    outside = tmp_path_factory.mktemp("outside")
    victims = [old(outside / "a.tmp"), old(outside / "deep" / "b.tmp")]
    (scratch / "folder").symlink_to(outside)
    (scratch / "file.tmp").symlink_to(victims[0])
    (scratch / "up").symlink_to("..")
    linked = old(scratch / "linked.tmp")
    os.link(linked, outside / "the only copy")
    result = clean(scratch)
    assert [path for path in (*victims, linked) if not path.exists()] == []
    assert (scratch / "file.tmp").is_symlink()
    assert (result.files, result.spared["hard link"]) == (0, 1)


def test_a_folder_that_became_a_link_is_not_cleaned(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nor one below a link: the path is the one of the start."""
    outside = tmp_path_factory.mktemp("outside")
    victim = old(outside / "inner" / "a.tmp")
    (scratch / "link").symlink_to(outside)
    for folder in (scratch / "link", scratch / "link" / "inner"):
        with pytest.raises(OSError, match="without symbolic links"):
            clean(folder)
    assert victim.exists()


def test_a_folder_that_becomes_a_link_meanwhile_is_not_entered(
    scratch: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its name and its opening."""
    outside = tmp_path_factory.mktemp("outside")
    victim = old(outside / "a.tmp")
    (scratch / "folder").mkdir()

    def swapped(name: str) -> bool:
        (scratch / "folder").rmdir()
        (scratch / "folder").symlink_to(outside)
        return may_be_checkpoint(name)

    monkeypatch.setattr(stale_files, "may_be_checkpoint", swapped)
    result = clean(scratch)
    assert (scratch / "folder").is_symlink()
    assert victim.exists()
    assert result.spared == {"not readable": 1}


def test_no_open_file_is_removed(scratch: Path) -> None:
    """Open in this process or in another one, or mapped, as a program that runs is."""
    own, others, gone = (old(scratch / f"{name}.tmp") for name in ("own", "others", "gone"))
    mapped = scratch / "mapped.tmp"
    shutil.copy("/bin/sleep", mapped)
    script = f"file = open({str(others)!r}, 'ab'); print(flush=True); input()"
    with (
        own.open("rb"),
        subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as process,
        subprocess.Popen([mapped, "1000"]) as sleep,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        os.utime(mapped, (1e9, 1e9))
        result = clean(scratch)
        process.communicate("\n")
        sleep.kill()
    assert (own.exists(), mapped.exists(), others.exists(), gone.exists()) == (True, True, True, False)
    assert result.spared == {"open": 3}


def test_a_rehearsal_counts_the_same_and_removes_nothing(scratch: Path) -> None:
    """And lists paths."""
    paths = [old(scratch / f"{number}.tmp") for number in range(5)]
    result = clean(scratch, live=False)
    assert (result.files, result.listed) == (5, [str(path) for path in paths])
    assert all(path.exists() for path in paths)
    assert clean(scratch).files == 5
    assert not any(path.exists() for path in paths)


def test_the_number_of_files_is_bounded(scratch: Path) -> None:
    """The rest stays for the next time."""
    for number in range(5):
        old(scratch / f"{number}.tmp")
    result = clean(scratch, most=3)
    assert (result.files, result.full, len(list(scratch.iterdir()))) == (3, True, 2)


def test_hostile_names_and_depths_are_survived(scratch: Path) -> None:
    """Line breaks, bytes that are no text, and folders in folders without end."""
    paths = [old(scratch / name) for name in ("a\nb.tmp", "-rf.tmp", "\udcff.tmp", "\u202e.tmp")]
    deep = scratch
    for _ in range(60):
        deep /= "d"
    survivor = old(deep / "a.tmp")
    (scratch / "pipe.tmp").touch()
    (scratch / "pipe.tmp").unlink()
    os.mkfifo(scratch / "pipe.tmp")
    result = clean(scratch)
    assert not any(path.exists() for path in paths)
    assert (survivor.exists(), result.spared) == (True, {"too deep": 1, "no regular file": 1})

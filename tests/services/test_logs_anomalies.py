"""Anomalies in lines of real programs, and lines that only look like them."""

from __future__ import annotations

import re

import pytest

from probe.services.logs import TrainingLogParser
from probe.services.logs.lines import LineReader
from probe.services.logs.signs import NEEDLES, SEVERITIES, SIGNS
from probe.services.logs.texts import CHINESE, ENGLISH, XIDS
from tests.services.test_logs_formats import MEGATRON

PARSER = TrainingLogParser()
WATCHDOG = (
    "[rank4]:[E321 02:07:08.414640780 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600067 "
    "milliseconds before timing out."
)

FOUND = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom_error critical gpu"),
    ("RuntimeError: NPU out of memory. Tried to allocate 64.00 MiB", "oom_error critical gpu"),
    ("step 3 failed: OOM", "oom_error critical gpu"),
    ("RuntimeError: CUDA error: out of memory", "oom_error critical gpu"),
    ("RuntimeError: Memory not enough: current free memory size[100] is smaller", "oom_error critical gpu"),
    ("Out of memory: Killed process 4242 (python3) total-vm:10kB, anon-rss:9kB", "host_oom critical kernel"),
    ("kernel: python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0", "host_oom critical kernel"),
    ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.", "host_oom critical kernel"),
    ("OSError: [Errno 12] Cannot allocate memory", "host_oom critical kernel"),
    ("Memory cgroup out of memory: Killed process 1234 (python) total-vm:1kB", "container_oom critical kernel"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "container_oom critical kernel"),
    ("  reason: OOMKilled", "container_oom critical kernel"),
    (MEGATRON.format(loss="NaN", nans=0), "nan_loss critical training"),
    (MEGATRON.format(loss="1.8E+00", nans=1), "nan_loss high training"),
    ("{'loss': 'nan', 'grad_norm': '1.0', 'learning_rate': '0', 'epoch': '0.1'}", "nan_loss critical training"),
    (
        "ValueError: In epoch: 1 step: 2, loss is NAN or INF, training process cannot continue",
        "nan_loss critical training",
    ),
    ("train_loss became -nan(ind)", "nan_loss critical training"),
    (
        "found NaN in local grad norm in backward pass before data-parallel communication",
        "nan_gradient medium training",
    ),
    ("RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.", "nan_value high training"),
    ("Warning: gradients exploded at layer 3", "gradient_explosion high training"),
    ("the loss is diverging", "loss_explosion high training"),
    (
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
        "loss_scale_exhausted critical training",
    ),
    ("trainer seems to be stuck since 10 minutes", "deadlock high unknown"),
    ("INFO: task python3:4242 blocked for more than 120 seconds.", "deadlock high unknown"),
    (WATCHDOG, "communication_timeout critical communication"),
    (
        "EI0006: [PID: 123] 2024-01-15-10:30:15.123.456 Getting socket times out.",
        "communication_timeout critical communication",
    ),
    (
        "RuntimeError: Timed out waiting 3000ms for recv operation to complete",
        "communication_timeout critical communication",
    ),
    (
        "n1:53:63 [3] misc/socket.cc:484 NCCL WARN Connect to 10.0.0.1<44> failed : refused",
        "communication_error high communication",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:12, unhandled system error",
        "communication_error high communication",
    ),
    ("RuntimeError: HcclAllReduce failed, ret:4", "communication_error high communication"),
    ("[gloo] Connection closed by peer [10.0.0.1]:4444", "communication_error high communication"),
    (
        "EJ0001: [PID: 9] 2024-01-15-10:30:15.1 Failed to initialize the HCCP process.",
        "communication_error high communication",
    ),
    ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.", "gpu_xid critical kernel"),
    ("kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=python", "gpu_xid high kernel"),
    ("kernel: NVRM: Xid (PCI:0000:3b:00): 9999, x", "gpu_xid high kernel"),
    ("kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=12, An uncorrectable double bit error", "ecc_error critical gpu"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc_error critical gpu"),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "ecc_error critical gpu"),
    ("EDAC MC0: 12 CE memory read error on CPU_SrcID#0", "ecc_error medium gpu"),
    ("RuntimeError: CUDA error: device-side assert triggered", "device_error critical gpu"),
    ("EZ9999: Inner Error!", "device_error critical gpu"),
    ("OSError: [Errno 28] No space left on device", "disk_full critical storage"),
    ("OSError: [Errno 122] Disk quota exceeded", "disk_full critical storage"),
    ("blk_update_request: I/O error, dev nvme0n1, sector 12", "disk_error high storage"),
    ("OSError: [Errno 116] Stale file handle", "disk_error high storage"),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "process_failed high launcher"),
    ("  exitcode  : -9 (pid: 12345) (SIGKILL)", "process_failed high launcher"),
    ("  traceback : Signal 9 (SIGKILL) received by PID 12345", "process_failed high launcher"),
    (
        "[2024-01-15 10:30:15] [ERROR] [launch.py:325:main] a.py exits with return code = -9",
        "process_failed high launcher",
    ),
    ("NVRM: GPU at PCI:0000:5d:00: GPU-1a2b has fallen off the bus.", "device_lost critical gpu"),
    ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-05}", "training_lost high training"),
    (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-01-15T10:30:15 DUE TO TIME LIMIT ***",
        "job_cancelled medium launcher",
    ),
    ("RuntimeError: a new runtime's NPU call failed: 12", "device_error high gpu"),
    ("2026-03-02 10:11:12 ERROR the collective was aborted", "communication_error high communication"),
    ("terminate called after throwing an instance of 'std::runtime_error'", "process_failed high launcher"),
    ("train.sh: line 12: 4711 Killed                  python train.py", "process_failed high launcher"),
    ("[rank: 3] Received SIGTERM: 15", "job_cancelled medium launcher"),
]

CLEAN = [
    "loading bigscience/bloom-7b1: BLOOM, room, zoom",
    "took 12 nanoseconds; finance, dominance, Nancy",
    "exchange of changes in Shanghai: hanging-indent, change-hang=3",
    "Disabling parallelism to avoid deadlocks...",
    "tokens were clipped to prevent exploding gradients",
    "checkpointing enabled to avoid out of memory errors",
    "check_for_nan_in_loss_and_grad ............ True",
    "loss nan check: enabled, no nan in the loss so far",
    "loss: 2.0, nan: 0, inf: 0",
    "loss=2.5 info=inf.txt",
    MEGATRON.format(loss="1.8E+00", nans=0),
    "  exitcode  : 0 (pid: 12345)",
    "a.py exits with return code = 0",
    "ECC mode: Enabled, ecc errors: 0, uncorrectable errors: 0",
    'NCCL WARN Missing "iommu=pt" from kernel command line',
    "NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "HCCL_CONNECT_TIMEOUT=1200 HCCL_EXEC_TIMEOUT=1800",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module 550.54.15",
    "oom_score_adj=300 --oom-kill-disable=false",
    "disk space: 20 % full of 3 TB; full disks are not expected",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "git commit e10001 EI0006 without a colon",
    '{"loss": 2.5, "loss_scale": Infinity}',
    "iteration 3/10 | lm loss: 2.5 | loss scale: inf |",
    "watchdog started, hang detection enabled",
    "The trace can be caused by a GIL deadlock or a slow network; see the guide",
    "If you run into out of memory errors, lower the micro batch; fragmentation might lead to OOM.",
    "Note: ranks may hang if NCCL_TIMEOUT is too large, and a broken pipe could be the result",
    '  File "/opt/train/deadlock.py", line 10, in out_of_memory',
    '[rank0]:     raise RuntimeError("loss is nan at step 3")',
    "frame #5: c10d::ProcessGroupNCCL::deadlock() + 0x1b (0x7f in /usr/lib/libtorch.so)",
    "Epoch 1: val_loss improved from inf to 0.31200, saving model to best.h5",
    "INFO {'best_train_loss': inf, 'best_valid_loss': inf, 'batch_idx_train': 0, 'log_interval': 50}",
    "gradient clipping threshold: inf",
    "INFO: cuda error handling enabled; gpu error rate 0.1",
    "oom events: 0, heartbeat timeout: 600",
    "Registered a handler of SIGTERM; Bypassing signal SIGTERM",
    "node-3:1:1 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "total_loss: 6.7223 (inf)  koleo_loss: 0.0315 (inf)",
]

ERRORS = [
    "ERROR: Failed building wheel for flash-attn",
    "ERROR: Could not find a version that satisfies the requirement torch==1.4.0 (from versions: 1.7.0)",
    "wandb: ERROR Failed to sample metric: Not Supported",
    "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)",
    "ERROR:root:Failed to load checkpoint step_1000.pt, trying the previous one",
    "[ERROR] tokenizer file not found: tokenizer.json",
    "error: argument --lr: invalid float value: 'abc'",
    "fatal: not a git repository (or any of the parent directories): .git",
    "ERROR    mlflow.utils: Could not find artifacts for run 123",
    "2024-01-01 10:00:00 ERROR data.py:12 Failed to decode image 000123.jpg, skipping",
    "ERROR:datasets.builder:Failed to read file '/data/x.json' with error <class 'pyarrow.lib.ArrowInvalid'>",
    "Error: invalid value for batch_size",
    "Exception in thread Thread-3:",
    "ValueError: Unrecognized configuration class",
    "AssertionError: Torch not compiled with CUDA enabled",
    "ModuleNotFoundError: No module named 'apex'",
    "KeyError: 'loss'",
    "TypeError: broadcast() got an unexpected keyword argument",
    "RuntimeError: Error(s) in loading state_dict for Model:",
    "RuntimeError: The size of tensor a (128) must match the size of tensor b (64) at non-singleton dimension 1",
    "ERROR worker config: unknown option num_worker",
    "E0302 10:11:12.345 4711 file.cc:12] Failed to open /etc/hosts",
    "ERROR: No matching distribution found for tensorflow-gpu==1.15",
    "[ERROR] Failed to parse argument --gpus",
    "2024-05-01 12:00:00,123 - ERROR - Validation failed for sample 17: label out of range",
    "ERROR: Job name must not be empty",
    "Failed to import transformers.models.llama because of the following error (look up to see its traceback):",
    "could not open file to read NUMA node: /sys/bus/pci/devices/0000:01:00.0/numa_node",
    "Failed to get default GPU clock",
    "ERROR: Unable to find tensorboard, run pip install tensorboard",
    "[ERROR] Retry 1/5: HTTP 503 from s3",
    "Error reading dataset shard 17, retrying",
    "ERROR Test failed: expected 3 got 4",
    '        "OOMKilled": false,',
]
"""Errors about no device, no communication and no process."""


@pytest.mark.parametrize(("line", "expected"), FOUND, ids=lambda value: value[:48])
def test_anomalies_of_real_messages(line: str, expected: str) -> None:
    """Each is one anomaly of one kind, and its line an error."""
    record = PARSER.parse_log_line(line)
    kinds = [f"{each['type']} {each['severity']} {record['component']}" for each in record["anomalies"]]
    assert kinds == [expected]
    assert record["level"] == "ERROR"


@pytest.mark.parametrize("line", ERRORS, ids=lambda value: value[:48])
def test_errors_of_something_else_are_no_anomalies(line: str) -> None:
    """Packages, files, arguments and data."""
    assert PARSER.parse_log_line(line)["anomalies"] == []


@pytest.mark.parametrize("line", CLEAN, ids=lambda value: value[:48])
def test_lines_that_only_look_like_anomalies(line: str) -> None:
    """Parts of words, denials, settings and counts of none."""
    record = PARSER.parse_log_line(line)
    assert record["anomalies"] == []
    assert record["level"] in ("INFO", "WARNING")


@pytest.mark.parametrize(("line", "expected"), FOUND, ids=lambda value: value[:48])
def test_a_search_of_blocks_finds_every_anomaly(line: str, expected: str) -> None:
    """The literals that whole blocks are searched for leave out no line that the phrases know."""
    block = b"INFO nothing here\n" * 300 + line.encode() + b"\nnothing here\n"
    found = [each for each in LineReader().feed(block) if each.content == line.encode()]
    assert [each.number for each in found] == [301]
    assert found[0].searched or "nan" in expected or "training" in expected  # those of numbers need no search


def test_every_kind_has_texts_in_both_languages() -> None:
    """Description, cause and advice; Chinese ones have Chinese characters and no English sentence."""
    assert set(ENGLISH) == set(CHINESE) == {sign.kind for sign in SIGNS} | {"training_lost"}
    for kind, texts in CHINESE.items():
        assert all(re.search("[\u4e00-\u9fff]", text) for text in texts), kind
        assert all(text and text.isascii() for text in ENGLISH[kind]), kind
    assert {severity for severity, _, _ in XIDS.values()} <= set(SEVERITIES)


def test_every_kind_is_tested() -> None:
    """The lines above have all of them."""
    assert {expected.split()[0] for _, expected in FOUND} == set(ENGLISH)


def test_texts_are_in_the_language_that_is_asked_for() -> None:
    """English by default; an Xid has the meaning of its number, which is in the record too."""
    line = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    (english,), (chinese,) = (TrainingLogParser(each).parse_log_line(line)["anomalies"] for each in ("en", "zh"))
    assert english["description"].endswith("the GPU has fallen off the bus")
    assert chinese["description"].endswith("GPU 从总线脱落")
    assert (english["xid"], english["pci"]) == (79, "0000:3b:00")
    assert english["advice"]
    assert english["cause"]


def test_needles_are_lower_case() -> None:
    """Lines are compared in lower case."""
    assert all(needle == needle.lower() for sign in SIGNS for needle in sign.needles)
    assert NEEDLES.find(b"nothing") == -1

"""Sentences about anomalies in English and Chinese: the only place where they stand."""

from __future__ import annotations

from typing import NamedTuple

LANGUAGES = ("en", "zh")


class Explanation(NamedTuple):
    """Texts about one kind of anomaly."""

    description: str
    cause: str
    advice: str


ENGLISH: dict[str, Explanation] = {
    "oom_error": Explanation(
        "The memory of the device is exhausted",
        "Weights, optimizer state, activations and fragments together exceed the device's memory",
        "Use a smaller micro batch with gradient accumulation, activation checkpointing or sharded optimizer state; "
        "against fragmentation set expandable_segments",
    ),
    "host_oom": Explanation(
        "The memory of the host is exhausted",
        "Loader workers, pinned memory, cached data or a checkpoint need more than the host has; /dev/shm counts",
        "Use fewer loader workers or a smaller prefetch, enlarge /dev/shm, and save checkpoints in shards",
    ),
    "container_oom": Explanation(
        "The container has exceeded its memory limit and was killed",
        "The limit of the cgroup is lower than the processes in it need; page cache of /dev/shm counts too",
        "Raise the memory limit of the container or job, or use fewer loader workers",
    ),
    "nan_loss": Explanation(
        "The loss is NaN or infinite",
        "The learning rate is too high, half precision overflowed, or a sample is broken",
        "Go back to the last good checkpoint, look at the first layer with NaN (probe report), lower the learning rate "
        "or skip the sample",
    ),
    "nan_gradient": Explanation(
        "A gradient is NaN or infinite",
        "Overflow in half precision, which a loss scaler answers by skipping the step; without one, the update is lost",
        "A few in the first steps with fp16 are normal; if they go on, use bf16 or find the layer (probe report)",
    ),
    "nan_value": Explanation(
        "A tensor has NaN or infinite values",
        "An operator left its domain: the logarithm of 0, a division by 0, an overflow in half precision",
        "Find the first such layer (probe report) and guard that operator or compute it in float32",
    ),
    "gradient_explosion": Explanation(
        "The gradients explode",
        "The learning rate is too high, gradients are not clipped, or the batch is broken",
        "Clip gradients by norm, lengthen the warm-up, lower the learning rate",
    ),
    "loss_explosion": Explanation(
        "The loss has leapt or diverges",
        "The learning rate is too high, or the data have changed",
        "Go back to the last good checkpoint, lower the learning rate, skip the batches of the leap",
    ),
    "loss_scale_exhausted": Explanation(
        "The loss scale has reached its minimum",
        "Every step overflows, so that the scaler has nothing left to reduce: values are NaN or far out of range",
        "Use bf16, lower the learning rate, and find the first layer that overflows (probe report)",
    ),
    "deadlock": Explanation(
        "A process stands still",
        "Ranks wait for each other in different collectives, or for a lock, a disk or a dead process",
        "Compare the stacks of all ranks (probe's watcher, py-spy) and look for the rank that is not in the collective",
    ),
    "communication_timeout": Explanation(
        "A collective operation has not ended in time",
        "One rank did not take part: it died, runs behind, or called another operation",
        "Look for the rank whose log ends first or is silent; only then raise the timeout",
    ),
    "communication_error": Explanation(
        "Communication between ranks has failed",
        "A peer died, or the network, a port or its configuration is broken",
        "Look at the peer's log first; then check interfaces (NCCL_SOCKET_IFNAME, hccn_tool), links and firewalls",
    ),
    "ecc_error": Explanation(
        "The memory of a device reports ECC errors",
        "A memory cell or row is failing; an error that cannot be corrected makes results wrong or ends the process",
        "Take the device out of service, reset it so that rows are remapped, and replace it if errors come again",
    ),
    "gpu_xid": Explanation(
        "The GPU driver reports an error (Xid)",
        "By its number: the program, the driver, NVLink, power, the bus or the GPU itself",
        "Look the number up; if it comes again on the same device with other programs, replace the device",
    ),
    "device_error": Explanation(
        "An operation on the device has failed",
        "An index out of range or a broken kernel; less often the device itself",
        "Run again with CUDA_LAUNCH_BLOCKING=1 (Ascend: ASCEND_LAUNCH_BLOCKING=1) to find the operation",
    ),
    "device_lost": Explanation(
        "A device does not answer on the bus any more",
        "Hardware: power, heat, the PCIe slot, its riser or the device itself; a program is hardly ever the cause",
        "Drain the node, keep the kernel's log, restart the machine, and have the device replaced if it comes again",
    ),
    "training_lost": Explanation(
        "The gradients stay NaN, so that the training learns nothing",
        "The parameters are NaN, or every gradient is; a loss of 0.0 beside it is a NaN that the program does not show",
        "Stop, go back to the last good checkpoint, and find the first layer with NaN (probe report)",
    ),
    "disk_full": Explanation(
        "The disk or its quota is full",
        "Checkpoints, logs or caches have filled it",
        "Delete old checkpoints and caches, or write elsewhere; the last checkpoint may be incomplete",
    ),
    "disk_error": Explanation(
        "A disk or file system has failed",
        "The medium is broken, or the network file system is away or was mounted again",
        "Look at the kernel's log and the storage; check that the last checkpoint can be read",
    ),
    "process_failed": Explanation(
        "A process has failed or was killed",
        "Its own log has the reason; -9 (SIGKILL) is often the out-of-memory killer, -15 the launcher, -11 a crash",
        "Read the log of the first rank that failed; all others end as a consequence",
    ),
    "job_cancelled": Explanation(
        "The job was cancelled or reached its time limit",
        "A user, the scheduler's time limit or preemption",
        "Save checkpoints before the limit, and start again from the last one",
    ),
}
CHINESE: dict[str, Explanation] = {
    "oom_error": Explanation(
        "设备显存已耗尽",
        "权重、优化器状态、激活值与碎片之和超出了设备显存",
        "减小微批次并配合梯度累积,启用激活重计算或优化器状态切分;碎片严重时设置 expandable_segments",
    ),
    "host_oom": Explanation(
        "主机内存已耗尽",
        "数据加载进程、锁页内存、数据缓存或主机侧检查点超出可用内存;/dev/shm 也计算在内",
        "减少数据加载进程或预取量,增大 /dev/shm,分片保存检查点",
    ),
    "container_oom": Explanation(
        "容器超出内存上限,进程被终止",
        "cgroup 上限低于进程所需;/dev/shm 的页缓存也计算在内",
        "提高容器或作业的内存上限,或减少数据加载进程",
    ),
    "nan_loss": Explanation(
        "损失为 NaN 或无穷",
        "学习率过高、半精度溢出或样本损坏",
        "回退到最近的正常检查点,查看最先出现 NaN 的层(probe report),降低学习率或跳过该样本",
    ),
    "nan_gradient": Explanation(
        "梯度为 NaN 或无穷",
        "半精度溢出,损失缩放器会跳过该步;没有缩放器时本次更新已损坏",
        "fp16 训练最初几步出现属正常;若持续出现,改用 bf16 或定位出错的层(probe report)",
    ),
    "nan_value": Explanation(
        "张量中出现 NaN 或无穷",
        "算子超出定义域:对 0 取对数、除以 0、半精度溢出",
        "定位最先出现的层(probe report),保护该算子或改用 float32 计算",
    ),
    "gradient_explosion": Explanation(
        "梯度爆炸",
        "学习率过高、未裁剪梯度或批次数据异常",
        "按范数裁剪梯度,延长预热,降低学习率",
    ),
    "loss_explosion": Explanation(
        "损失突增或发散",
        "学习率过高,或数据发生变化",
        "回退到最近的正常检查点,降低学习率,跳过突增处的批次",
    ),
    "loss_scale_exhausted": Explanation(
        "损失缩放系数已到下限",
        "每一步都溢出,缩放器无法再降:数值为 NaN 或远超范围",
        "改用 bf16,降低学习率,定位最先溢出的层(probe report)",
    ),
    "deadlock": Explanation(
        "进程停滞不前",
        "各进程在不同的集合通信中互相等待,或在等待锁、磁盘、已退出的进程",
        "比较所有进程的调用栈(probe 的监视进程、py-spy),找出未进入集合通信的进程",
    ),
    "communication_timeout": Explanation(
        "集合通信未在时限内完成",
        "有进程没有参与:已退出、落后或调用了别的操作",
        "先找日志最早中断或没有输出的进程,确认之后再考虑延长超时",
    ),
    "communication_error": Explanation(
        "进程间通信失败",
        "对端进程退出,或网络、端口及其配置有误",
        "先看对端日志;再检查网卡设置(NCCL_SOCKET_IFNAME、hccn_tool)、链路与防火墙",
    ),
    "ecc_error": Explanation(
        "设备显存报告 ECC 错误",
        "存储单元或行正在失效;不可纠正的错误会使结果出错或终止进程",
        "停用该设备,复位以重映射坏行;再次出现则更换",
    ),
    "gpu_xid": Explanation(
        "GPU 驱动报告错误(Xid)",
        "依编号而定:程序、驱动、NVLink、供电、总线或 GPU 本身",
        "查询编号含义;若同一设备在其他程序下再次出现,则更换设备",
    ),
    "device_error": Explanation(
        "设备上的操作失败",
        "索引越界或算子缺陷,较少是设备本身故障",
        "设置 CUDA_LAUNCH_BLOCKING=1(昇腾:ASCEND_LAUNCH_BLOCKING=1)重新运行以定位操作",
    ),
    "device_lost": Explanation(
        "设备已从总线上脱落,不再响应",
        "硬件故障:供电、过热、PCIe 插槽、转接卡或设备本身;程序不会使设备脱落",
        "隔离该节点,保留内核日志,重启机器;再次出现则更换设备",
    ),
    "training_lost": Explanation(
        "梯度持续为 NaN,训练已无效",
        "参数或全部梯度已为 NaN;同时出现的损失 0.0 是程序未显示的 NaN",
        "停止训练,回退到最近的正常检查点,定位最先出现 NaN 的层(probe report)",
    ),
    "disk_full": Explanation(
        "磁盘或配额已满",
        "检查点、日志或缓存占满了空间",
        "删除旧检查点与缓存,或改写到别处;最后一个检查点可能不完整",
    ),
    "disk_error": Explanation(
        "磁盘或文件系统故障",
        "介质损坏,或网络文件系统断开、被重新挂载",
        "查看内核日志与存储系统,确认最后一个检查点可以读取",
    ),
    "process_failed": Explanation(
        "进程失败或被终止",
        "原因在该进程自己的日志中;-9(SIGKILL)常为内存不足,-15 来自启动器,-11 为崩溃",
        "查看最先失败的进程的日志;其余进程的退出是其后果",
    ),
    "job_cancelled": Explanation(
        "作业被取消或到达时限",
        "用户取消、调度器时限或抢占",
        "在时限之前保存检查点,并从最近的检查点继续",
    ),
}
TEXTS = {"en": ENGLISH, "zh": CHINESE}

XIDS: dict[int, tuple[str, str, str]] = {
    13: (
        "high",
        "error of the graphics engine, mostly an access out of range by the program",
        "图形引擎错误,多为程序越界访问",
    ),
    31: ("high", "memory page fault, mostly a bad address in the program", "显存缺页,多为程序地址错误"),
    32: ("high", "corrupted commands in the push buffer", "命令缓冲区损坏"),
    43: ("high", "the program's channel was stopped after an error of the program", "程序出错,通道被停止"),
    45: (
        "medium",
        "channels were cleaned up after another error or the end of the process",
        "因其他错误或进程结束而清理通道",
    ),
    48: ("critical", "double-bit ECC error", "双比特 ECC 错误"),
    61: ("high", "internal microcontroller: breakpoint or warning", "内部微控制器断点或警告"),
    62: ("critical", "internal microcontroller has halted", "内部微控制器停止"),
    63: ("medium", "a memory row or page was marked for remapping", "显存行或页已登记重映射"),
    64: ("critical", "remapping of a memory row or page failed", "显存行或页重映射失败"),
    69: ("high", "error of the graphics engine class", "图形引擎类错误"),
    74: ("critical", "NVLink error", "NVLink 错误"),
    79: ("critical", "the GPU has fallen off the bus", "GPU 从总线脱落"),
    92: ("medium", "high rate of single-bit ECC errors", "单比特 ECC 错误率过高"),
    94: ("high", "contained uncorrectable ECC error", "已隔离的不可纠正 ECC 错误"),
    95: ("critical", "uncontained uncorrectable ECC error", "未隔离的不可纠正 ECC 错误"),
    119: ("critical", "the GPU's system processor (GSP) does not answer", "GPU 系统处理器(GSP)无响应"),
    120: ("critical", "error of the GPU's system processor (GSP)", "GPU 系统处理器(GSP)错误"),
    140: ("critical", "uncorrectable ECC error", "不可纠正 ECC 错误"),
}
"""Severity, English and Chinese meaning of Xid numbers (NVIDIA, "GPU Deployment and Management: Xid errors")."""
ECC_XIDS = frozenset({48, 63, 64, 92, 94, 95, 140})
"""Xid numbers that are about ECC."""


def explanation(kind: str, language: str) -> Explanation:
    """Return the texts about a ``kind`` of anomaly."""
    return TEXTS[language][kind]


def meaning_of_xid(number: int, language: str) -> str:
    """Return the meaning of an Xid number; empty if it is not in the table."""
    known = XIDS.get(number)
    return known[LANGUAGES.index(language) + 1] if known else ""

"""Kinds of anomalies, and the phrases of real messages by which each is known.

Phrases are compared with a line only if it has one of the kind's needles: literals in lower case, which a whole block
of lines is searched for at once.
"""

from __future__ import annotations

from typing import NamedTuple

from probe.services.logs.expressions import Expression, Words, any_of

SEVERITIES = ("critical", "high", "medium")
"""The gravest first."""


class Sign(NamedTuple):
    """Phrases by which one kind of anomaly is known."""

    kind: str
    severity: str
    component: str
    group: str
    """Signs of one group are about one event: the first that fits counts. Empty: a group of its own."""
    needles: tuple[bytes, ...]
    phrases: Expression
    """Compared with the line in lower case."""
    needs: Expression | None
    """Expression that the line in lower case must have as well."""


def _sign(origin: str, needles: str, *phrases: bytes, needs: bytes = b"") -> Sign:
    kind, severity, component, *group = origin.split()
    return Sign(
        kind,
        severity,
        component,
        "".join(group),
        tuple(each.encode() for each in needles.split(", ")),
        Expression(b"|".join(phrases)),
        Expression(needs) if needs else None,
    )


BROKEN = (
    rb"(?:fail(?:ed|ures?)?|errors?|fault|busy|unavailable|abort(?:ed)?|crash(?:ed)?|time[sd]? ?out|killed|died|"
    rb"expired|exception|exceeded|unreachable|unresponsive|not responding|refused|disconnected|hung)\b"
)
FAILED = rb"\b[^|]{0,160}\b" + BROKEN
LINKS = (
    rb"(?:[nhr]|one|[xu])?ccl|gloo|ucx|c10d|process ?group|collective|coordination service|rendezvous|send/recv|"
    rb"all_?reduce|all_?gather|all_?to_?all|broadcast|barrier|remote (?:server|peer|host|rank)|grpc|peers?|socket|"
    rb"deep_?ep|nvshmem\w{0,4}|ib(?:rc|gda|verbs|v_\w{4,24})|rdma|infiniband|roce"
)
DEVICES = (
    rb"[gnthx]pu\d{0,4}|cuda|hip|acl|cann|ascend|ai ?core|aicpu|launch kernel|kernel launch|internal task|stream|"
    rb"nvlink|nvswitch|nvrm|pcie\w{0,4}|habana\w{0,4}|synapse|neuron\w{0,8}|accelerator|graph compil\w{1,5}|"
    rb"rt\w{2,12}synchronize\w{0,16} execute|"
    rb"dev/(?:accel|nvidia|davinci|kfd|dri)\w{0,8}"
)
DRIVERS, ADAPTERS = rb"nvrm|amdgpu|habanalabs", rb"mlx[45]_(?:core|ib)|bnxt_(?:en|re)|irdma|hns3|infiniband"
"""Modules of the kernel, for devices and for networks, whose messages state no level."""
PROCESSES = rb"process|worker(?:proc)?|engine ?core|agent|container|pod|job|task|node|replica|subprocess|actor|trainer|"
PROCESSES += rb"launcher|srun|salloc|probe"
"""Parts of a system, of which an error that no other phrase knows shows by words such as ``failed``."""
LAST, OF_ERROR = "last", "error"
"""Groups of signs that count only where no other does: that a process has failed at all; and in lines of the level
ERROR, or that begin as one, that anything about a part of the system has."""
BEGINS = Expression(
    rb"(?:^|[\]):-] )\W{0,4}(?:fail(?:ed|ure) (?:to|in|on|at)|(?:fatal )?error:|fatal:|unable to|could not|"
    rb"exception in|(?:\w{1,24} )?exception raised) |\bfailed(?:[:,!)]| (?:on|with) |\s{0,4}$)|"
    rb"\b(?:internal|unavailable|aborted|deadline_exceeded|data_loss|failed_precondition): "
)
"""Begin of a message about an error, in a line without a level, or the end of one; the codes of gRPC."""
ERRORS = "error, exception, fatal, critical,  failed, failed to, failure, unable to, could not"
CODES = "e0000"
"""Needle that stands for all codes of CANN: two letters and four digits, or a letter and five digits."""
CODE = rb"\be%b(?:\)?: (?:inner error|\[pid|\d{4}-\d\d-\d\d|\w)|\[pid|\)?: ?$| {1,4}(?:\[\w|the error from device\())"
"""Code of CANN at the beginning of a message, with a process, a date, or neither before the text; since release 8 in
parentheses behind a name."""
NOT_FINITE = rb"(?:^|[^\w-])-?(?:nan|inf|infinity|infinite|naninf)(?:$|[^\w.=-]|\.(?:$|\s))"
SIGNS: tuple[Sign, ...] = (
    _sign(
        "container_oom critical kernel oom",
        "cgroup out of memory, constraint_memcg, oomkilled, oom killed, oom_kill event, oom-kill event, srun: error, "
        "memory limit, memory usage limit, memory budget, exceeded limit, usage exceeded",
        rb"cgroup out of memory: kill|constraint_memcg",
        rb"\boom ?killed\b|\boom[_-]kill event",
        rb"\bsrun: error: [^|]{1,80}: out of memory",
        rb"\b(?:exceed|reach)(?:s|ed|ing) [^|.]{0,40}\bmemory (?:usage )?(?:limit|budget)|"
        rb"\bmem \d{1,16}[kmg]?b exceeded limit|"
        rb"\bmemory usage exceeded\b",
    ),
    _sign(
        "host_oom critical kernel oom",
        "killed process, kill process, oom-killer, oom killer, 'oom-kill', oom_reaper, constraint_none, "
        "defaultcpuallocator, cannot allocate memory, "
        "memoryerror, bad_alloc, unable to allocate, by signal: killed, by signal: bus error, insufficient shared "
        "memory, memory segment, bus error, due to memory pressure, "
        "resource: memory, low on memory, memory low, system oom, [memorypressure]",
        rb"out of memory: kill(?:ed)? process|\bby the oom killer\b|'oom-kill'",
        rb"\bkilled process \d{1,9} \([^)]{1,32}\),? [^|]{0,32}\btotal-vm:|invoked oom-killer",
        rb"oom_reaper: reaped|constraint=constraint_none",
        rb"defaultcpuallocator: (?:can't allocate|not enough) memory|cannot allocate memory",
        rb"(?:^|[^\w])memoryerror\b|std::bad_alloc",
        rb"unable to allocate [\d.]{1,16} ?[kmgt]?i?b",
        rb"is killed by signal: (?:killed|bus error)",
        rb"\bkilled\b[^|]{0,160}\bdue to memory pressure",
        rb"\bsystem oom encountered\b|\blow on (?:resource: )?memory\b|\bmemory low\b",
        rb"\bhad condition: \[memorypressure\]",
        rb"insufficient shared memory|\berror while creating shared memory segment",
        rb"unexpected bus error encountered in worker|unexpectedly with bus error",
    ),
    _sign(
        "oom_error critical gpu oom",
        "oom, out of memory, outofmemory, out_of_memory, resource_exhausted, memory not enough, memory isn't "
        "enough, no available memory, "
        "alloc_failed, el0004",
        rb"\bout of memory\b|outofmemory(?:error)?\b|cuda_error_out_of_memory|\bmemory (?:is)?n[o']t enough\b|"
        rb"\bno available memory for\b",
        rb"\bresource_exhausted: |cublas_status_alloc_failed|\bel0004\)?:",
        rb"(?:^|[^\w-])oom(?:$|[^\w=-])",
    ),
    _sign(
        "loss_scale_exhausted critical training",
        "scale already at minimum, minimum loss scale reached, in a row due to overflow",
        rb"loss scale already at minimum|minimum loss scale reached",
        rb"skipped \d{1,6} \w{1,12} in a row due to overflow",
    ),
    _sign(
        "nan_gradient medium training nan",
        "nan, inf, finite",
        rb"\b(?:nans?|infs?|infinite|no[nt][ -]?finite)(?: (?:or|and) (?:nans?|infs?))?(?: values?)? (?:in )?(?:the )?"
        rb"grad(?:s|ients?)?\b",  # whatever else the line has about a loss
    ),
    _sign(
        "nan_loss critical training nan",
        "nan, inf, finite, invalid loss",
        NOT_FINITE,
        rb"\bno[nt][ -]?finite",
        rb"\binvalid loss, terminating training\b",
        needs=rb"(?:^|[^a-z])(?:\w{0,32}_)?loss(?:es|tensor)?(?:$|[^\w])|\bl_\w{1,16}: {0,4}nan\b",
    ),
    _sign(
        "nan_gradient medium training nan",
        "nan, inf, finite",
        NOT_FINITE,
        rb"\bno[nt][ -]?finite",
        needs=rb"\bgrad(?:s|ients?)?\b|(?:\b|_)(?:grad|gradient|global)[ _]norm\b",
    ),
    _sign(
        "nan_value high training nan",
        "nan",
        rb"returned nan values|\bat (?:step|iteration|epoch) \d{1,9} is nan\b",
        rb"\bnans? (?:or infs? )?(?:detected|found|encountered)\b",
        rb"\b(?:detected|found|encountered|contains?) (?:an? )?nans?\b",
        rb"(?:\b\w{1,16}[:=] ?nan[ ,|;]{1,4}){4}",  # fields in a row
        rb"(?:it/s|s/it)[^%]{1,160}\b[a-z]{1,3}[:=] ?nan\b[^%]{1,80}\b[a-z]{1,3}[:=] ?nan\b",  # behind a bar
    ),
    _sign(
        "gradient_explosion high training",
        "explod, explos",
        rb"\bgrad(?:ient)?s?\b[^|]{0,80}\bexplo(?:d|s)",
        rb"\bexplo(?:d|s)\w{0,4}[^|]{0,80}\bgrad(?:ient)?s?\b",
    ),
    _sign(
        "loss_explosion high training",
        "explod, diverg, loss spike",
        rb"\bloss\b[^|]{0,40}\b(explod|diverg)",  # words before the group deny it: ``loss is probably exploding``
        rb"\bdiverging loss\b",
        rb"\bloss spike (?:detected|found|at|may be happened in step)\b",
    ),
    _sign(
        "communication_timeout critical communication communication",
        "collective operation timeout, timed out, times out, timeouterror, socket timeout, timeout occurred, "
        "timeout detected, monitoredbarrier, ei0002, ei0006, heartbeat, collective timeout, timeout at, "
        "barrier timed out, deepep, for more than, connect timeout, connection timeout, wait timeout",
        rb"watchdog caught collective operation timeout",
        rb"\bdue to (?:a )?collective timeout\b",
        rb"\btimeout at (?:[nh]ccl work|collective)\b",
        rb"collective operation[^|.]{0,60} timed out",
        rb"\bheartbeat (?:monitor timed out|timeout(?:[.!,]|$))",
        rb"\b[nh]ccl[^|]{0,120}(?:timed out|times out|timeout (?:occurred|detected))",
        rb"timed out waiting [\d.]{1,12} ?ms for",
        rb"timed out after \d{1,9} seconds waiting for clients",
        rb"\b(?:timed out in|failed to pass) monitoredbarrier",
        rb"rendezvoustimeouterror|\bfailed to send a keep-alive heartbeat",
        rb"\bsocket timeout\b|client socket has timed out|timed out connecting",
        rb"\bei000[26](?:\)?: |\[pid)",
        rb"\bnode: ?\w{1,40} is timed out",
        rb"\bbarrier timed out|\bdeepep\b[^|]{0,80}\btimeout\b",
        rb"\btimed out initializing process group\b",
        rb"detected no heartbeat|\bdid not (?:get|receive)[^|]{0,24} heartbeat",
        rb"(?:store|rendezvous)[^|]{0,40} timed out",
        rb"\b(?:connect(?:ion)?|wait) timeout(?:$|[.!,:]| after | \[)",
        rb"\bwaiting for [^|.]{0,60}\bfor more than \d{1,9} seconds",
    ),
    _sign(
        "communication_error high communication communication",
        "nccl warn, lost communication, heartbeat lost, received errors, unhandled cuda, unhandled system, "
        "|ccl_error|, nccl error, nccl failure, ncclsystem, ncclunhandled, ncclinternal, ncclremote, ncclinvalid, "
        "nccl watchdog, nccl communicator, nccl operation, hccl, hccp, gloo, connection closed by, "
        "connection reset by, broken pipe, connection refused, distnetworkerror, diststoreerror, distbackenderror, "
        "no route to host, retry count, rendezvousc, by watchdog at work, err02, [error], connect to, [c10d], "
        "mlx5_, mlx4_, bnxt_, irdma, hns3, infiniband, got completion, sending heartbeats, disconnected, address "
        "already in use, definitely down, input/output error, grpc_status, " + CODES,
        rb"(?:exception|failure)[^|]{0,40} detected by watchdog at work",
        rb"\berr02\d{3} dist\b",
        rb"\bnccl warn\b[^|]{0,200}(?:\bfail(?:ed|ure)\b|\berror\b|closed|refused|reset by|unreachable|mismatch|"
        rb"got completion from peer|got async (?:fatal )?event|unable to|could not|call to |truncated",
        rb"no socket interface)",
        rb"\[(?:error|critical)\] ?(?:hcc[lp]|hcom|distributed)\(",
        rb"\bstopped sending heartbeats|\bgot completion from peer\b[^|]{0,64} with (?:error|status)",
        rb"\[c10d\][^|]{0,120}\bfailed\b|\breceived errors while waiting for\b|\b[nh]ccl heartbeat lost\b|"
        rb"\blost communication with\b",
        rb"\b(?:" + ADAPTERS + rb")\b[^|]{0,120}\b(?:time[sd]? ?out|fatal error|compromised)\b",
        rb"\btransport retry count(?:er)? exceeded\b",
        rb"\bconnect to [\w.:<>\[\]-]{3,64} failed",
        rb"\bnccl(?:system|unhandledcuda|internal|remote|invalidusage)error\b",
        rb"\bnccl (?:error|failure)\b|\bunhandled (?:cuda|system) error\b|\|ccl_error\|",
        rb"\b[nh]ccl watchdog thread terminated with\b",
        rb"\bnccl (?:communicator|operations?)\b[^|]{0,120}(?:abort|failed|corrupt)",
        rb"\bhccl\w{0,40}[^|]{0,80}(?:\bfailed\b|\berror\b)",
        rb"\bgloo\b[^|]{0,80}\bfailed\b|\b(?:[nhrxu]|one)?ccl\b[^|]{0,160}\binput/output error\b",
        rb"connection (?:closed|reset|refused) by (?:remote |local )?(?:peer|host)",
        rb"\bconnection refused\b|\bbroken pipe\b|\bdist(?:network|store|backend)error\b",
        CODE % rb"[ij]\d{4}",
        rb"\bpeer\b[^|.]{0,40}\bdisconnected\b|\"grpc_status\": ?14\b",
        rb"no route to host|rendezvousc(?:losed|onnection)error|\blink status definitely down\b",
        rb"(?:\berrno\b[^|]{0,12}|: )\baddress already in use\b",
    ),
    _sign(
        "deadlock high unknown communication",
        "deadlock, hang, hung, stuck, for more than, detected stall, hard lockup, watchdog timeout",
        rb"(?:^|[^\w-])(?:deadlock(?:s|ed)?|hangs?|hanging|hung|stuck)(?:$|[^\w=-])",
        rb"task .{1,64} blocked for more than \d{1,9} seconds",
        rb"\bwatchdog timeout(?: \(|[:!.]|$)|\bdetected stalls? on\b|\bhard lockup\b",
    ),
    _sign(
        "gpu_xid high kernel device",
        "nvrm: xid, : sxid",
        rb"(?:\bnvrm: xid|\bnvidia-nvswitch\d{1,3}: sxid) \(pci:([0-9a-f:.]{4,24})[^)]{0,40}\): (\d{1,6})\b",
    ),
    _sign(
        "device_lost critical gpu device",
        "off the bus, error_device_lost,  is lost, heartbeat lost, device handle for gpu, no longer on the bus, "
        "(fatal), adapter failed, "
        "marked for reset, device inaccessible, pciehp",
        rb"\b(?:[gn]pu|device|chip)\b[^|]{0,60}\bheartbeat lost\b",
        rb"\b(?:fallen|fell|dropped|is no longer) (?:off|on) the bus",
        rb"\b(?:gpu|npu|device)\b[^|.]{0,60} is lost\b|(?:\b|_)error_device_lost\b",
        rb"unable to determine the device handle for gpu",
        rb"\brm_?init_?adapter failed",
        rb"\bgpu marked for reset\b|\bpciehp: [^|]{0,24}\blink down\b",
        rb"\bpower state\b[^|]{0,40}\bdevice inaccessible\b",
        rb"\b(?:aer: (?:multiple )?|severity=)uncorrect(?:ed|able) \(fatal\)",
    ),
    _sign(
        "ecc_error critical gpu device",
        "ecc error, edac, hardware error, bit ecc, uce error, uncorrectable",
        rb"uncorrectable (?:(?:ecc|memory|hbm|dram|sram) ){0,2}error (?:encountered|detected|occurred)",
        rb"(?:double|multi|single)[ -]bit ecc|\buncorrectable hardware error",
        rb"\bedac\b[^|]{0,60}\b\d{1,9} [cu]e\b",
        rb"\[hardware error\]:",
        rb"\bhbm\b[^|]{0,40}\becc\b",
        rb"\bhbm uce error",
        rb"\becc error (?:encountered|detected|occurred)",
    ),
    _sign(
        "device_error critical gpu device",
        "cuda error, cuda driver error, hip error, the nvidia driver, device-side assert, assertion `, "
        "illegal memory access, launch failure, misaligned address, cuda_error_, error from cuda, cuda failure, "
        "cudaerror, error from device, device error, inner error, _status_, synstatus, initialization failed, "
        "failed to initialize, fault by gpu, exception by gpu, launch kernel, aicore, ai core, "
        "aicpu, ai cpu, vector core, cube core, kernel task, internal task, "
        "task scheduler, hardware execution,  occur, error code, err0, "
        "err99, runtime result, runtime acl, call acl, call rt, aclrt, stream failed, gpu reset begin, "
        "halted unexpectedly, xid=, amdgpu, nvrm: , habanalabs, "
        "device recovery, " + CODES,
        rb"device-side assert\b|\.cuh?:\d{1,6}: [^|]{1,200}\bassertion `",
        rb"illegal memory access|unspecified launch failure|misaligned address",
        rb"\b(?:cuda|hip)(?: driver)? (?:error: (?:[^o]|o[^u])|(?:error|failure) (?:\d{2,4}|[13-9])\b)",
        rb"\bcudaerror(?:[a-lo-z]|m[^e]|no[^t])[a-z]{3,40}\b",
        rb"\bcuda_error_(?:[a-mo-z]|n[^o]|not_[^r]|no_b)\w{2,40}\b|\bhsa_status_error_\w{3,40}",
        rb"\bunexpected error from cuda|\bcu[a-z]{2,10}_status_(?:ar|[b-rt-z])",  # but for success, alloc_failed
        rb"\b(?:acl|rts?|drv|cuda|cu(?:dnn|blas|solver|sparse|fft)|hip|nvml)[a-z_]\w{2,60}(?:\(.{0,80}\))? "
        rb"(?:error|failed)",
        rb"\b(?:ai ?core|ai ?cpu|(?:vector|cube) core|(?:kernel|internal) task|task scheduler|hardware execution)\b"
        rb"[^|]{0,24}\b(?:errors?|exceptions?|fail(?:ed|s)|abnormal|time[sd]? ?out|loses)\b",
        rb"\b(?:error|exception) occur\w{1,4} [^|]{0,40}\b(?:ge|runtime|driver|drv|ai ?cpu|\w{2,6} ?core|task)\b",
        rb"couldn't communicate with the nvidia driver",
        CODE % rb"[a-hk-z1-9]\d{4}",
        rb"\berr(?:0[013-9]|99)\d{3} (?:pta|ops|graph|prof|rpc|unknown|\[)",
        rb"\b(?:memory access fault|hw exception) by gpu\b",
        rb"\bsynstatus[ =:]{1,3}[1-9]",
        rb"\blaunch kernel failed\b|\bdevice error: |\binner error is reported\b",
        rb"\b(?:[gnthx]pu|device) initiali[sz]ation failed\b",
        rb"\bfailed to initiali[sz]e (?:the )?(?:[gnthx]pu|nvml|device)s?\b",
        rb"\bcore halted unexpectedly|\bsync\w{0,8} (?:\w{1,12} )?stream failed",
        rb"\bxid=\d{1,3}\b|\bgpu reset begin\b|\bdevice recovery failed\b",
        rb"\b(?:" + DRIVERS + rb")\b[^|]{0,120}\b(?:fail(?:ed|ure)|time[sd]? ?out|hang|page fault|unresponsive|"
        rb"error,|fatal)",
        rb"\b(?:error code|runtime result|failed)(?: is)? ?[:=]? ?(?:[125]07|[135]61)\d{3}\b",
    ),
    _sign(
        "disk_full critical storage",
        "no space left, enospc, edquot, ephemeral-storage, disk space, quota exceeded, disk full, disk is full",
        rb"no space left on device|\blow on resource: ephemeral-storage\b|\benospc\b|\bedquot\b|disk quota exceeded",
        rb"\bnot enough (?:free )?disk space\b|\bdisk (?:is )?full\b",
    ),
    _sign(
        "disk_error high storage",
        "pytorchstreamwriter, inline_container, transport endpoint, i/o error, input/output error, "
        "read-only file system, stale file handle, stale nfs, -fs error, xfs_force_shutdown, nvme, nfs: server, "
        "lustreerror, mountvolume, disk failure",
        rb"\bpytorchstreamwriter failed writing",
        rb"\bmountvolume\.\w{2,16} failed\b|\binline_container\.cc:\d{1,5}\] \. unexpected pos",
        rb"\bi/o error, dev \w|\bdisk failure\b",
        rb"\bnvme\d{1,3}: i/o [^|]{0,80}\btimeout",
        rb"\bnfs: server \S{1,80} (?:not responding|timed out)",
        rb"\blustreerror: [^|]{0,200}(?:timed out|evicted|\blost\b)",
        rb"\b(?:buffer|remote) i/o error\b|input/output error|read-only file system|stale (?:nfs )?file handle",
        rb"transport endpoint is not connected",
        rb"\b(?:ext4|btrfs|xfs)-fs error",
        rb"xfs_force_shutdown",
    ),
    _sign(
        "job_cancelled medium launcher process",
        "cancelled at, job was , interruption notice, walltime, wallclock, wall time, time limit, thread limit, "
        "cpu limit, due to preemption, "
        "preempted, forcing job, force terminated, been revoked, got signal, caught signal, received signal, "
        "sigterm, sighup, sigint, sigquit, sigusr, sigxcpu, death signal",
        rb"\bcancelled at\b|\bjob was (?:evicted|aborted|removed)\b",
        rb"\b(?:exceed|reach)(?:s|ed|ing) [^|.]{0,24}\b(?:wall ?(?:time|clock)|time|cpu|thread) limit|"
        rb"\bwall ?(?:time|clock) [^|.]{0,24}\bexceed(?:s|ed)\b",
        rb"due to (?:time limit|preemption)|\bforcing job termination\b|\bpreempted by\b",
        rb"\bforce terminated job\b|\binterruption notice\b|\ballocation \d{1,12} has been revoked\b",
        rb"\b(?:job|pod|node|instance|worker)\b[^|.]{0,40}\b(?:is|was|been|being) preempted\b",
        rb"\b(?:got|caught|received) signal:? (?:1|2|3|10|12|15)\b",
        rb"\b(?:got|caught|received)\b[^|.]{0,32}\bsig(?:hup|int|quit|usr[12]|term|xcpu)\b",
        rb"\bsig(?:hup|int|quit|usr[12]|term|xcpu) (?:was )?(?:received|caught)\b",
        rb"\breceived [\w.]{1,16} death signal",
    ),
    _sign(
        "process_failed high launcher process",
        "childfailederror, exitcode, received by pid, received at, sigabrt, sigbus, sigsegv, "
        "segmentation fault, core dumped, received signal, died with, "
        "return code, exit code, a fatal error, deaderror, terminated with, exited on signal, exit with exception, "
        "segfault at, by signal: , general protection, exited unexpectedly, exits unexpectedly, unexpectedly exit, "
        "with code, "
        "crashederror, unavailableerror, died, "
        "back-off restarting, crashloopbackoff, srun: error, non-zero exit status, "
        "non-zero status, non-zero exit code, been shut down, "
        "failure of node, "
        "has failed, failed node, backoff limit, "
        "oci runtime, failed to create, failed to start, job aborted, mpi_abort, bad termination, "
        "process received signal, double free, (): , corrupted size, smashing, marked dead, not ready, nodenotready, "
        "primary job, kernel panic, unable to handle, oops: ",
        rb"\bchildfailederror\b|failed \(exitcode: -?\d{1,9}\)|\bexitcode\"? {0,4}: -?[1-9]\d{0,8}\b",
        rb"signal \d{1,3} \(sig\w{1,12}\) received by pid",
        rb"\bsig(?:abrt|bus|fpe|ill|kill|segv) (?:was )?(?:received|caught)\b",
        rb"\bsegmentation fault\b|\[\d{1,9}\]:? (?:segfault at|general protection fault)",
        rb"\bdataloader worker \(pid[^|]{0,80} is killed by signal: [^kb]|\bexit(?:s|ed) unexpectedly\b|"
        rb"\bunexpectedly exit(?:s|ed)\b",
        rb"\(core dumped\)",
        rb"\breceived signal \d{1,3}\b|died with <signals",
        rb"exits with return code = -?[1-9]|\bexitcode [1-9]",
        rb"(?:exited|failed|terminated) with (?:exit )?code -?[1-9]",
        rb"\bencountered a fatal error\b",
        rb"process \d{1,9} (?:terminated with (?:signal|exit code|the following error)|exit(?:s|ed)? with exception)",
        rb"\bexited on signal \d",
        rb"\breturned non-zero exit status [1-9]|\bexited with (?:a )?non-zero (?:exit )?(?:status|code)\b",
        rb"\bdue to failure of node\b|\bhas been shut down\. this (?:was|has been) caused by an exception\b",
        rb"\b\w{0,16}(?:actor|worker|node|engine)(?:died|dead|crashed|unavailable)error\b",
        rb"\b(?:actor|worker|engine)\b[^|.]{0,40}\bdied\b",
        rb"\bback-off restarting failed container\b|\bcrashloopbackoff\b",
        rb"\bsrun: error: [^|]{1,80}: (?:killed|terminated|aborted|segmentation fault|bus error)\b",
        rb"\b(?:worker|rank|node|process) \d{1,7} has failed(?:$|\W{1,2}(?:$|[^t]))",
        rb"\boci runtime \w{1,12} failed\b|\bfailed to (?:create|start) (?:\w{1,16} ){0,2}(?:container|pod|task)\b",
        rb"\bthat the job aborted\b|\bmpi_abort was invoked\b|\bbad termination of one\b",
        rb"\bprimary job {1,4}terminated\b|\bon failed node\b|\breached [^|.]{0,16}backoff limit\b",
        rb"\*{3} process received signal\b|\bdouble free or|\b(?:munmap_chunk|free|malloc\w{0,12})\(\): |"
        rb"\bkernel panic - not syncing|\bbug: unable to handle |\boops: [\da-f]{4} \[#|"
        rb"\bcorrupted size vs|\bstack smashing detected",
        rb"\bnode\b[^|]{0,160}\bmarked dead\b|\bnode is not ready\b|\bnodenotready\b",
    ),
    _sign(
        "communication_error high communication " + OF_ERROR,
        ERRORS,
        rb"\b(?:" + LINKS + rb")" + FAILED,
        rb"\b(?:fail(?:ed|ure) to|errors?|unable to|could not) \w[^|]{0,60}\b(?:" + LINKS + rb")\b",
        rb": connection timed out\W{0,4}$",
    ),
    _sign(
        "device_error high gpu " + OF_ERROR,
        ERRORS,
        rb"\[(?:error|critical)\] ?(?:runtime|device|ge|fe|tbe|drv|tdt|aicpu|ascendcl|op|app|tsch|dvpp|atb)\(",
        rb"\b(?:" + DEVICES + rb")" + FAILED,
    ),
    _sign(
        "process_failed high launcher " + OF_ERROR,
        ERRORS,
        rb"\b(?:" + PROCESSES + rb")" + FAILED,
        rb"\bfailed to (?:create|start|launch|spawn|run) [^|]{0,40}\b(?:" + PROCESSES + rb")\b",
        rb"\brank[ \[]\d{1,7}\]? (?:failed|died|crashed)\b",
    ),
    _sign(
        "process_failed high launcher " + LAST,
        "terminate called, fatal python error, process exited, : line ,  failed, has died, has crashed, was killed",
        rb"\bterminate called after throwing\b",
        rb"\bprocess exited, code=(?:killed|dumped|exited, status=[1-9])|: failed with result '",
        rb"\bfatal python error: ",
        rb"\b(?:" + PROCESSES + rb")(?:[ :#-]\S{1,48})? (?:has |was |is |had |been ){0,2}(?:failed|killed|crashed|died)"
        rb"(?:$|\W{1,2}(?:$|[^t ]))",
        rb": line \d{1,6}: {1,4}\d{1,9} (?:killed|aborted|terminated|segmentation fault|bus error)",
    ),
)
"""Kinds in the order in which they are tried."""
FACTS = frozenset({"container_oom", "gpu_xid", "process_failed", "disk_full", "communication_error", "device_error"})
"""Kinds whose phrases are whole messages, which nothing before them denies."""
WORDS = {
    b"nan": rb"\bnan(?:s|inf)?(?:$|[^\w ]|_| (?:$|[^i]|i[^t]))",
    b"inf": rb"\b(?:inf|infinity)\b",
    b"finite": rb"\bno[nt][ -]?finite",
    b"oom": rb"\boom\b",
    b"hang": rb"\bhang(?:s|ing)?\b",
    b"hung": rb"\bhung\b",
    b"stuck": rb"\bstuck\b",
    CODES.encode(): rb"\be[a-z0-9]\d{4}(?:\)?: |\[pid| {1,4}(?:\[|the ))",
}
"""Needles that are parts of ordinary words, and the expressions that blocks are searched for instead. The phrase
``number of nan iterations`` of every line of Megatron-LM has no such NaN."""
NEEDLES: Words = any_of((needle for sign in SIGNS for needle in sign.needles), WORDS)
"""Expression that finds every line that may have an anomaly."""

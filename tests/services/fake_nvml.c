/* Library that answers as libnvidia-ml.so.1 does, for two GPUs: the first measures everything, the second is a part of
   a shared one and lacks most readings. The file named by FAKE_NVML holds a letter, o(kay), h(ang), l(ost) or x(id), and
   the id of a process that uses the first GPU. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15 };

typedef struct { int index; } device;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
typedef struct { device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event;

static device devices[2] = {{0}, {1}};

static char mode_and_process(unsigned *process) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : 0;
    char letter = 'o';
    *process = 0;
    if (file && fscanf(file, " %c %u", &letter, process) < 1) letter = 'o';
    if (file) fclose(file);
    return letter;
}

static char mode(void) {
    unsigned process;
    return mode_and_process(&process);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Other"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
    if (mode() == 'l' && index == 0) return GPU_IS_LOST;
    *handle = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetName(device *handle, char *name, unsigned size) {
    snprintf(name, size, handle->index ? "vGPU" : "Test \"GPU\"");
    return SUCCESS;
}

int nvmlDeviceGetUUID(device *handle, char *name, unsigned size) {
    snprintf(name, size, "GPU-%d", handle->index);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device *handle, utilization *found) {
    while (mode() == 'h') sleep(1);
    if (handle->index) return NOT_SUPPORTED;
    found->gpu = 87;
    found->memory = 40;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device *handle, memory *found) {
    found->total = 80ULL << 30;
    found->used = (handle->index + 1ULL) << 30;
    found->free = found->total - found->used;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device *handle, int sensor, unsigned *celsius) {
    *celsius = 65;
    return handle->index || sensor ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetPowerUsage(device *handle, unsigned *milliwatts) {
    *milliwatts = 350500;
    return handle->index ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(device *handle, unsigned *milliwatts) {
    *milliwatts = 700000;
    return handle->index ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device *handle, int kind, int counter, unsigned long long *count) {
    *count = kind == 0 ? 12 : 3;
    return handle->index || counter != 1 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device *handle, unsigned long long *reasons) {
    *reasons = 0x1 | 0x4 | 0x40;
    return handle->index ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *handle, unsigned *count, process *found) {
    if (handle->index) return NOT_SUPPORTED;
    unsigned pid;
    mode_and_process(&pid);
    if (!pid) { *count = 0; return SUCCESS; }
    if (*count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
    memset(found, 0, sizeof *found);
    found->pid = pid;
    *count = 1;
    return SUCCESS;
}

int nvmlEventSetCreate(int **set) { static int only; *set = &only; return SUCCESS; }

int nvmlDeviceRegisterEvents(device *handle, unsigned long long types, int *set) {
    (void)set;
    return handle->index || types != 8 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlEventSetWait_v2(int *set, event *found, unsigned milliseconds) {
    (void)set;
    usleep(milliseconds * 1000);
    if (mode() != 'x') return TIMEOUT;
    memset(found, 0, sizeof *found);
    found->device = &devices[0];
    found->type = 8;
    found->data = 79;
    return SUCCESS;
}

/* A stand-in for libnvidia-ml.so.1: answers NVML as a machine description says. A handle is the GPU's number plus one. */
#include "machine.h"

enum {
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
};

typedef void *Device;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char address[32];
} PciInfo;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} Memory2;

typedef struct {
    unsigned pid;
    unsigned long long memory_bytes;
    unsigned gpu_instance, compute_instance;
} Process;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, health_mask;
    unsigned char health_summary;
} Fabric;

static int initialised;

enum { SLICE = 1000 };

static int is_slice(Device handle)
{
    return (long)handle > SLICE;
}

static int gpu_of(Device handle)
{
    return (int)(long)handle - 1 - (is_slice(handle) ? SLICE : 0);
}

/* What each question about a device begins with: a lost GPU answers nothing. */
static int unreachable(Device handle)
{
    if (!initialised)
        return UNINITIALIZED;
    return (int)gpu_number(gpu_of(handle), "nvml_error", 0);
}

#define ASK(handle) do { int code = unreachable(handle); if (code) return code; } while (0)

static int text_of(Device handle, const char *key, char *answer, unsigned size)
{
    ASK(handle);
    return gpu_text(gpu_of(handle), key, answer, size) ? 0 : NOT_SUPPORTED;
}

static int number_of(Device handle, const char *key, long long otherwise, unsigned *answer)
{
    ASK(handle);
    long long value = gpu_number(gpu_of(handle), key, otherwise);
    *answer = (unsigned)value;
    return value < 0 ? NOT_SUPPORTED : 0;
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    int code = initialise("nvml.init");
    (void)flags;
    initialised = !code;
    return code;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void)
{
    initialised = 0;
    return 0;
}

EXPORT const char *nvmlErrorString(int code)
{
    switch (code) {
    case 0: return "The operation was successful";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 12: return "NVML Shared Library Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    return !initialised ? UNINITIALIZED : lookup("driver.module_version", version, size) ? 0 : NOT_SUPPORTED;
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    return lookup("driver.library_version", version, size) ? 0 : NOT_SUPPORTED;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = (int)number("cuda.version", 0);
    return initialised ? 0 : UNINITIALIZED;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)number("nvml.count", number("gpus", 0));
    return initialised ? 0 : UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *handle)
{
    unsigned count = 0;
    if (nvmlDeviceGetCount_v2(&count))
        return UNINITIALIZED;
    *handle = (Device)(long)(index + 1);
    return index < count ? unreachable(*handle) : INVALID_ARGUMENT;
}

static int handle_where(const char *key, const char *wanted, Device *handle)
{
    unsigned count = 0;
    char value[64];
    if (nvmlDeviceGetCount_v2(&count))
        return UNINITIALIZED;
    for (unsigned gpu = 0; gpu < count; gpu++)
        if (gpu_text((int)gpu, key, value, sizeof value) && !strcmp(value, wanted)) {
            *handle = (Device)(long)(gpu + 1);
            return 0;
        }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Device *handle) { return handle_where("uuid", uuid, handle); }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, Device *handle) { return handle_where("pci", pci, handle); }

EXPORT int nvmlDeviceGetName(Device gpu, char *name, unsigned size) { return text_of(gpu, is_slice(gpu) ? "name" : "board", name, size); }
EXPORT int nvmlDeviceGetUUID(Device gpu, char *uuid, unsigned size) { return text_of(gpu, is_slice(gpu) ? "uuid" : "board_uuid", uuid, size); }
EXPORT int nvmlDeviceGetSerial(Device gpu, char *serial, unsigned size) { return text_of(gpu, "serial", serial, size); }
EXPORT int nvmlDeviceGetMinorNumber(Device gpu, unsigned *minor) { return number_of(gpu, "minor", -1, minor); }

EXPORT int nvmlDeviceGetIndex(Device gpu, unsigned *index)
{
    ASK(gpu);
    *index = (unsigned)gpu_of(gpu);
    return 0;
}

EXPORT int nvmlDeviceGetPciInfo_v3(Device gpu, PciInfo *pci)
{
    ASK(gpu);
    memset(pci, 0, sizeof *pci);
    if (!gpu_text(gpu_of(gpu), "pci", pci->address, sizeof pci->address))
        return NOT_SUPPORTED;
    sscanf(pci->address, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    pci->pci_device = (unsigned)gpu_number(gpu_of(gpu), "pci_device", 0) << 16 | 0x10de;
    return 0;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(Device gpu, int *major, int *minor)
{
    ASK(gpu);
    *major = (int)gpu_number(gpu_of(gpu), "capability_major", 0);
    *minor = (int)gpu_number(gpu_of(gpu), "capability_minor", 0);
    return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(Device gpu, Memory *memory)
{
    ASK(gpu);
    memory->total = gpu_number(gpu_of(gpu), "memory_bytes", 0);
    memory->used = gpu_number(gpu_of(gpu), "memory_used_bytes", 0);
    memory->free = memory->total - memory->used;
    return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Device gpu, Memory2 *memory)
{
    Memory plain;
    int code = nvmlDeviceGetMemoryInfo(gpu, &plain);
    if (code)
        return code;
    memory->total = plain.total, memory->free = plain.free, memory->used = plain.used, memory->reserved = 0;
    return 0;
}

EXPORT int nvmlDeviceGetComputeMode(Device gpu, unsigned *mode) { return number_of(gpu, "compute_mode", 0, mode); }
EXPORT int nvmlDeviceGetPersistenceMode(Device gpu, unsigned *mode) { return number_of(gpu, "persistence", 1, mode); }

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Device gpu, unsigned *count, Process *processes)
{
    ASK(gpu);
    unsigned room = *count;
    *count = (unsigned)gpu_number(gpu_of(gpu), "processes", 0);
    if (room < *count)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; processes && i < *count; i++) {
        Process process = {(unsigned)gpu_number(gpu_of(gpu), "process_pid", 1) + i, 1u << 30, ~0u, ~0u};
        processes[i] = process;
    }
    return 0;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(Device gpu, unsigned *count, Process *processes)
{
    ASK(gpu);
    (void)processes;
    *count = 0;
    return 0;
}

EXPORT int nvmlDeviceGetMigMode(Device gpu, unsigned *now, unsigned *pending)
{
    int code = number_of(gpu, "mig", -1, now);
    *pending = *now;
    return code;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device gpu, unsigned *count) { return number_of(gpu, "mig_most", 0, count); }

/* One slice at most: the device that CUDA shows is the slice, the one that NVML shows is the board. */
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device gpu, unsigned index, Device *slice)
{
    ASK(gpu);
    if (gpu_number(gpu_of(gpu), "mig", 0) != 1 || gpu_number(gpu_of(gpu), "mig_none", 0) || index)
        return NOT_FOUND;
    *slice = (Device)((long)gpu + SLICE);
    return 0;
}

EXPORT int nvmlDeviceGetEccMode(Device gpu, unsigned *now, unsigned *pending)
{
    int code = number_of(gpu, "ecc_mode", 1, now);
    *pending = *now;
    return code;
}

EXPORT int nvmlDeviceGetTotalEccErrors(Device gpu, int type, int counter, unsigned long long *count)
{
    ASK(gpu);
    (void)counter;
    *count = gpu_number(gpu_of(gpu), type ? "ecc_uncorrected" : "ecc_corrected", 0);
    return 0;
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(Device gpu, int type, int counter, int place, unsigned long long *count)
{
    (void)place;
    return nvmlDeviceGetTotalEccErrors(gpu, type, counter, count);
}

EXPORT int nvmlDeviceGetRemappedRows(Device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    ASK(gpu);
    *corrected = 0;
    *uncorrected = (unsigned)gpu_number(gpu_of(gpu), "rows_remapped", 0);
    *pending = (unsigned)gpu_number(gpu_of(gpu), "rows_pending", 0);
    *failed = (unsigned)gpu_number(gpu_of(gpu), "rows_failed", 0);
    return 0;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Device gpu, unsigned long long *reasons)
{
    ASK(gpu);
    *reasons = gpu_number(gpu_of(gpu), "throttle", 1);
    return 0;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Device gpu, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(gpu, reasons);
}

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(Device gpu, unsigned *value) { return number_of(gpu, "pcie_generation", 5, value); }
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(Device gpu, unsigned *value) { return number_of(gpu, "pcie_generation_most", 5, value); }
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(Device gpu, unsigned *value) { return number_of(gpu, "pcie_width", 16, value); }
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(Device gpu, unsigned *value) { return number_of(gpu, "pcie_width_most", 16, value); }
EXPORT int nvmlDeviceGetPcieReplayCounter(Device gpu, unsigned *value) { return number_of(gpu, "pcie_replays", 0, value); }

EXPORT int nvmlDeviceGetTemperature(Device gpu, int sensor, unsigned *celsius)
{
    (void)sensor;
    return number_of(gpu, "temperature", 34, celsius);
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(Device gpu, Fabric *fabric)
{
    unsigned state = 0;
    int code = number_of(gpu, "fabric_state", -1, &state);
    if (code)
        return code;
    fabric->state = state;
    fabric->status = (unsigned)gpu_number(gpu_of(gpu), "fabric_status", 0);
    fabric->clique = fabric->health_mask = 0;
    return 0;
}

/* A stand-in for libcuda.so.1: answers the driver API as a machine description says, and computes nothing.
 *
 * Real programs meet it where they would meet the driver: initialisation, version, device count, attributes. It has
 * none of the driver's private tables, so that the CUDA runtime stops where a real one would go on; what a healthy
 * machine computes is played by libcudart.c, one layer higher.
 */
#include "machine.h"

enum {
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
    ATTRIBUTE_INTEGRATED = 18,
    ATTRIBUTE_COMPUTE_MODE = 20,
    ATTRIBUTE_CAPABILITY_MAJOR = 75,
    ATTRIBUTE_CAPABILITY_MINOR = 76,
    ATTRIBUTE_COUNT = 16,
    MOST_DEVICES = 64,
};

static int visible[MOST_DEVICES], visible_count, initialised;

/* The GPU that one word of CUDA_VISIBLE_DEVICES names, or -1: a number, or the beginning of exactly one UUID. */
static int named(const char *word, int count)
{
    char uuid[64], *rest;
    int found = -1;
    if (strncmp(word, "GPU-", 4) && strncmp(word, "MIG-", 4)) {
        long index = strtol(word, &rest, 10);
        return rest == word || index < 0 || index >= count ? -1 : (int)index;
    }
    for (int gpu = 0; gpu < count; gpu++)
        if (gpu_text(gpu, "uuid", uuid, sizeof uuid) && !strncmp(uuid, word, strlen(word)))
            found = found < 0 ? gpu : MOST_DEVICES;
    return found == MOST_DEVICES ? -1 : found;
}

/* As the driver reads CUDA_VISIBLE_DEVICES: up to the first word that names no GPU; a GPU named twice hides all. */
static void choose(void)
{
    int count = (int)number("cuda.count", number("gpus", 0));
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    char words[4096], *rest;
    visible_count = 0;
    if (!wanted) {
        for (int gpu = 0; gpu < count; gpu++)
            visible[visible_count++] = gpu;
        return;
    }
    snprintf(words, sizeof words, "%s", wanted);
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        int gpu = named(word + strspn(word, " "), count);
        if (gpu < 0)
            return;
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == gpu) {
                visible_count = 0;
                return;
            }
        visible[visible_count++] = gpu;
    }
}

/* For libcudart.c: which GPU of the description stands behind a device of this process. */
EXPORT int standin_gpu(int device)
{
    return device >= 0 && device < visible_count ? visible[device] : -1;
}

EXPORT int cuInit(unsigned flags)
{
    int code = initialise("cuda.init");
    (void)flags;
    if (code)
        return code;
    choose();
    if (!visible_count)
        return NO_DEVICE;
    initialised = 1;
    return 0;
}

EXPORT int cuDriverGetVersion(int *version)
{
    *version = (int)number("cuda.version", 0);
    return 0;
}

EXPORT int cuDeviceGetCount(int *count)
{
    if (!initialised)
        return NOT_INITIALIZED;
    *count = visible_count;
    return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    if (!initialised)
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= visible_count)
        return INVALID_DEVICE;
    *device = ordinal;
    return 0;
}

EXPORT int cuDeviceGetName(char *name, int size, int device)
{
    return gpu_text(visible[device], "name", name, size) ? 0 : INVALID_DEVICE;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = gpu_number(visible[device], "memory_bytes", 0);
    return 0;
}

EXPORT int cuDeviceGetPCIBusId(char *address, int size, int device)
{
    return gpu_text(visible[device], "pci", address, size) ? 0 : INVALID_DEVICE;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *bytes, int device)
{
    char text[64];
    if (!gpu_text(visible[device], "uuid", text, sizeof text))
        return INVALID_DEVICE;
    char *digit = text + 4;
    for (int i = 0; i < 16; i++, digit += 2) {
        unsigned value = 0;
        digit += *digit == '-';
        sscanf(digit, "%2x", &value);
        bytes[i] = (unsigned char)value;
    }
    return 0;
}

EXPORT int cuDeviceGetUuid(unsigned char *bytes, int device)
{
    return cuDeviceGetUuid_v2(bytes, device);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int gpu = visible[device];
    switch (attribute) {
    case ATTRIBUTE_CAPABILITY_MAJOR: *value = (int)gpu_number(gpu, "capability_major", 0); return 0;
    case ATTRIBUTE_CAPABILITY_MINOR: *value = (int)gpu_number(gpu, "capability_minor", 0); return 0;
    case ATTRIBUTE_INTEGRATED: *value = (int)gpu_number(gpu, "integrated", 0); return 0;
    case ATTRIBUTE_COMPUTE_MODE: *value = (int)gpu_number(gpu, "compute_mode", 0); return 0;
    case ATTRIBUTE_COUNT: *value = 1; return 0;
    default: *value = 0; return 0;
    }
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 1;
    return 0;
}

EXPORT int cuCtxGetCurrent(void **context)
{
    static int only;
    *context = &only;
    return 0;
}

static const struct {
    int code;
    const char *name, *text;
} ERRORS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int describe(int code, const char **answer, int wants_name)
{
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code) {
            *answer = wants_name ? ERRORS[i].name : ERRORS[i].text;
            return 0;
        }
    *answer = NULL;
    return INVALID_VALUE;
}

EXPORT int cuGetErrorName(int code, const char **name)
{
    return describe(code, name, 1);
}

EXPORT int cuGetErrorString(int code, const char **text)
{
    return describe(code, text, 0);
}

EXPORT int cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

static int unsupported(void)
{
    return NOT_SUPPORTED;
}

/* Our own function of that name, the versioned one first; for the rest of the driver API one that refuses. */
EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags, int *status)
{
    Dl_info self;
    char versioned[256];
    (void)version, (void)flags;
    dladdr((void *)cuInit, &self);
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    snprintf(versioned, sizeof versioned, "%s_v2", symbol);
    if (!(*function = dlsym(library, versioned)) && !(*function = dlsym(library, symbol)))
        *function = (void *)unsupported;
    if (status)
        *status = 0;
    return 0;
}

EXPORT int cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

/* A stand-in for the part of the CUDA runtime and of cuBLAS that a torch computation on one device touches.
 *
 * The real runtime refuses a driver that is not NVIDIA's own, so that no stand-in for libcuda can show what a healthy
 * machine does. This library is put in front of the real one with LD_PRELOAD: it asks the stand-in for libcuda.so.1 for
 * initialisation and devices, keeps "device" memory in main memory, and computes what the two kernels of
 * payload/cuda_torch.py would: an elementwise addition, found by its name, and a float32 product. Functions that are not
 * here are those of the real libraries. Made for torch 2.14.1; a kernel that is not known fails with error 98.
 *
 * It pins memory, too, as far as a DataLoader does.
 *
 * machine.txt: gpu.<n>.launch=<error of each launch>, gpu.<n>.wrong=<how far one number of a product is off>,
 * gpu.<n>.launch=hang, gpu.<n>.free_bytes=<free device memory>, cuda.init, cuda.version.
 */
#include "machine.h"

#include <cuda_runtime_api.h>

enum { MOST_KERNELS = 1 << 17 };

typedef int (*Driver)();

static int current;

static void *driver(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_LAZY)))
        return NULL;
    return dlsym(library, name);
}

/* The number of the GPU that the machine description has for a device of this process. */
static int gpu_of(int device)
{
    Driver number_of = driver("standin_gpu");
    return number_of ? number_of(device) : device;
}

static cudaError_t ready(void)
{
    static int code = -1;
    int version = 0;
    if (code >= 0)
        return code;
    Driver init = driver("cuInit"), get_version = driver("cuDriverGetVersion");
    if (!init)
        return code = cudaErrorInsufficientDriver;
    get_version(&version);
    if (version / 1000 < CUDART_VERSION / 1000)
        return code = cudaErrorInsufficientDriver;
    return code = init(0);
}

static cudaError_t last;

static cudaError_t failed(cudaError_t code)
{
    if (code)
        last = code;
    return code;
}

EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last;
    last = cudaSuccess;
    return code;
}

EXPORT cudaError_t cudaPeekAtLastError(void) { return last; }

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t code = ready();
    *count = 0;
    return code ? failed(code) : (cudaError_t)((Driver)driver("cuDeviceGetCount"))(count);
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    Driver get = driver("cuDriverGetVersion");
    *version = 0;
    return get ? (cudaError_t)get(version) : cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int *device) { return ready() ? ready() : (*device = current, cudaSuccess); }
EXPORT cudaError_t cudaSetDevice(int device) { return ready() ? ready() : (current = device, cudaSuccess); }
EXPORT cudaError_t cudaInitDevice(int device, unsigned flags, unsigned more) { return cudaSetDevice(device); }

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *facts, int device)
{
    int gpu = gpu_of(device);
    memset(facts, 0, sizeof *facts);
    gpu_text(gpu, "name", facts->name, sizeof facts->name);
    ((Driver)driver("cuDeviceGetUuid_v2"))(&facts->uuid, device);
    facts->major = (int)gpu_number(gpu, "capability_major", 0);
    facts->minor = (int)gpu_number(gpu, "capability_minor", 0);
    facts->totalGlobalMem = gpu_number(gpu, "memory_bytes", 0);
    facts->integrated = (int)gpu_number(gpu, "integrated", 0);
    facts->multiProcessorCount = 132;
    facts->warpSize = 32;
    facts->maxThreadsPerBlock = 1024;
    facts->maxThreadsPerMultiProcessor = 2048;
    facts->regsPerBlock = facts->regsPerMultiprocessor = 65536;
    facts->maxGridSize[0] = 0x7fffffff, facts->maxGridSize[1] = facts->maxGridSize[2] = 65535;
    facts->maxThreadsDim[0] = facts->maxThreadsDim[1] = 1024, facts->maxThreadsDim[2] = 64;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    return (cudaError_t)((Driver)driver("cuDeviceGetAttribute"))(value, attribute, device);
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = gpu_number(gpu_of(current), "memory_bytes", 0);
    *free_bytes = gpu_number(gpu_of(current), "free_bytes", (long long)*total_bytes);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return posix_memalign(memory, 4096, bytes ? bytes : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}

EXPORT cudaError_t cudaFree(void *memory) { return free(memory), cudaSuccess; }

/* Pinned memory is main memory too; gpu.<n>.pinned=<error of allocating it>. */
enum { MOST_PINNED = 4096 };
static struct {
    char *start;
    size_t bytes;
} pinned[MOST_PINNED];

EXPORT cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    cudaError_t code = (cudaError_t)gpu_number(gpu_of(current), "pinned", 0);
    if (code || (code = cudaMalloc(memory, bytes)))
        return failed(code);
    for (int i = 0; i < MOST_PINNED; i++)
        if (!pinned[i].start)
            return pinned[i].start = *memory, pinned[i].bytes = bytes, cudaSuccess;
    return failed(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaFreeHost(void *memory)
{
    for (int i = 0; i < MOST_PINNED; i++)
        if (pinned[i].start == memory)
            pinned[i].start = NULL;
    return cudaFree(memory);
}

EXPORT cudaError_t cudaHostGetDevicePointer(void **there, void *here, unsigned flags) { return *there = here, cudaSuccess; }

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *memory)
{
    const char *at = memory;
    memset(found, 0, sizeof *found);
    found->type = cudaMemoryTypeUnregistered;
    for (int i = 0; i < MOST_PINNED; i++)
        if (pinned[i].start && at >= pinned[i].start && at < pinned[i].start + pinned[i].bytes)
            found->type = cudaMemoryTypeHost;
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return *event = (cudaEvent_t)&pinned, cudaSuccess; }
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaSuccess; }
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaSuccess; }
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaSuccess; }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return memcpy(to, from, bytes), cudaSuccess;
}

EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return memset(to, value, bytes), cudaSuccess;
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { return *least = *most = 0, cudaSuccess; }

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                            cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                            size_t *count)
{
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
    Driver get = driver("cuGetProcAddress_v2");
    if (found)
        *found = cudaDriverEntryPointSuccess;
    return get ? (cudaError_t)get(symbol, function, version, flags, NULL) : cudaErrorInsufficientDriver;
}

static const struct {
    int code;
    const char *name, *text;
} LAUNCH_ERRORS[] = {
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {222, "cudaErrorUnsupportedPtxVersion", "the provided PTX was compiled with an unsupported toolchain."},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

static const char *described(int code, int wants_name)
{
    const char *text = NULL;
    for (size_t i = 0; i < sizeof LAUNCH_ERRORS / sizeof *LAUNCH_ERRORS; i++)
        if (LAUNCH_ERRORS[i].code == code)
            return wants_name ? LAUNCH_ERRORS[i].name : LAUNCH_ERRORS[i].text;
    Driver get = driver(wants_name ? "cuGetErrorName" : "cuGetErrorString");
    return get && !get(code, &text) ? text : "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t code) { return described(code, 0); }
EXPORT const char *cudaGetErrorName(cudaError_t code) { return described(code, 1); }

/* Kernels are known by the host function that stands for them and by their names. */

static struct {
    const void *function;
    const char *name;
} kernels[MOST_KERNELS];
static int kernel_count;

EXPORT void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    return &handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {}
EXPORT void __cudaUnregisterFatBinary(void **handle) {}

EXPORT void __cudaRegisterFunction(void **handle, const char *function, char *symbol, const char *name, int limit, uint3 *thread,
                                   uint3 *block, dim3 *block_size, dim3 *grid_size, int *warp)
{
    if (kernel_count < MOST_KERNELS) {
        kernels[kernel_count].function = function;
        kernels[kernel_count++].name = name;
    }
}

EXPORT void __cudaRegisterVar(void **handle, char *var, char *address, const char *name, int ext, size_t size, int constant, int global)
{
}

static const char *name_of(const void *function)
{
    for (int i = 0; i < kernel_count; i++)
        if (kernels[i].function == function)
            return kernels[i].name;
    return "";
}

/* What a launch on the current device ends with; one that hangs does not. */
static cudaError_t launch_error(void)
{
    char value[32];
    if (!gpu_text(gpu_of(current), "launch", value, sizeof value))
        return cudaSuccess;
    while (!strcmp(value, "hang"))
        pause();
    return atoi(value);
}

EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    cudaError_t code = launch_error();
    const char *name = name_of(function);
    if (code)
        return failed(code);
    if (!strstr(name, "elementwise_kernel") || !strstr(name, "unctorOnSelf_add")) {
        fprintf(stderr, "stand-in: no such kernel: %s\n", name);
        return failed(cudaErrorInvalidDeviceFunction);
    }
    /* (int count, functor {float other; ...}, {out, in}) */
    int count = *(int *)arguments[0];
    float other = *(float *)arguments[1];
    float **data = arguments[2];
    for (int i = 0; i < count; i++)
        data[0][i] = data[1][i] + other;
    return cudaSuccess;
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    return *kernel = (cudaKernel_t)function, cudaSuccess;
}

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}

/* cuBLAS, by its documented numbers: its header needs more headers than the wheels bring. */
enum { CUBLAS_SUCCESS = 0, CUBLAS_EXECUTION_FAILED = 13, CUBLAS_AS_IT_IS = 0 };

EXPORT int cublasCreate_v2(void **handle) { return *handle = &current, CUBLAS_SUCCESS; }
EXPORT int cublasDestroy_v2(void *handle) { return CUBLAS_SUCCESS; }
EXPORT int cublasSetStream_v2(void *handle, cudaStream_t stream) { return CUBLAS_SUCCESS; }
EXPORT int cublasSetWorkspace_v2(void *handle, void *memory, size_t bytes) { return CUBLAS_SUCCESS; }
EXPORT int cublasSetMathMode(void *handle, int mode) { return CUBLAS_SUCCESS; }
EXPORT int cublasGetMathMode(void *handle, int *mode) { return *mode = 0, CUBLAS_SUCCESS; }

EXPORT int cublasSgemm_v2(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a, int lda,
                          const float *b, int ldb, const float *beta, float *c, int ldc)
{
    char value[32];
    if (launch_error())
        return CUBLAS_EXECUTION_FAILED;
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            float sum = 0, *to = &c[row + (size_t)column * ldc];
            for (int i = 0; i < k; i++) {
                float left = op_a == CUBLAS_AS_IT_IS ? a[row + (size_t)i * lda] : a[i + (size_t)row * lda];
                float right = op_b == CUBLAS_AS_IT_IS ? b[i + (size_t)column * ldb] : b[column + (size_t)i * ldb];
                sum += left * right;
            }
            *to = *alpha * sum + (*beta ? *beta * *to : 0);
        }
    if (gpu_text(gpu_of(current), "wrong", value, sizeof value))
        c[7] += (float)atof(value);
    return CUBLAS_SUCCESS;
}

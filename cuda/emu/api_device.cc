// Initialisation, version, errors, device attributes.
#include <cstdio>
#include <cstring>
#include <atomic>

#include "config.h"
#include "context.h"
#include "fault.h"
#include "memory.h"
#include "report.h"

namespace emu {

static std::atomic<bool> initialised{false};

static Result deny(const char *call, Result r) {
    if (r != kSuccess) {
        count(kDenied);
        note("%s returns %d", call, r);
    }
    return r;
}

Result enterWithoutContext(const char *call) {
    if (!initialised) return deny(call, kNotInitialized);
    return deny(call, injected(call));
}

Result enterAnyway(const char *call, Context **current) {
    if (Result r = enterWithoutContext(call)) return r;
    *current = currentContext();
    return *current ? kSuccess : deny(call, kInvalidContext);
}

Result enter(const char *call, Context **current) {
    Context *c;
    if (Result r = enterAnyway(call, &c)) return r;
    if (current) *current = c;
    return c->error;
}

// CUdevice_attribute: number and value. What depends on the configuration is below.
static const struct { int number, value; } kAttributes[] = {
    {1, 1024},                             // MAX_THREADS_PER_BLOCK
    {2, 1024}, {3, 1024}, {4, 64},         // MAX_BLOCK_DIM
    {5, 2147483647}, {6, 65535}, {7, 65535},  // MAX_GRID_DIM
    {8, 48 << 10},                         // MAX_SHARED_MEMORY_PER_BLOCK
    {9, 64 << 10},                         // TOTAL_CONSTANT_MEMORY
    {10, 32},                              // WARP_SIZE
    {12, 65536},                           // MAX_REGISTERS_PER_BLOCK
    {13, 1000000},                         // CLOCK_RATE, kHz
    {14, 512},                             // TEXTURE_ALIGNMENT
    {15, 1},                               // GPU_OVERLAP
    {16, 8},                               // MULTIPROCESSOR_COUNT
    {19, 1},                               // CAN_MAP_HOST_MEMORY
    {20, 0},                               // COMPUTE_MODE
    {31, 1},                               // CONCURRENT_KERNELS
    {36, 1000000},                         // MEMORY_CLOCK_RATE, kHz
    {37, 64},                              // GLOBAL_MEMORY_BUS_WIDTH
    {38, 4 << 20},                         // L2_CACHE_SIZE
    {39, 2048},                            // MAX_THREADS_PER_MULTIPROCESSOR
    {40, 2},                               // ASYNC_ENGINE_COUNT
    {41, 1},                               // UNIFIED_ADDRESSING
    {78, 1},                               // STREAM_PRIORITIES_SUPPORTED
    {82, 65536},                           // MAX_REGISTERS_PER_MULTIPROCESSOR
    {91, 0},                               // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    {92, 1}, {93, 0}, {94, 1},             // CAN_USE_STREAM_MEM_OPS, 64 bit, WAIT_VALUE_NOR
    {106, 16},                             // MAX_BLOCKS_PER_MULTIPROCESSOR
    {122, 0}, {123, 1},                    // 64 bit and NOR of the second version
};

}  // namespace emu

using namespace emu;

EMU_API int cuInit(unsigned flags) {
    if (flags != 0) return kInvalidValue;
    if (Result r = injected("cuInit")) return r;
    if (config().devices == 0) return kNoDevice;
    installFaultHandler();
    Memory::get();
    initialised = true;
    return kSuccess;
}

EMU_API int cuDriverGetVersion(int *version) {
    if (!version) return kInvalidValue;
    *version = config().driver;
    return kSuccess;
}

EMU_API int cuDeviceGetCount(int *n) {
    if (Result r = enterWithoutContext("cuDeviceGetCount")) return r;
    *n = config().devices;
    return kSuccess;
}

EMU_API int cuDeviceGet(int *device, int ordinal) {
    if (Result r = enterWithoutContext("cuDeviceGet")) return r;
    if (ordinal < 0 || ordinal >= config().devices) return kInvalidDevice;
    *device = ordinal;
    return kSuccess;
}

EMU_API int cuDeviceGetName(char *name, int size, int device) {
    if (Result r = enterWithoutContext("cuDeviceGetName")) return r;
    if (device < 0 || device >= config().devices) return kInvalidDevice;
    snprintf(name, static_cast<std::size_t>(size), "sluice emulated device (sm_%d%d)", config().major, config().minor);
    return kSuccess;
}

EMU_API int cuDeviceTotalMem_v2(std::size_t *bytes, int device) {
    if (Result r = enterWithoutContext("cuDeviceTotalMem")) return r;
    if (device < 0 || device >= config().devices) return kInvalidDevice;
    *bytes = config().bytes;
    return kSuccess;
}

EMU_API int cuDeviceGetUuid(unsigned char *uuid, int device) {
    if (Result r = enterWithoutContext("cuDeviceGetUuid")) return r;
    memcpy(uuid, "sluice-emulator", 16);
    uuid[15] = static_cast<unsigned char>(device);
    return kSuccess;
}
EMU_API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }

EMU_API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (Result r = enterWithoutContext("cuDeviceGetAttribute")) return r;
    if (device < 0 || device >= config().devices) return kInvalidDevice;
    switch (attribute) {
    case 75: *value = config().major; return kSuccess;
    case 76: *value = config().minor; return kSuccess;
    case 81: *value = static_cast<int>(config().maxShared()) + 1024; return kSuccess;  // of a multiprocessor
    case 97: *value = static_cast<int>(config().maxShared()); return kSuccess;         // of a block, opted in
    }
    for (const auto &a : kAttributes)
        if (a.number == attribute) {
            *value = a.value;
            return kSuccess;
        }
    *value = 0;
    return attribute > 0 && attribute < 140 ? kSuccess : kInvalidValue;
}

EMU_API int cuDeviceCanAccessPeer(int *can, int, int) {
    *can = 0;
    return kSuccess;
}

EMU_API int cuGetErrorName(int code, const char **name) {
    static const struct { int code; const char *name; } kNames[] = {
#define NAME(number, what) {number, "CUDA_" #what},
#include "errors.inc"
#undef NAME
    };
    for (const auto &n : kNames)
        if (n.code == code) {
            *name = n.name;
            return kSuccess;
        }
    *name = nullptr;
    return kInvalidValue;
}

EMU_API int cuGetErrorString(int code, const char **text) {
    static const struct { int code; const char *text; } kTexts[] = {
        {kSuccess, "no error"},
        {kInvalidValue, "invalid argument"},
        {kOutOfMemory, "out of memory"},
        {kNotInitialized, "initialization error"},
        {kNoDevice, "no CUDA-capable device is detected"},
        {kInvalidDevice, "invalid device ordinal"},
        {kInvalidImage, "device kernel image is invalid"},
        {kInvalidContext, "invalid device context"},
        {kNoBinaryForGpu, "no kernel image is available for execution on the device"},
        {kInvalidHandle, "invalid resource handle"},
        {kNotFound, "named symbol not found"},
        {kNotReady, "device not ready"},
        {kIllegalAddress, "an illegal memory access was encountered"},
        {kLaunchTimeout, "the launch timed out and was terminated"},
        {kMisalignedAddress, "misaligned address"},
        {kLaunchFailed, "unspecified launch failure"},
        {kNotSupported, "operation not supported"},
    };
    for (const auto &t : kTexts)
        if (t.code == code) {
            *text = t.text;
            return kSuccess;
        }
    return cuGetErrorName(code, text);
}

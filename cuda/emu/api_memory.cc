// Allocation.
#include <cstring>

#include "capture.h"
#include "config.h"
#include "context.h"
#include "memory.h"
#include "report.h"

using namespace emu;

EMU_API int cuMemAlloc_v2(DevicePtr *out, std::size_t bytes) {
    Context *c;
    if (Result r = enter("cuMemAlloc", &c)) return r;
    if (Result r = refuseInCapture("cuMemAlloc")) return r;
    if (bytes == 0 || !out) return kInvalidValue;
    const std::uint64_t taken = Memory::get().deviceBytes();
    if (bytes > config().bytes || taken > config().bytes - bytes) {
        note("cuMemAlloc of %zu bytes: %llu of %llu are taken", bytes, (unsigned long long)taken, (unsigned long long)config().bytes);
        return kOutOfMemory;
    }
    const Allocation *a = Memory::get().allocate(bytes, false, c->serial);
    if (!a) return kOutOfMemory;
    count(kLiveAllocations);
    count(kLiveBytes, bytes);
    *out = a->address;
    return kSuccess;
}

// A free waits for the device, as the driver's does. After an error it frees all the same, so that one error is not told
// as many leaks.
static Result freeAllocation(Context *c, Allocation *a) {
    if (!c->error) awaitAll(c);
    sweep("when an allocation was freed");
    std::string last;
    {
        std::lock_guard<std::mutex> held(lock);
        last = c->lastKernel;
    }
    counters[a->host ? kLivePinned : kLiveAllocations]--;
    counters[a->host ? kLivePinnedBytes : kLiveBytes] -= a->bytes;
    Memory::get().release(a, last.c_str());
    return c->error;
}

EMU_API int cuMemFree_v2(DevicePtr p) {
    Context *c;
    if (Result r = enterAnyway("cuMemFree", &c)) return r;
    if (Result r = refuseInCapture("cuMemFree")) return r;
    if (p == 0) return kSuccess;
    Allocation *a = Memory::get().at(p);
    if (!a || a->host) {
        complain(kOutOfBounds, "cuMemFree of %#llx, which no allocation begins at", p);
        return kInvalidValue;
    }
    if (a->freed) {
        complain(kUseAfterFree, "cuMemFree of %#llx: allocation %llu is freed already", p, (unsigned long long)a->serial);
        return kInvalidValue;
    }
    return freeAllocation(c, a);
}

EMU_API int cuMemGetInfo_v2(std::size_t *free, std::size_t *total) {
    if (Result r = enter("cuMemGetInfo", nullptr)) return r;
    *total = config().bytes;
    *free = config().bytes - Memory::get().deviceBytes();
    return kSuccess;
}

EMU_API int cuMemGetAddressRange_v2(DevicePtr *start, std::size_t *bytes, DevicePtr p) {
    if (Result r = enter("cuMemGetAddressRange", nullptr)) return r;
    const Allocation *a = Memory::get().inWindow(p) ? Memory::get().around(p) : nullptr;
    if (!a || a->freed || p < a->address || p >= a->end()) return kNotFound;
    if (start) *start = a->address;
    if (bytes) *bytes = a->bytes;
    return kSuccess;
}

EMU_API int cuMemHostAlloc(void **out, std::size_t bytes, unsigned flags) {
    Context *c;
    if (Result r = enter("cuMemHostAlloc", &c)) return r;
    if (Result r = refuseInCapture("cuMemHostAlloc")) return r;
    if (bytes == 0 || !out || flags > 7) return kInvalidValue;
    const Allocation *a = Memory::get().allocate(bytes, true, c->serial);
    if (!a) return kOutOfMemory;
    count(kLivePinned);
    count(kLivePinnedBytes, bytes);
    *out = a->host;
    return kSuccess;
}
EMU_API int cuMemAllocHost_v2(void **out, std::size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

EMU_API int cuMemFreeHost(void *p) {
    Context *c;
    if (Result r = enterAnyway("cuMemFreeHost", &c)) return r;
    if (Result r = refuseInCapture("cuMemFreeHost")) return r;
    Allocation *a = Memory::get().pinned(p);
    if (!a || a->host != p) {
        complain(kOutOfBounds, "cuMemFreeHost of %p, which no pinned allocation begins at", p);
        return kInvalidValue;
    }
    return freeAllocation(c, a);
}

// On a real device the two addresses may be equal. Here they never are, so that mixing them up shows.
EMU_API int cuMemHostGetDevicePointer_v2(DevicePtr *out, void *p, unsigned flags) {
    if (Result r = enter("cuMemHostGetDevicePointer", nullptr)) return r;
    const Allocation *a = Memory::get().pinned(p);
    if (!a || flags != 0) return kInvalidValue;
    *out = a->address + static_cast<std::uint64_t>(static_cast<unsigned char *>(p) - a->host);
    return kSuccess;
}

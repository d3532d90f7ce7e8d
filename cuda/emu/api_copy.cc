// Copies and sets. They go through the library's own addresses and are checked against the allocations, when they are
// submitted and again when they run: a graph may run them after the memory is gone.
#include <cstring>
#include <memory>
#include <vector>

#include "capture.h"
#include "context.h"
#include "memory.h"
#include "report.h"

namespace emu {

static Result checkDevice(const char *call, DevicePtr p, std::size_t n) {
    Memory &m = Memory::get();
    const Allocation *a = m.inWindow(p) ? m.around(p) : nullptr;
    if (!a) {
        note("%s: %#llx is no device address", call, p);
        return kInvalidValue;
    }
    if (a->freed) {
        complain(kUseAfterFree, "%s of %zu bytes at %s, freed after %s", call, n, m.describe(p).c_str(), a->freedAfter.c_str());
        return kInvalidValue;
    }
    if (p < a->address || p + n > a->end() || p + n < p) {
        complain(kOutOfBounds, "%s of %zu bytes at %s", call, n, m.describe(p).c_str());
        return kInvalidValue;
    }
    return kSuccess;
}

static Result checkHost(const char *call, const void *p, std::size_t n, bool *pinned) {
    const auto address = reinterpret_cast<std::uint64_t>(p);
    if (!p || Memory::get().inWindow(address)) {
        note("%s: host address %p is null or the device's", call, p);
        return kInvalidValue;
    }
    const Allocation *a = Memory::get().pinned(p);
    if (pinned) *pinned = a != nullptr;
    if (a && static_cast<const unsigned char *>(p) + n > a->host + a->bytes) {
        complain(kOutOfBounds, "%s of %zu bytes leaves pinned allocation %llu of %zu bytes", call, n, (unsigned long long)a->serial, a->bytes);
        return kInvalidValue;
    }
    return kSuccess;
}

// Submits a copy, and waits for it when the call is a synchronous one.
static Result send(Context *c, const std::shared_ptr<Stream> &s, Operation op, bool wait) {
    if (!wait) return submit(s, std::move(op));
    count(kSyncCopies);
    return perform(c, s, std::move(op));
}

// The stream of an asynchronous call, or the default stream of a synchronous one.
static Result begin(const char *call, void *handle, bool synchronous, Context **c, std::shared_ptr<Stream> *s) {
    if (Result r = enter(call, c)) return r;
    if (synchronous)
        if (Result r = refuseInCapture(call)) return r;
    return findStream(synchronous ? nullptr : handle, s);
}

static Result copyIn(const char *call, DevicePtr to, const void *from, std::size_t n, void *handle, bool synchronous) {
    Context *c;
    std::shared_ptr<Stream> s;
    if (Result r = begin(call, handle, synchronous, &c, &s)) return r;
    if (n == 0) return kSuccess;
    bool pinned = false;
    if (Result r = checkDevice(call, to, n)) return r;
    if (Result r = checkHost(call, from, n, &pinned)) return r;
    std::shared_ptr<std::vector<unsigned char>> staged;
    if (!synchronous && !pinned) {
        // The driver copies such memory aside before it returns, except into a graph.
        count(kPageable);
        bool capturing;
        {
            std::lock_guard<std::mutex> held(lock);
            capturing = s->capture != nullptr;
        }
        const auto *bytes = static_cast<const unsigned char *>(from);
        if (!capturing) staged = std::make_shared<std::vector<unsigned char>>(bytes, bytes + n);
    }
    Operation op;
    op.name = call;
    op.body = [=](Stream &) {
        if (Result r = checkDevice(call, to, n)) return r;
        memcpy(Memory::get().own(to), staged ? staged->data() : from, n);
        count(kCopiesIn);
        count(kBytesIn, n);
        return kSuccess;
    };
    return send(c, s, std::move(op), synchronous);
}

static Result copyOut(const char *call, void *to, DevicePtr from, std::size_t n, void *handle, bool synchronous) {
    Context *c;
    std::shared_ptr<Stream> s;
    if (Result r = begin(call, handle, synchronous, &c, &s)) return r;
    if (n == 0) return kSuccess;
    bool pinned = false, capturing;
    if (Result r = checkDevice(call, from, n)) return r;
    if (Result r = checkHost(call, to, n, &pinned)) return r;
    {
        std::lock_guard<std::mutex> held(lock);
        capturing = s->capture != nullptr;
    }
    if (!synchronous && !pinned) count(kPageable);
    Operation op;
    op.name = call;
    op.body = [=](Stream &) {
        if (Result r = checkDevice(call, from, n)) return r;
        memcpy(to, Memory::get().own(from), n);
        count(kCopiesOut);
        count(kBytesOut, n);
        return kSuccess;
    };
    // Into memory that is not pinned the driver returns only when the bytes are there.
    return send(c, s, std::move(op), synchronous || (!pinned && !capturing));
}

static Result copyWithin(const char *call, DevicePtr to, DevicePtr from, std::size_t n, void *handle) {
    Context *c;
    std::shared_ptr<Stream> s;
    if (Result r = begin(call, handle, false, &c, &s)) return r;
    if (n == 0) return kSuccess;
    if (Result r = checkDevice(call, to, n)) return r;
    if (Result r = checkDevice(call, from, n)) return r;
    Operation op;
    op.name = call;
    op.body = [=](Stream &) {
        if (Result r = checkDevice(call, to, n)) return r;
        if (Result r = checkDevice(call, from, n)) return r;
        memmove(Memory::get().own(to), Memory::get().own(from), n);
        count(kCopiesWithin);
        count(kBytesWithin, n);
        return kSuccess;
    };
    return send(c, s, std::move(op), false);
}

template <typename T>
static Result set(const char *call, DevicePtr to, T value, std::size_t n, void *handle) {
    Context *c;
    std::shared_ptr<Stream> s;
    if (Result r = begin(call, handle, false, &c, &s)) return r;
    if (n == 0) return kSuccess;
    if (to % sizeof(T) != 0) return kInvalidValue;
    if (Result r = checkDevice(call, to, n * sizeof(T))) return r;
    Operation op;
    op.name = call;
    op.body = [=](Stream &) {
        if (Result r = checkDevice(call, to, n * sizeof(T))) return r;
        T *p = reinterpret_cast<T *>(Memory::get().own(to));
        for (std::size_t i = 0; i < n; i++) p[i] = value;
        count(kSets);
        count(kBytesSet, n * sizeof(T));
        return kSuccess;
    };
    return send(c, s, std::move(op), false);
}

// With unified addressing an address says itself whose it is.
static Result copyAny(const char *call, DevicePtr to, DevicePtr from, std::size_t n, void *handle, bool synchronous) {
    Memory &m = Memory::get();
    const bool out = !m.inWindow(to), in = !m.inWindow(from);
    if (out && in) return kInvalidValue;
    if (out) return copyOut(call, reinterpret_cast<void *>(to), from, n, handle, synchronous);
    if (in) return copyIn(call, to, reinterpret_cast<const void *>(from), n, handle, synchronous);
    return copyWithin(call, to, from, n, synchronous ? nullptr : handle);
}

}  // namespace emu

using namespace emu;

EMU_API int cuMemcpyHtoD_v2(DevicePtr to, const void *from, std::size_t n) { return copyIn("cuMemcpyHtoD", to, from, n, nullptr, true); }
EMU_API int cuMemcpyDtoH_v2(void *to, DevicePtr from, std::size_t n) { return copyOut("cuMemcpyDtoH", to, from, n, nullptr, true); }
EMU_API int cuMemcpyDtoD_v2(DevicePtr to, DevicePtr from, std::size_t n) { return copyWithin("cuMemcpyDtoD", to, from, n, nullptr); }
EMU_API int cuMemcpyHtoDAsync_v2(DevicePtr to, const void *from, std::size_t n, void *s) { return copyIn("cuMemcpyHtoDAsync", to, from, n, s, false); }
EMU_API int cuMemcpyDtoHAsync_v2(void *to, DevicePtr from, std::size_t n, void *s) { return copyOut("cuMemcpyDtoHAsync", to, from, n, s, false); }
EMU_API int cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, std::size_t n, void *s) { return copyWithin("cuMemcpyDtoDAsync", to, from, n, s); }
EMU_API int cuMemcpy(DevicePtr to, DevicePtr from, std::size_t n) { return copyAny("cuMemcpy", to, from, n, nullptr, true); }
EMU_API int cuMemcpyAsync(DevicePtr to, DevicePtr from, std::size_t n, void *s) { return copyAny("cuMemcpyAsync", to, from, n, s, false); }

EMU_API int cuMemsetD8_v2(DevicePtr p, unsigned char v, std::size_t n) { return set("cuMemsetD8", p, v, n, nullptr); }
EMU_API int cuMemsetD16_v2(DevicePtr p, unsigned short v, std::size_t n) { return set("cuMemsetD16", p, v, n, nullptr); }
EMU_API int cuMemsetD32_v2(DevicePtr p, unsigned v, std::size_t n) { return set("cuMemsetD32", p, v, n, nullptr); }
EMU_API int cuMemsetD8Async(DevicePtr p, unsigned char v, std::size_t n, void *s) { return set("cuMemsetD8Async", p, v, n, s); }
EMU_API int cuMemsetD16Async(DevicePtr p, unsigned short v, std::size_t n, void *s) { return set("cuMemsetD16Async", p, v, n, s); }
EMU_API int cuMemsetD32Async(DevicePtr p, unsigned v, std::size_t n, void *s) { return set("cuMemsetD32Async", p, v, n, s); }

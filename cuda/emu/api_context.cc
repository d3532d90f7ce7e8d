// Contexts. What is left in one when it is destroyed is a leak.
#include "context.h"

#include "capture.h"
#include "config.h"
#include "memory.h"
#include "report.h"

namespace emu {

// As many levels as any program needs; the real driver sets no limit.
static __thread Context *stack[16];
static __thread int depth;

static std::uint64_t contexts = 0;              // under lock
static auto &alive = *new std::set<Context *>;  // under lock
// The primary context of the one device; programs retain it from one thread.
static Context *primaryContext;
static int primaryUses;
static unsigned primaryFlags;

Context *currentContext() {
    Context *c = depth > 0 ? stack[depth - 1] : nullptr;
    std::lock_guard<std::mutex> held(lock);
    return alive.count(c) ? c : nullptr;
}

static Context *make(int device, unsigned flags) {
    auto *c = new Context;  // never deleted: threads of its streams may still look at it
    c->device = device;
    c->flags = flags;
    {
        std::lock_guard<std::mutex> held(lock);
        c->serial = ++contexts;
        alive.insert(c);
    }
    c->legacy = newStream(c, 0, 0);
    return c;
}

static Result destroy(Context *c) {
    // After an error streams drop their work; a kernel that never ends is left alone.
    if (c->error != kLaunchTimeout) awaitAll(c);
    Memory &m = Memory::get();
    sweep("when its context was destroyed");
    for (Allocation *a : m.live()) {
        if (a->owner != c->serial) continue;
        complain(kLeaks, "leak: %s allocation %llu of %zu bytes was not freed before its context was destroyed", a->host ? "pinned" : "device",
                 (unsigned long long)a->serial, a->bytes);
        counters[a->host ? kLivePinned : kLiveAllocations]--;
        counters[a->host ? kLivePinnedBytes : kLiveBytes] -= a->bytes;
        m.release(a, "the end of its context");
    }
    std::vector<std::shared_ptr<Stream>> streams;  // the default stream, and what the program forgot
    {
        std::lock_guard<std::mutex> held(lock);
        alive.erase(c);
        for (const auto &s : c->streams)
            if (!s->destroyed) streams.push_back(s);
    }
    const std::size_t forgotten = streams.size() - 1, objects = forgotten + c->events.size() + c->graphs.size();
    if (objects) {
        complain(kLeaks, "leak: %zu streams, %zu events and %zu graphs were not destroyed before their context", forgotten,
                 c->events.size(), c->graphs.size());
        counters[kLiveObjects] -= objects;
    }
    for (const auto &s : streams) destroyStream(s);
    return kSuccess;
}

static Result push(Context *c) {
    if (depth == 16) return kUnknown;
    stack[depth++] = c;
    return kSuccess;
}

}  // namespace emu

using namespace emu;

EMU_API int cuCtxCreate_v2(Context **out, unsigned flags, int device) {
    if (Result r = enterWithoutContext("cuCtxCreate")) return r;
    if (device < 0 || device >= config().devices) return kInvalidDevice;
    *out = make(device, flags);
    return push(*out);
}
EMU_API int cuCtxCreate_v3(Context **out, void *, int, unsigned flags, int device) { return cuCtxCreate_v2(out, flags, device); }
EMU_API int cuCtxCreate_v4(Context **out, void *, unsigned flags, int device) { return cuCtxCreate_v2(out, flags, device); }

EMU_API int cuCtxDestroy_v2(Context *c) {
    if (Result r = enterWithoutContext("cuCtxDestroy")) return r;
    {
        std::lock_guard<std::mutex> held(lock);
        if (!alive.count(c)) return kInvalidContext;
    }
    if (depth > 0 && stack[depth - 1] == c) depth--;
    return destroy(c);
}

EMU_API int cuCtxPushCurrent_v2(Context *c) {
    if (Result r = enterWithoutContext("cuCtxPushCurrent")) return r;
    return push(c);
}
EMU_API int cuCtxPopCurrent_v2(Context **out) {
    if (Result r = enterWithoutContext("cuCtxPopCurrent")) return r;
    if (depth == 0) return kInvalidContext;
    depth--;
    if (out) *out = stack[depth];
    return kSuccess;
}
EMU_API int cuCtxSetCurrent(Context *c) {
    if (Result r = enterWithoutContext("cuCtxSetCurrent")) return r;
    if (depth > 0) depth--;
    return c ? push(c) : kSuccess;
}
EMU_API int cuCtxGetCurrent(Context **out) {
    if (Result r = enterWithoutContext("cuCtxGetCurrent")) return r;
    *out = currentContext();
    return kSuccess;
}
EMU_API int cuCtxGetDevice(int *device) {
    Context *c;
    if (Result r = enter("cuCtxGetDevice", &c)) return r;
    *device = c->device;
    return kSuccess;
}
EMU_API int cuCtxGetFlags(unsigned *flags) {
    Context *c;
    if (Result r = enter("cuCtxGetFlags", &c)) return r;
    *flags = c->flags;
    return kSuccess;
}
EMU_API int cuCtxGetApiVersion(Context *, unsigned *version) {
    *version = 3020;
    return kSuccess;
}
EMU_API int cuCtxSynchronize(void) {
    Context *c;
    if (Result r = enter("cuCtxSynchronize", &c)) return r;
    if (Result r = refuseInCapture("cuCtxSynchronize")) return r;
    count(kSyncs);
    return awaitAll(c);
}
EMU_API int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (Result r = enter("cuCtxGetStreamPriorityRange", nullptr)) return r;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return kSuccess;
}

EMU_API int cuDevicePrimaryCtxRetain(Context **out, int device) {
    if (Result r = enterWithoutContext("cuDevicePrimaryCtxRetain")) return r;
    if (device < 0 || device >= config().devices) return kInvalidDevice;
    if (!primaryContext) primaryContext = make(device, primaryFlags);
    primaryUses++;
    *out = primaryContext;
    return kSuccess;
}
EMU_API int cuDevicePrimaryCtxRelease_v2(int) {
    if (Result r = enterWithoutContext("cuDevicePrimaryCtxRelease")) return r;
    if (!primaryContext) return kInvalidContext;
    if (--primaryUses > 0) return kSuccess;
    Context *c = primaryContext;
    primaryContext = nullptr;
    return destroy(c);
}
EMU_API int cuDevicePrimaryCtxReset_v2(int device) {
    primaryUses = 1;
    return primaryContext ? cuDevicePrimaryCtxRelease_v2(device) : static_cast<int>(kSuccess);
}
EMU_API int cuDevicePrimaryCtxSetFlags_v2(int, unsigned flags) {
    primaryFlags = flags;
    return kSuccess;
}
EMU_API int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) {
    *flags = primaryFlags;
    *active = primaryContext != nullptr;
    return kSuccess;
}

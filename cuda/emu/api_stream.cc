// Streams, and what waits in them for a value in memory.
#include <atomic>
#include <ctime>

#include "capture.h"
#include "context.h"
#include "memory.h"
#include "report.h"

namespace emu {

Result findStream(void *handle, std::shared_ptr<Stream> *out) {
    Context *c = currentContext();
    if (!c) return kInvalidContext;
    const auto h = reinterpret_cast<std::uintptr_t>(handle);
    if (h == 2) return kNotSupported;
    if (h <= 1) {
        *out = c->legacy;
        return kSuccess;
    }
    std::lock_guard<std::mutex> held(lock);
    for (const auto &s : c->streams)
        if (s.get() == handle && !s->destroyed) {
            *out = s;
            return kSuccess;
        }
    return kInvalidHandle;
}

static bool holds(std::uint32_t have, std::uint32_t want, unsigned how) {
    switch (how) {
    case kWaitGeq: return static_cast<std::int32_t>(have - want) >= 0;  // cyclic, as the driver defines it
    case kWaitEq: return have == want;
    case kWaitAnd: return (have & want) != 0;
    default: return ~(have | want) != 0;
    }
}

// The place of a 32-bit word in live memory, or null.
static std::uint32_t *word(DevicePtr p) {
    Memory &m = Memory::get();
    const Allocation *a = m.inWindow(p) ? m.around(p) : nullptr;
    if (!a || a->freed || p % 4 != 0 || p < a->address || p + 4 > a->end()) return nullptr;
    return reinterpret_cast<std::uint32_t *>(m.own(p));
}

static Result submitWord(const char *call, void *handle, DevicePtr p, std::function<Result(Stream &)> body) {
    if (Result r = enter(call, nullptr)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    if (!word(p)) {
        note("%s: %s is no word of live memory", call, Memory::get().describe(p).c_str());
        return kInvalidValue;
    }
    {
        std::lock_guard<std::mutex> held(lock);
        if (s->capture) {
            breakCapture(*s->capture);
            return kCaptureUnsupported;
        }
    }
    Operation op;
    op.name = call;
    op.body = std::move(body);
    return submit(s, std::move(op));
}

static Result waitValue(void *handle, DevicePtr p, std::uint32_t value, unsigned flags) {
    const unsigned how = flags & ~kWaitFlush;
    if (how > kWaitNor) return kInvalidValue;
    return submitWord("cuStreamWaitValue32", handle, p, [=](Stream &s) {
        // Nobody tells when the word changes: it may be the host's own store.
        for (unsigned tries = 0;; tries++) {
            const std::uint32_t *w = word(p);
            if (!w) {
                complain(kUseAfterFree, "cuStreamWaitValue32 waits on %s", Memory::get().describe(p).c_str());
                return kIllegalAddress;
            }
            if (holds(__atomic_load_n(w, __ATOMIC_ACQUIRE), value, how)) return kSuccess;
            if (s.context->error) return kSuccess;
            const timespec pause{0, tries < 50 ? 10000 : 50000};
            nanosleep(&pause, nullptr);
        }
    });
}

static Result writeValue(void *handle, DevicePtr p, std::uint32_t value, unsigned flags) {
    if (flags > 1) return kInvalidValue;
    return submitWord("cuStreamWriteValue32", handle, p, [=](Stream &) {
        std::uint32_t *w = word(p);
        if (!w) {
            complain(kUseAfterFree, "cuStreamWriteValue32 writes to %s", Memory::get().describe(p).c_str());
            return kIllegalAddress;
        }
        __atomic_store_n(w, value, __ATOMIC_SEQ_CST);
        return kSuccess;
    });
}

}  // namespace emu

using namespace emu;

EMU_API int cuStreamCreateWithPriority(void **out, unsigned flags, int priority) {
    Context *c;
    if (Result r = enter("cuStreamCreate", &c)) return r;
    if (!out || flags > 1) return kInvalidValue;
    *out = newStream(c, flags, priority).get();
    count(kLiveObjects);
    return kSuccess;
}
EMU_API int cuStreamCreate(void **out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

// Work that is queued still runs; the handle is gone at once.
EMU_API int cuStreamDestroy_v2(void *handle) {
    Context *c;
    if (Result r = enterAnyway("cuStreamDestroy", &c)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    if (s == c->legacy) return kInvalidHandle;
    destroyStream(s);
    counters[kLiveObjects]--;
    return c->error;
}

EMU_API int cuStreamSynchronize(void *handle) {
    Context *c;
    if (Result r = enter("cuStreamSynchronize", &c)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    std::vector<Point> points;
    {
        std::lock_guard<std::mutex> held(lock);
        if (s->capture) {
            breakCapture(*s->capture);
            return kCaptureUnsupported;
        }
        points.push_back({s, s->submitted});
        // The default stream's work includes what it must follow.
        if (s == c->legacy)
            for (const auto &other : c->streams)
                if (other->blocking()) points.push_back({other, other->submitted});
    }
    count(kSyncs);
    return await(c, points);
}

EMU_API int cuStreamQuery(void *handle) {
    if (Result r = enter("cuStreamQuery", nullptr)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    std::lock_guard<std::mutex> held(lock);
    if (s->capture) {
        breakCapture(*s->capture);
        return kCaptureUnsupported;
    }
    return s->completed >= s->submitted ? kSuccess : kNotReady;
}

EMU_API int cuStreamGetFlags(void *handle, unsigned *flags) {
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    *flags = s->flags;
    return kSuccess;
}
EMU_API int cuStreamGetPriority(void *handle, int *priority) {
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    *priority = s->priority;
    return kSuccess;
}
EMU_API int cuStreamGetCtx(void *handle, Context **out) {
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    *out = s->context;
    return kSuccess;
}

EMU_API int cuStreamWaitValue32(void *s, DevicePtr p, unsigned v, unsigned flags) { return waitValue(s, p, v, flags); }
EMU_API int cuStreamWaitValue32_v2(void *s, DevicePtr p, unsigned v, unsigned flags) { return waitValue(s, p, v, flags); }
EMU_API int cuStreamWriteValue32(void *s, DevicePtr p, unsigned v, unsigned flags) { return writeValue(s, p, v, flags); }
EMU_API int cuStreamWriteValue32_v2(void *s, DevicePtr p, unsigned v, unsigned flags) { return writeValue(s, p, v, flags); }

EMU_API int cuLaunchHostFunc(void *handle, void (*f)(void *), void *data) {
    if (Result r = enter("cuLaunchHostFunc", nullptr)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    Operation op;
    op.name = "a host function";
    op.body = [=](Stream &) {
        f(data);
        return kSuccess;
    };
    return submit(s, std::move(op));
}

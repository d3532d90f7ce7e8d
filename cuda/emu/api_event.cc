// Events.
#include "capture.h"
#include "context.h"
#include "report.h"

namespace emu {

static Result findEvent(Context *c, void *handle, Event **out) {
    std::lock_guard<std::mutex> held(lock);
    *out = static_cast<Event *>(handle);
    return c->events.count(*out) ? kSuccess : kInvalidHandle;
}

// The mark of an event's last record; an error for one recorded during capture.
static Result findMark(Event *e, std::shared_ptr<Mark> *out) {
    std::lock_guard<std::mutex> held(lock);
    *out = e->mark;
    return e->mark && e->mark->capture ? kCapturedEvent : kSuccess;
}

}  // namespace emu

using namespace emu;

EMU_API int cuEventCreate(void **out, unsigned flags) {
    Context *c;
    if (Result r = enter("cuEventCreate", &c)) return r;
    if (!out || flags > 7) return kInvalidValue;
    auto *e = new Event;
    e->flags = flags;
    std::lock_guard<std::mutex> held(lock);
    c->events.insert(e);
    count(kLiveObjects);
    *out = e;
    return kSuccess;
}

EMU_API int cuEventDestroy_v2(void *handle) {
    Context *c;
    if (Result r = enterAnyway("cuEventDestroy", &c)) return r;
    Event *e;
    if (Result r = findEvent(c, handle, &e)) return r;
    std::lock_guard<std::mutex> held(lock);
    c->events.erase(e);
    counters[kLiveObjects]--;
    delete e;
    return c->error;
}

EMU_API int cuEventRecord(void *handle, void *stream) {
    Context *c;
    if (Result r = enter("cuEventRecord", &c)) return r;
    Event *e;
    std::shared_ptr<Stream> s;
    if (Result r = findEvent(c, handle, &e)) return r;
    if (Result r = findStream(stream, &s)) return r;
    auto mark = std::make_shared<Mark>();
    {
        std::lock_guard<std::mutex> held(lock);
        if (s->capture) {
            if (s->capture->broken) return kCaptureInvalidated;
            markCapture(*s, *mark);
            e->mark = mark;
            return kSuccess;
        }
    }
    Operation op;
    op.name = "cuEventRecord";
    op.body = [mark](Stream &) {
        mark->seconds = now();
        return kSuccess;
    };
    std::uint64_t number = 0;
    if (Result r = submit(s, std::move(op), &number)) return r;
    std::lock_guard<std::mutex> held(lock);
    mark->point = {s, number};
    e->mark = mark;
    return kSuccess;
}
EMU_API int cuEventRecordWithFlags(void *handle, void *stream, unsigned) { return cuEventRecord(handle, stream); }

EMU_API int cuEventQuery(void *handle) {
    Context *c;
    if (Result r = enter("cuEventQuery", &c)) return r;
    Event *e;
    if (Result r = findEvent(c, handle, &e)) return r;
    std::shared_ptr<Mark> m;
    if (Result r = findMark(e, &m)) return r;
    return !m || reached(m->point) ? kSuccess : kNotReady;
}

EMU_API int cuEventSynchronize(void *handle) {
    Context *c;
    if (Result r = enter("cuEventSynchronize", &c)) return r;
    Event *e;
    if (Result r = findEvent(c, handle, &e)) return r;
    std::shared_ptr<Mark> m;
    if (Result r = findMark(e, &m)) return r;
    count(kSyncs);
    return m ? await(c, {m->point}) : kSuccess;
}

EMU_API int cuStreamWaitEvent(void *stream, void *handle, unsigned flags) {
    Context *c;
    if (Result r = enter("cuStreamWaitEvent", &c)) return r;
    if (flags > 1) return kInvalidValue;
    Event *e;
    std::shared_ptr<Stream> s;
    if (Result r = findEvent(c, handle, &e)) return r;
    if (Result r = findStream(stream, &s)) return r;
    Operation op;
    {
        std::lock_guard<std::mutex> held(lock);
        if (!e->mark) return kSuccess;  // an event without a record is reached
        bool handled;
        const Result r = followCapture(s, *e->mark, &handled);
        if (handled) return r;
        op.after.push_back(e->mark->point);
    }
    op.name = "cuStreamWaitEvent";
    op.body = [](Stream &) { return kSuccess; };
    return submit(s, std::move(op));
}

EMU_API int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    Context *c;
    if (Result r = enter("cuEventElapsedTime", &c)) return r;
    Event *a, *b;
    if (Result r = findEvent(c, from, &a)) return r;
    if (Result r = findEvent(c, to, &b)) return r;
    std::shared_ptr<Mark> m, n;
    if (Result r = findMark(a, &m)) return r;
    if (Result r = findMark(b, &n)) return r;
    if (!m || !n || ((a->flags | b->flags) & kEventDisableTiming)) return kInvalidHandle;
    if (!reached(m->point) || !reached(n->point)) return kNotReady;
    *milliseconds = static_cast<float>((n->seconds - m->seconds) * 1e3);
    return kSuccess;
}
EMU_API int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { return cuEventElapsedTime(milliseconds, from, to); }

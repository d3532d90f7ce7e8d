#include "context.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "capture.h"
#include "config.h"
#include "fault.h"
#include "memory.h"
#include "report.h"

namespace emu {

std::mutex lock;
// Never destroyed: streams' threads outlive main.
static auto &progress = *new std::condition_variable;  // some operation completed, or some stream let go of the memory
static int hostWaits = 0;                               // threads in await
static std::uint64_t serials = 0;
static constexpr auto kNever = std::chrono::steady_clock::time_point::max();

using Held = std::unique_lock<std::mutex>;

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

static bool reachedLocked(const Point &p) { return !p.stream || p.stream->completed >= p.number; }

bool reached(const Point &p) {
    Held held(lock);
    return reachedLocked(p);
}

// Says in the queue that somebody waits, and waits once.
static std::cv_status sleep(const Point &p, Held &held, std::chrono::steady_clock::time_point until) {
    p.stream->wanted = std::min(p.stream->wanted, p.number);
    return progress.wait_until(held, until);
}

static void complete(Stream &s) {
    s.completed++;
    if (s.completed < s.wanted) return;
    s.wanted = ~std::uint64_t{0};  // those that still wait say so again
    progress.notify_all();
}

static void letGo(Stream &s, Held &held) {
    if (!s.holding) return;
    held.unlock();
    Memory::get().close();
    held.lock();
    s.holding = false;
    progress.notify_all();
}

// Memory is opened before the first launch and closed when the queue shows no other launch next. A host that submits one
// by one would have it flip at each, so it stays open a moment; but not while the host waits, for then nothing comes.
static void loop(std::shared_ptr<Stream> s) {
    useSignalStack();
    Held held(lock);
    for (;;) {
        if (s->queue.empty() || s->inlined) {
            if (s->holding) {
                if (hostWaits == 0 && !s->destroyed) s->work.wait_for(held, std::chrono::microseconds(150));
                if (s->queue.empty()) letGo(*s, held);
                continue;
            }
            if (s->destroyed && s->queue.empty()) {
                s->context->streams.erase(s);
                return;
            }
            s->work.wait(held);
            continue;
        }
        Operation op = std::move(s->queue.front());
        s->queue.pop_front();
        s->doing = op.name;
        for (const Point &p : op.after) {
            if (p.stream == s || reachedLocked(p)) continue;
            letGo(*s, held);
            while (!reachedLocked(p)) sleep(p, held, kNever);
        }
        op.after.clear();
        if (!op.kernels) letGo(*s, held);
        const bool open = op.kernels && !s->holding;
        if (open) s->holding = true;
        held.unlock();
        if (open) Memory::get().open();
        Result r = kSuccess;
        if (s->context->error == kSuccess) r = op.body(*s);
        op.body = nullptr;  // may free what it carried, outside the lock
        held.lock();
        Result none = kSuccess;
        if (r != kSuccess) s->context->error.compare_exchange_strong(none, r);
        if (hostWaits > 0 && (s->queue.empty() || !s->queue.front().kernels)) letGo(*s, held);
        s->doing = nullptr;
        complete(*s);
    }
}

std::shared_ptr<Stream> newStream(Context *c, unsigned flags, int priority) {
    auto s = std::make_shared<Stream>();
    s->context = c;
    s->flags = flags;
    s->priority = priority;
    {
        Held held(lock);
        s->serial = ++serials;
        c->streams.insert(s);
    }
    std::thread(loop, s).detach();
    return s;
}

void destroyStream(const std::shared_ptr<Stream> &s) {
    Held held(lock);
    s->destroyed = true;  // and taken off the context's list by its thread, after the last operation
    s->work.notify_all();
}

Result submit(const std::shared_ptr<Stream> &s, Operation op, std::uint64_t *number) {
    Held held(lock);
    if (s->capture) return appendNode(*s, std::move(op));
    Context &c = *s->context;
    if (s == c.legacy) {
        for (const auto &other : c.streams) {
            if (other == s || !other->blocking()) continue;
            if (other->capture) {
                breakCapture(*other->capture);
                return kCaptureImplicit;
            }
            if (other->completed < other->submitted) op.after.push_back({other, other->submitted});
        }
    } else if (s->blocking() && c.legacy->completed < c.legacy->submitted) {
        op.after.push_back({c.legacy, c.legacy->submitted});
    }
    s->queue.push_back(std::move(op));
    s->submitted++;
    if (number) *number = s->submitted;
    s->work.notify_all();
    return kSuccess;
}

Result perform(Context *c, const std::shared_ptr<Stream> &s, Operation op) {
    {
        Held held(lock);
        bool idle = s->queue.empty() && !s->inlined && !s->capture;
        for (const auto &other : c->streams) idle = idle && other->completed >= other->submitted && !other->holding && !other->capture;
        if (idle) {
            s->submitted++;
            s->inlined = true;
            held.unlock();
            const Result r = op.body(*s);
            held.lock();
            Result none = kSuccess;
            if (r != kSuccess) c->error.compare_exchange_strong(none, r);
            s->inlined = false;
            complete(*s);
            s->work.notify_all();
            return c->error;
        }
    }
    std::uint64_t number = 0;
    if (Result r = submit(s, std::move(op), &number)) return r;
    return await(c, {{s, number}});
}

static void tellWaits(Context *c) {
    std::string what;
    for (const auto &s : c->streams) {
        if (s->completed >= s->submitted) continue;
        const char *doing = s->doing;
        what += " stream " + std::to_string(s->serial) + (s == c->legacy ? " (default)" : "") + " is at " + (doing ? doing : "a wait") + ", " +
                std::to_string(s->queue.size()) + " more queued;";
    }
    complain(kTimeouts, "a host call waited %.0f s:%s", config().timeout, what.c_str());
}

Result await(Context *c, const std::vector<Point> &points) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<long>(config().timeout * 1e3));
    Held held(lock);
    hostWaits++;
    for (const Point &p : points) {
        if (!p.stream) continue;
        p.stream->work.notify_all();
        // A stream that goes on to further launches keeps the memory open, and that is right.
        const Stream &s = *p.stream;
        const auto over = [&] { return reachedLocked(p) && !(s.holding && s.queue.empty() && s.completed >= s.submitted); };
        while (!over() && sleep(p, held, until) == std::cv_status::no_timeout) {
        }
        if (over()) continue;
        tellWaits(c);
        c->error = kLaunchTimeout;
        break;
    }
    hostWaits--;
    return c->error;
}

Result awaitAll(Context *c) {
    std::vector<Point> points;
    {
        Held held(lock);
        for (const auto &s : c->streams) points.push_back({s, s->submitted});
    }
    return await(c, points);
}

}  // namespace emu

// context.h: contexts, streams and events. Each stream has a thread of its own that takes its operations in order; an
// operation first waits for those of other streams that it was told to follow.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "api.h"

namespace emu {

struct Context;
struct Stream;
struct Capture;

// "The operations of this stream up to this number are complete."
struct Point {
    std::shared_ptr<Stream> stream;
    std::uint64_t number = 0;
};

// What runs on a stream. body is called without any lock; its errors stay with the context.
struct Operation {
    const char *name = "";
    bool kernels = false;  // needs the device's memory open
    std::function<Result(Stream &)> body;
    std::vector<Point> after;
};

struct Stream {
    Context *context = nullptr;
    std::uint64_t serial = 0;
    unsigned flags = 0;
    int priority = 0;
    bool blocking() const { return !(flags & kStreamNonBlocking); }

    // Under emu::lock.
    std::deque<Operation> queue;
    std::uint64_t submitted = 0, completed = 0;
    std::uint64_t wanted = ~std::uint64_t{0};  // the first number that somebody waits for: completing others wakes nobody
    bool holding = false;  // keeps the device's memory open between two launches
    bool inlined = false;  // a host thread does the stream's work at the moment
    bool destroyed = false;
    std::shared_ptr<Capture> capture;
    std::condition_variable work;

    std::atomic<const char *> doing{nullptr};  // for the report of a wait that takes too long
};

// What a record of an event stands for. Each new record makes a new one.
struct Mark {
    Point point;
    double seconds = 0;  // when reached
    std::shared_ptr<Capture> capture;
    std::map<std::uint64_t, std::size_t> seen;  // of a captured record: nodes it follows, by stream
};

struct Event {
    unsigned flags = 0;
    std::shared_ptr<Mark> mark;  // null before the first record
};

struct Context {
    std::uint64_t serial = 0;
    int device = 0;
    unsigned flags = 0;
    std::atomic<Result> error{kSuccess};  // stays: every later call returns it
    std::shared_ptr<Stream> legacy;       // the default stream
    std::set<std::shared_ptr<Stream>> streams;  // the legacy one included
    std::set<Event *> events;
    std::set<void *> graphs;
    std::string lastKernel = "nothing";   // under emu::lock
};

// One lock for all queues: the emulator is not a contest.
extern std::mutex lock;

// The number of the operation, or an error. Follows the rules of the legacy default stream.
Result submit(const std::shared_ptr<Stream> &s, Operation op, std::uint64_t *number = nullptr);
// Submits an operation that the host waits for. On an idle device the calling thread does it itself, which spares two
// changes of thread: tests copy far more often than they launch.
Result perform(Context *c, const std::shared_ptr<Stream> &s, Operation op);
// Lets the host wait. kLaunchTimeout after the configured time, with a complaint that says what each stream is at.
Result await(Context *c, const std::vector<Point> &points);
Result awaitAll(Context *c);
bool reached(const Point &p);

std::shared_ptr<Stream> newStream(Context *c, unsigned flags, int priority);
void destroyStream(const std::shared_ptr<Stream> &s);
// The stream behind a handle of the current context: 0 and 1 name the legacy stream, 2 the per-thread one (not supported).
Result findStream(void *handle, std::shared_ptr<Stream> *out);

// The first lines of every call: an injected failure, initialisation, the current context, its error.
Result enter(const char *call, Context **current);
Result enterAnyway(const char *call, Context **current);  // whatever happened in the context before
Result enterWithoutContext(const char *call);
Context *currentContext();
double now();

}  // namespace emu

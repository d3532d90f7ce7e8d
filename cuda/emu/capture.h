// capture.h: stream capture. Operations submitted to a capturing stream become nodes in the order of their submission,
// whatever stream they came by: that order respects every dependency, so a graph runs them one after the other. What
// each stream has seen of the others is tracked only to tell a fork that was never joined.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "context.h"

namespace emu {

// The nodes of a graph; shared by what was instantiated from it and by launches in flight.
using Nodes = std::shared_ptr<std::vector<Operation>>;

using Seen = std::map<std::uint64_t, std::size_t>;  // by stream: nodes 1..n of the capture

struct Capture {
    int mode = kCaptureGlobal;
    std::thread::id thread;
    std::uint64_t origin = 0;
    std::uint64_t id = 0;
    bool broken = false, ended = false;
    std::vector<Operation> nodes;
    std::map<std::uint64_t, Seen> seen;  // by stream
    std::set<std::shared_ptr<Stream>> streams;
};

// All of these under emu::lock.
Result beginCapture(const std::shared_ptr<Stream> &s, int mode);
Result endCapture(Stream &s, Nodes *out);
Result appendNode(Stream &s, Operation op);
void breakCapture(Capture &c);
void markCapture(Stream &s, Mark &m);
// Makes s follow m, when one of them is captured: *handled tells whether that was so.
Result followCapture(const std::shared_ptr<Stream> &s, const Mark &m, bool *handled);

// Takes emu::lock. A call that could synchronise is not allowed while this thread captures, or any in global mode.
Result refuseInCapture(const char *call);

}  // namespace emu

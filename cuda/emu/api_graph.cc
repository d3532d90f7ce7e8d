// Stream capture and graphs made by it.
#include <cstring>

#include "capture.h"
#include "context.h"
#include "report.h"

namespace emu {

struct GraphHandle {
    Nodes nodes;
    bool exec;
};

static Result find(void *handle, bool exec, GraphHandle **out, Context *c) {
    std::lock_guard<std::mutex> held(lock);
    *out = static_cast<GraphHandle *>(handle);
    return c->graphs.count(handle) && (*out)->exec == exec ? kSuccess : kInvalidHandle;
}

static Result destroyHandle(const char *call, void *handle, bool exec) {
    Context *c;
    if (Result r = enterAnyway(call, &c)) return r;
    GraphHandle *g;
    if (Result r = find(handle, exec, &g, c)) return r;
    std::lock_guard<std::mutex> held(lock);
    c->graphs.erase(handle);
    counters[kLiveObjects]--;
    delete g;
    return c->error;
}

static Result instantiate(void **out, void *handle) {
    Context *c;
    if (Result r = enter("cuGraphInstantiate", &c)) return r;
    GraphHandle *g;
    if (Result r = find(handle, false, &g, c)) return r;
    auto *e = new GraphHandle{g->nodes, true};
    std::lock_guard<std::mutex> held(lock);
    c->graphs.insert(e);
    count(kLiveObjects);
    *out = e;
    return kSuccess;
}

}  // namespace emu

using namespace emu;

EMU_API int cuStreamBeginCapture_v2(void *handle, int mode) {
    if (Result r = enter("cuStreamBeginCapture", nullptr)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    if (mode < 0 || mode > 2) return kInvalidValue;
    std::lock_guard<std::mutex> held(lock);
    return beginCapture(s, mode);
}

EMU_API int cuStreamEndCapture(void *handle, void **out) {
    Context *c;
    if (Result r = enter("cuStreamEndCapture", &c)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    *out = nullptr;
    auto *g = new GraphHandle{nullptr, false};
    std::lock_guard<std::mutex> held(lock);
    if (Result r = endCapture(*s, &g->nodes)) {
        delete g;
        return r;
    }
    c->graphs.insert(g);
    count(kLiveObjects);
    *out = g;
    return kSuccess;
}

EMU_API int cuStreamIsCapturing(void *handle, int *status) {
    if (Result r = enter("cuStreamIsCapturing", nullptr)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    std::lock_guard<std::mutex> held(lock);
    *status = !s->capture ? kCaptureNone : s->capture->broken ? kCaptureBroken : kCaptureActive;
    return kSuccess;
}
EMU_API int cuStreamGetCaptureInfo(void *handle, int *status, std::uint64_t *id) {
    if (Result r = static_cast<Result>(cuStreamIsCapturing(handle, status))) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(handle, &s)) return r;
    std::lock_guard<std::mutex> held(lock);
    if (id && s->capture) *id = s->capture->id;
    return kSuccess;
}

EMU_API int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long) { return instantiate(out, graph); }
EMU_API int cuGraphInstantiate_v2(void **out, void *graph, void **, char *, std::size_t) { return instantiate(out, graph); }
EMU_API int cuGraphUpload(void *, void *) { return kSuccess; }

// The nodes run in the order of their capture. Launches of one graph never overlap on a device; here they would have to
// come from two streams, and that order is the program's to make.
EMU_API int cuGraphLaunch(void *handle, void *stream) {
    Context *c;
    if (Result r = enter("cuGraphLaunch", &c)) return r;
    GraphHandle *g;
    if (Result r = find(handle, true, &g, c)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(stream, &s)) return r;
    Operation op;
    op.name = "a graph";
    for (const Operation &n : *g->nodes) op.kernels |= n.kernels;
    op.body = [nodes = g->nodes](Stream &on) {
        count(kGraphLaunches);
        for (const Operation &n : *nodes) {
            on.doing = n.name;
            if (Result r = n.body(on)) return r;
        }
        return kSuccess;
    };
    return submit(s, std::move(op));
}

EMU_API int cuGraphExecDestroy(void *handle) { return destroyHandle("cuGraphExecDestroy", handle, true); }
EMU_API int cuGraphDestroy(void *handle) { return destroyHandle("cuGraphDestroy", handle, false); }

EMU_API int cuGraphGetNodes(void *handle, void **nodes, std::size_t *n) {
    Context *c;
    if (Result r = enter("cuGraphGetNodes", &c)) return r;
    GraphHandle *g;
    if (Result r = find(handle, false, &g, c)) return r;
    if (nodes) return kNotSupported;  // only the number
    *n = g->nodes->size();
    return kSuccess;
}

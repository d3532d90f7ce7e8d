// Streams, events, waits for values, graphs: who waits for whom.
#include <unistd.h>

#include "../report.h"
#include "driver.h"

constexpr int kSlow = 20 << 20;  // some 20 ms: what should follow would otherwise be over long before

static void events() {
    Fixture f;
    void *a, *b, *e, *e2;
    OK(cuStreamCreate(&a, emu::kStreamNonBlocking));
    OK(cuStreamCreate(&b, emu::kStreamNonBlocking));
    OK(cuEventCreate(&e, 0));
    OK(cuEventCreate(&e2, 0));
    Array<int> p(std::vector<int>{0});
    OK(cuEventRecord(e2, a));
    OK(f.launch("t_slow", 1, 1, 0, a, p.p, 1, kSlow));
    OK(cuEventRecord(e, a));
    WANT(cuStreamQuery(a), emu::kNotReady);
    OK(cuStreamWaitEvent(b, e, 0));
    OK(f.launch("t_slow", 1, 1, 0, b, p.p, 2, 1));
    OK(cuStreamSynchronize(b));
    WANT(p.get()[0], 2);
    float ms = 0;
    OK(cuEventElapsedTime(&ms, e2, e));
    WANT(ms > 1, 1);
    OK(cuEventDestroy_v2(e));
    OK(cuEventDestroy_v2(e2));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
    p.free();
    f.close();
}

// The default stream waits for blocking streams and they for it; for others it does not.
static void legacy() {
    Fixture f;
    void *blocking, *free;
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamCreate(&free, emu::kStreamNonBlocking));
    Array<int> p(std::vector<int>{0}), q(std::vector<int>{0});
    OK(f.launch("t_slow", 1, 1, 0, blocking, p.p, 1, kSlow));
    WANT(p.get()[0], 1);  // the copy is on the default stream
    OK(f.launch("t_slow", 1, 1, 0, nullptr, p.p, 2, kSlow));
    OK(f.launch("t_slow", 1, 1, 0, blocking, p.p, 3, 1));
    OK(cuStreamSynchronize(blocking));
    WANT(p.get()[0], 3);
    OK(f.launch("t_slow", 1, 1, 0, free, q.p, 1, kSlow));
    WANT(q.get()[0], 0);
    OK(cuStreamSynchronize(free));
    WANT(q.get()[0], 1);
    OK(cuStreamDestroy_v2(blocking));
    OK(cuStreamDestroy_v2(free));
    p.free();
    q.free();
    f.close();
}

static void values() {
    Fixture f;
    void *s, *host;
    DevicePtr mapped;
    OK(cuStreamCreate(&s, emu::kStreamNonBlocking));
    OK(cuMemHostAlloc(&host, 64, 2));
    OK(cuMemHostGetDevicePointer_v2(&mapped, host, 0));
    WANT(reinterpret_cast<std::uintptr_t>(host) != mapped, 1);
    auto *word = static_cast<volatile std::uint32_t *>(host);
    word[0] = 0;
    word[1] = 0;
    OK(cuStreamWaitValue32_v2(s, mapped, 5, emu::kWaitGeq));
    OK(f.launch("t_word", 1, 1, 0, s, mapped + 4, 77u));
    OK(cuStreamWriteValue32_v2(s, mapped + 8, 9, 0));
    usleep(20000);
    WANT(word[1], 0);
    word[0] = 6;
    OK(cuStreamSynchronize(s));
    WANT(word[1], 77);
    WANT(word[2], 9);
    WANT(cuStreamWaitValue32_v2(s, mapped + 2, 5, 0), emu::kInvalidValue);
    OK(cuMemFreeHost(host));
    OK(cuStreamDestroy_v2(s));
    f.close();
}

static void graphs() {
    Fixture f;
    void *s, *t, *e, *joined, *graph, *exec;
    OK(cuStreamCreate(&s, emu::kStreamNonBlocking));
    OK(cuStreamCreate(&t, emu::kStreamNonBlocking));
    OK(cuEventCreate(&e, emu::kEventDisableTiming));
    OK(cuEventCreate(&joined, emu::kEventDisableTiming));
    Array<float> x(std::vector<float>{1, 2, 3, 4}), y(4), z(4);
    OK(cuStreamBeginCapture_v2(s, emu::kCaptureThreadLocal));
    OK(f.launch("t_scale", 1, 32, 0, s, y.p, x.p, 2.0f, 4));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    OK(cuMemcpyDtoDAsync_v2(z.p, y.p, 16, t));
    OK(cuEventRecord(joined, t));
    OK(cuMemsetD8Async(y.p, 0, 8, s));
    OK(cuStreamWaitEvent(s, joined, 0));
    OK(f.launch("t_scale", 1, 32, 0, s, x.p, z.p, 1.0f, 4));
    DevicePtr none;
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    WANT(x.get()[3], 4);  // capture runs nothing
    const auto before = counter(emu::kLaunches);
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    WANT(x.get()[3], 32);
    WANT(y.get()[0], 0);
    WANT(counter(emu::kLaunches) - before, 6);

    // A fork that is never joined, and a call that capture forbids.
    OK(cuStreamBeginCapture_v2(s, emu::kCaptureThreadLocal));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    OK(cuMemcpyDtoDAsync_v2(z.p, y.p, 16, t));
    WANT(cuStreamEndCapture(s, &graph), emu::kCaptureUnjoined);
    OK(cuStreamBeginCapture_v2(s, emu::kCaptureThreadLocal));
    WANT(cuMemAlloc_v2(&none, 16), emu::kCaptureUnsupported);
    WANT(cuStreamEndCapture(s, &graph), emu::kCaptureInvalidated);
    OK(cuStreamBeginCapture_v2(s, emu::kCaptureThreadLocal));
    WANT(cuStreamSynchronize(s), emu::kCaptureUnsupported);
    WANT(cuStreamEndCapture(s, &graph), emu::kCaptureInvalidated);

    OK(cuGraphExecDestroy(exec));
    OK(cuEventDestroy_v2(e));
    OK(cuEventDestroy_v2(joined));
    OK(cuStreamDestroy_v2(s));
    OK(cuStreamDestroy_v2(t));
    x.free();
    y.free();
    z.free();
    f.close();
}

// Pageable memory may be used again as soon as an asynchronous copy has returned.
static void pageable() {
    Fixture f;
    void *s;
    OK(cuStreamCreate(&s, emu::kStreamNonBlocking));
    Array<int> p(std::vector<int>{0, 0});
    int from = 5, to = 0;
    OK(f.launch("t_slow", 1, 1, 0, s, p.p + 4, 1, kSlow));
    OK(cuMemcpyHtoDAsync_v2(p.p, &from, 4, s));
    from = 6;
    OK(cuMemcpyDtoHAsync_v2(&to, p.p, 4, s));
    WANT(to, 5);
    OK(cuStreamDestroy_v2(s));
    p.free();
    f.close();
}

// A hundred contexts leave nothing behind.
static void sessions() {
    for (int i = 0; i < 100; i++) {
        Fixture f;
        void *s;
        OK(cuStreamCreate(&s, 0));
        Array<int> p(1 << 16);
        OK(f.launch("t_stamped_one", 1, 32, 0, s, p.p));
        OK(cuStreamSynchronize(s));
        p.free();
        OK(cuStreamDestroy_v2(s));
        f.close();
    }
    WANT(counter(emu::kLiveAllocations) + counter(emu::kLivePinned) + counter(emu::kLiveObjects), 0);
    WANT(sluice_emu_report(1), 0);
}

extern const Case kOrder[];
const Case kOrder[] = {{"events", events}, {"legacy", legacy}, {"values", values}, {"graphs", graphs},
                       {"pageable", pageable}, {"sessions", sessions}, {nullptr, nullptr}};

// One mistake a case. The process must not end well: it dies of a signal, or its exit status says 86.
#include <unistd.h>

#include "driver.h"

// Launches a wrong kernel and wants the error that a device would give.
template <typename... A>
static void wrong(int want, const char *name, unsigned block, unsigned dynamic, A... a) {
    Fixture f;
    OK(f.launch(name, 2, block, dynamic, nullptr, a...));
    WANT(cuCtxSynchronize(), want);
    DevicePtr p;
    WANT(cuMemAlloc_v2(&p, 16), want);  // the context stays unusable
    cuCtxDestroy_v2(f.context);
}

// An allocation made before the context that wrong() makes current; its own is left alone.
static DevicePtr block(std::size_t bytes) {
    static Fixture *f = new Fixture;
    (void)f;
    DevicePtr p;
    OK(cuMemAlloc_v2(&p, bytes));
    return p;
}

static void hostRead() {
    Fixture f;
    Array<int> p(4);
    printf("%d\n", *reinterpret_cast<volatile int *>(p.p));
}
static void hostReadAfterLaunch() {
    Fixture f;
    Array<int> p(32);
    OK(f.launch("t_stamped_one", 1, 32, 0, nullptr, p.p));
    OK(cuCtxSynchronize());
    printf("%d\n", *reinterpret_cast<volatile int *>(p.p));
}
static void hostPastPinned() {
    Fixture f;
    void *p;
    OK(cuMemHostAlloc(&p, 4096, 0));
    static_cast<volatile char *>(p)[4096] = 1;
}
static void hostAfterFreeHost() {
    Fixture f;
    void *p;
    OK(cuMemHostAlloc(&p, 4096, 0));
    OK(cuMemFreeHost(p));
    static_cast<volatile char *>(p)[0] = 1;
}
static void hostPastPinnedALittle() {
    Fixture f;
    void *p;
    OK(cuMemHostAlloc(&p, 100, 0));
    static_cast<volatile char *>(p)[100] = 1;
    OK(cuMemFreeHost(p));
    f.close();
}
static void overrunByOne() { wrong(emu::kIllegalAddress, "w_write", 1, 0, block(1000), 1000LL); }
static void overrunByPage() { wrong(emu::kIllegalAddress, "w_write", 1, 0, block(1024), 1024LL + 100); }
static void overrunRead() { wrong(emu::kIllegalAddress, "w_read", 1, 0, block(1024), 1024LL, block(16)); }
static void underrun() { wrong(emu::kIllegalAddress, "w_write", 1, 0, block(1000), -1LL); }
static void underrunFar() { wrong(emu::kIllegalAddress, "w_write", 1, 0, block(1000), -6000LL); }
static void wild() { wrong(emu::kIllegalAddress, "w_write", 1, 0, block(1000), 1LL << 44); }
static void wilder() { wrong(emu::kIllegalAddress, "w_write", 1, 0, block(1000), 1LL << 45); }
static void afterFree() {
    const DevicePtr p = block(1000);
    OK(cuMemFree_v2(p));
    wrong(emu::kIllegalAddress, "w_write", 1, 0, p, 8LL);
}
static void afterFreeThroughTable() {
    const DevicePtr p = block(1000), table = block(8);
    OK(cuMemcpyHtoD_v2(table, &p, 8));
    OK(cuMemFree_v2(p));
    wrong(emu::kIllegalAddress, "w_through", 1, 0, table);
}
static void copyAfterFree() {
    const DevicePtr p = block(16);
    OK(cuMemFree_v2(p));
    int v = 0;
    WANT(cuMemcpyHtoD_v2(p, &v, 4), emu::kInvalidValue);
}
static void copyPast() {
    const DevicePtr p = block(16);
    char v[32] = {};
    WANT(cuMemcpyHtoD_v2(p, v, 17), emu::kInvalidValue);
}
static void freeTwice() {
    const DevicePtr p = block(16);
    OK(cuMemFree_v2(p));
    WANT(cuMemFree_v2(p), emu::kInvalidValue);
}
static void leak() {
    Fixture f;
    Array<int> p(100);
    f.close();
}
static void leakStream() {
    Fixture f;
    void *s;
    OK(cuStreamCreate(&s, 0));
    f.close();
}
static void leakAtExit() {
    Fixture f;
    Array<int> p(100);
}
static void leakAndQuit() {
    Fixture f;
    Array<int> p(100);
    _exit(0);
}
static void barrierIf() { wrong(emu::kLaunchFailed, "w_barrier_if", 64, 0, block(4096)); }
static void barrierLoop() { wrong(emu::kLaunchFailed, "w_barrier_loop", 64, 0, block(4096)); }
static void lanes() { wrong(emu::kLaunchFailed, "w_lanes", 64, 0, block(4096)); }
static void mixed() { wrong(emu::kLaunchFailed, "w_mixed", 32, 0, block(4096)); }
static void mask() { wrong(emu::kLaunchFailed, "w_mask", 32, 0, block(4096)); }
static void oddWarp() { wrong(emu::kLaunchFailed, "w_lanes", 40, 0, block(4096)); }
static void align() { wrong(emu::kMisalignedAddress, "w_align", 1, 0, block(4096), 1); }
static void index() { wrong(emu::kIllegalAddress, "w_index", 32, 0, block(4096), 32); }
static void dynamic() { wrong(emu::kIllegalAddress, "w_dynamic", 1, 64, block(4096), 16); }
static void divide() { wrong(emu::kLaunchFailed, "w_divide", 1, 0, block(16), 0); }
static void shift() { wrong(emu::kLaunchFailed, "w_shift", 1, 0, block(16), 32); }
static void stack() { wrong(emu::kLaunchFailed, "w_stack", 1, 0, block(16), 10000); }
static void hostArgument() {
    static int mine;
    wrong(emu::kIllegalAddress, "t_word", 1, 0, &mine, 1u);
}
// These two run under a short SLUICE_EMU_TIMEOUT.
static void endless() {
    Fixture f;
    Array<int> p(std::vector<int>{0});
    OK(f.launch("w_endless", 1, 1, 0, nullptr, p.p));
    WANT(cuCtxSynchronize(), emu::kLaunchTimeout);
}
static void neverComes() {
    Fixture f;
    Array<unsigned> p(std::vector<unsigned>{0});
    OK(cuStreamWaitValue32_v2(nullptr, p.p, 1, emu::kWaitGeq));
    WANT(cuCtxSynchronize(), emu::kLaunchTimeout);
}

void pretend();  // right.cc

#define CASE(f) {#f, f}
const Case kWrong[] = {
    CASE(hostRead), CASE(hostReadAfterLaunch), CASE(hostPastPinned), CASE(hostAfterFreeHost), CASE(hostPastPinnedALittle),
    CASE(overrunByOne), CASE(overrunByPage), CASE(overrunRead), CASE(underrun), CASE(underrunFar), CASE(wild), CASE(wilder),
    CASE(afterFree), CASE(afterFreeThroughTable), CASE(copyAfterFree), CASE(copyPast), CASE(freeTwice),
    CASE(leak), CASE(leakStream), CASE(leakAtExit), CASE(leakAndQuit),
    CASE(barrierIf), CASE(barrierLoop), CASE(lanes), CASE(mixed), CASE(mask), CASE(oddWarp),
    CASE(align), CASE(index), CASE(dynamic), CASE(divide), CASE(shift), CASE(stack), CASE(hostArgument),
    CASE(endless), CASE(neverComes), CASE(pretend),
    {nullptr, nullptr},
};

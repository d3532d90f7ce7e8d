// processor.h: one thread of the machine that runs blocks, one after the other, each block's threads as fibers.
#pragma once
#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <pthread.h>
#include <vector>

#include "device_emu.h"
#include "fiber.h"
#include "kernel.h"

namespace emu {

struct Dim {
    unsigned x, y, z;
    std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

// A launch as its blocks see it.
struct Grid {
    const Kernel *kernel;
    Dim grid, block;
    unsigned dynamicBytes;
    const std::uint64_t *cells;
};

enum class Trouble { kNone, kBarrier, kWarp, kAddress, kAlignment, kIndex, kArithmetic, kStack };

struct Failure {
    Trouble kind = Trouble::kNone;
    const void *address = nullptr;  // of kAddress
    char text[400] = "";
};

struct Lane : sluice_emu::Thread {
    Fiber *fiber = nullptr;  // null before its first instruction and after its last
    struct WarpState *warp = nullptr;
    bool done = false;
};

struct WarpState {
    unsigned ready = 0;    // lanes that can go on
    unsigned waiting = 0;  // lanes inside a warp function
    Lane *lanes = nullptr;
    // What each lane brought to the function and takes away.
    std::uint64_t value[32], result[32];
    unsigned mask[32];
    unsigned char source[32], op[32];
};

class Processor {
  public:
    Processor();
    // Takes the calling thread for blocks of this grid. False, with failure set, ends the grid.
    void begin(const Grid &g);
    bool run(Dim block);
    void end();

    void barrier();
    int barrierCount(int predicate);
    std::uint64_t warp(sluice_emu::WarpOp op, unsigned mask, std::uint64_t value, unsigned source);
    // Gives up the block from inside one of its threads. Safe in a handler of a synchronous signal.
    [[noreturn]] void fail(Trouble kind, const void *address, const char *format, ...) __attribute__((format(printf, 4, 5)));
    bool stackOverflow(const void *address) const;
    bool pastShared(const void *address) const { return address >= dynamicEnd && address < dynamicEnd + 4096; }

    // The processor that this thread of the machine has taken, else null. It runs device code while
    // sluice_emu::current is set.
    static Processor *running() { return active; }
    const Grid &grid() const { return *g; }
    Failure failure;
    bool reverse = false;  // threads and warps run from the last to the first: a missing barrier shows in one order

  private:
    static __thread Processor *active __attribute__((tls_model("initial-exec")));
    static void fiberMain();
    int pick(unsigned mask) const { return reverse ? 31 - __builtin_clz(mask) : __builtin_ctz(mask); }
    // Gives way to another lane of the warp, or to the scheduler when none is ready.
    void yieldLane(Lane &me) {
        WarpState &w = *me.warp;
        Registers &mine = me.fiber->context;
        if (!w.ready) {
            switchTo(mine, scheduler);
            return;
        }
        const int n = pick(w.ready);
        w.ready &= ~(1u << n);
        resume(w.lanes[n], mine);
    }
    void resume(Lane &next, Registers &from) {
        if (__builtin_expect(!next.fiber, 0)) next.fiber = takeFiber();
        sluice_emu::current = &next;
        switchTo(from, next.fiber->context);
    }
    Fiber *takeFiber();
    void stuck();
    void forgetFibers();
    void meet(WarpState &w, unsigned mask, unsigned self);

    const Grid *g = nullptr;
    pthread_t owner{};
    unsigned threads = 0, warps = 0, finished = 0, arrived = 0, predicates = 0, counted = 0;
    Dim at{};
    std::vector<Lane> lanes;
    WarpState warpStates[32];
    std::vector<Fiber *> fibers, idle;
    Registers scheduler;
    sigjmp_buf giveUp;
    unsigned char *dynamicEnd;  // an inaccessible page follows
};

// The largest dynamic shared memory of any device pretended to.
constexpr unsigned kMaxShared = 227 << 10;
// What memory holds that nothing has been written to: a NaN as float and as half, far out of range as an index.
constexpr unsigned char kPoison = 0xff;

}  // namespace emu

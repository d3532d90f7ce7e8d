// The scheduler of one block. A thread runs until it waits or returns, then hands the processor to the next thread of its
// warp that can go on; when a warp has none, the scheduler takes the next warp. A thread that never waits needs no stack
// of its own: it runs on the one its predecessor left.
#include "processor.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#include "shared.h"

namespace sluice_emu {
__thread Thread *current = nullptr;
}  // namespace sluice_emu

namespace emu {

__thread Processor *Processor::active = nullptr;

Processor::Processor() : lanes(1024) {
    constexpr std::size_t page = 4096, size = (kMaxShared + page - 1) / page * page;
    auto *p = static_cast<unsigned char *>(mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED || mprotect(p + size, page, PROT_NONE) != 0) {
        perror("emu: shared memory of a block");
        abort();
    }
    dynamicEnd = p + size;
}

void Processor::begin(const Grid &grid) {
    poisonStaticShared();
    active = this;
    if (owner != pthread_self()) forgetFibers();  // a compiler may keep thread addresses in a frame
    owner = pthread_self();
    g = &grid;
    threads = static_cast<unsigned>(grid.block.count());
    warps = (threads + 31) / 32;
    unsigned char *dynamic = dynamicEnd - (grid.dynamicBytes + 15) / 16 * 16;
    for (unsigned w = 0; w < warps; w++) warpStates[w].lanes = &lanes[w * 32];
    unsigned rank = 0;
    for (unsigned z = 0; z < grid.block.z; z++)
        for (unsigned y = 0; y < grid.block.y; y++)
            for (unsigned x = 0; x < grid.block.x; x++, rank++) {
                Lane &l = lanes[rank];
                l.index = {x, y, z};
                l.lane = rank % 32;
                l.rank = rank;
                l.warp = &warpStates[rank / 32];
                l.blockSize = {grid.block.x, grid.block.y, grid.block.z};
                l.gridSize = {grid.grid.x, grid.grid.y, grid.grid.z};
                l.dynamic = dynamic;
            }
}

void Processor::end() {
    active = nullptr;
    g = nullptr;
}

void Processor::forgetFibers() {
    idle = fibers;
    for (Fiber *f : idle) f->prepared = false;
}

Fiber *Processor::takeFiber() {
    if (idle.empty()) {
        fibers.push_back(new Fiber(static_cast<unsigned>(fibers.size())));
        idle.push_back(fibers.back());
    }
    Fiber *f = idle.back();
    idle.pop_back();
    if (!f->prepared) f->prepare(&Processor::fiberMain);
    return f;
}

// Runs device threads until the next one to go on has a stack of its own, or none of the warp is ready.
void Processor::fiberMain() {
    for (;;) {
        auto *me = static_cast<Lane *>(sluice_emu::current);
        Processor &p = *active;
        p.g->kernel->call(p.g->cells);
        Fiber *mine = me->fiber;
        me->fiber = nullptr;
        me->done = true;
        p.finished++;
        WarpState &w = *me->warp;
        if (w.ready) {
            const int n = p.pick(w.ready);
            w.ready &= ~(1u << n);
            Lane &next = w.lanes[n];
            if (!next.fiber) {
                next.fiber = mine;
                sluice_emu::current = &next;
                continue;
            }
            p.idle.push_back(mine);
            p.resume(next, mine->context);
        } else {
            p.idle.push_back(mine);
            switchTo(mine->context, p.scheduler);
        }
    }
}

bool Processor::run(Dim block) {
    at = block;
    finished = arrived = predicates = 0;
    for (unsigned r = 0; r < threads; r++) {
        lanes[r].block = {block.x, block.y, block.z};
        lanes[r].done = false;
    }
    for (unsigned w = 0; w < warps; w++) {
        const unsigned n = threads - w * 32;
        warpStates[w].ready = n >= 32 ? ~0u : (1u << n) - 1;
        warpStates[w].waiting = 0;
    }
    if (g->dynamicBytes) memset(dynamicEnd - (g->dynamicBytes + 15) / 16 * 16, kPoison, (g->dynamicBytes + 15) / 16 * 16);

    // The signal mask is not saved: the fault handler runs with SA_NODEFER.
    if (sigsetjmp(giveUp, 0) != 0) {
        for (unsigned r = 0; r < threads; r++) lanes[r].fiber = nullptr;
        forgetFibers();
        sluice_emu::current = nullptr;
        return false;
    }
    while (finished < threads) {
        bool any = false;
        for (unsigned i = 0; i < warps; i++) {
            const unsigned n = reverse ? warps - 1 - i : i;
            WarpState &w = warpStates[n];
            if (!w.ready) continue;
            any = true;
            const int l = pick(w.ready);
            w.ready &= ~(1u << l);
            resume(lanes[n * 32 + l], scheduler);
        }
        if (!any) stuck();
    }
    sluice_emu::current = nullptr;
    return true;
}

// Stricter than a device, which lets threads leave before a barrier that the others reach: nothing here needs that.
void Processor::barrier() {
    auto *me = static_cast<Lane *>(sluice_emu::current);
    if (++arrived < threads) {
        yieldLane(*me);
        return;
    }
    arrived = 0;
    counted = predicates;
    predicates = 0;
    for (unsigned w = 0; w < warps; w++) {
        const unsigned n = threads - w * 32;
        warpStates[w].ready = n >= 32 ? ~0u : (1u << n) - 1;
    }
    me->warp->ready &= ~(1u << me->lane);
}

int Processor::barrierCount(int predicate) {
    predicates += predicate != 0;
    barrier();
    return static_cast<int>(counted);
}

void Processor::stuck() {
    unsigned shown = 0;
    while (shown < threads && (arrived ? (lanes[shown].done || (warpStates[shown / 32].waiting >> shown % 32 & 1)) == 0
                                       : (warpStates[shown / 32].waiting >> shown % 32 & 1) == 0))
        shown++;
    const uint3 t = lanes[shown < threads ? shown : 0].index;
    if (arrived)
        fail(Trouble::kBarrier, nullptr, "block (%u,%u,%u): %u of %u threads wait at __syncthreads; thread (%u,%u,%u) %s", at.x, at.y, at.z,
             arrived, threads, t.x, t.y, t.z, lanes[shown].done ? "has returned" : "waits in a warp function");
    const WarpState &w = warpStates[shown / 32];
    fail(Trouble::kWarp, nullptr, "block (%u,%u,%u), warp %u: lanes %08x wait in a warp function with mask %08x; lanes %08x have returned", at.x,
         at.y, at.z, shown / 32, w.waiting, w.mask[shown % 32], w.mask[shown % 32] & ~w.waiting);
}

bool Processor::stackOverflow(const void *address) const {
    for (const Fiber *f : fibers)
        if (f->overflowed(address)) return true;
    return false;
}

void Processor::fail(Trouble kind, const void *address, const char *format, ...) {
    failure.kind = kind;
    failure.address = address;
    va_list args;
    va_start(args, format);
    vsnprintf(failure.text, sizeof failure.text, format, args);
    va_end(args);
    siglongjmp(giveUp, 1);
}

}  // namespace emu

// The functions that lanes of a warp call together. The last lane to arrive does the work for all of them and goes on;
// results lie in the lanes' own places, so that a lane may enter the next function before the others have read theirs.
#include "processor.h"

namespace emu {

inline std::uint64_t Processor::warp(sluice_emu::WarpOp op, unsigned mask, std::uint64_t value, unsigned source) {
    auto *me = static_cast<Lane *>(sluice_emu::current);
    WarpState &w = *me->warp;
    const unsigned lane = me->lane;
    if (__builtin_expect(threads % 32 != 0, 0))
        fail(Trouble::kWarp, nullptr, "warp function in a block of %u threads: want a multiple of 32", threads);
    if (__builtin_expect(!(mask >> lane & 1), 0))
        fail(Trouble::kWarp, nullptr, "lane %u calls a warp function with mask %08x, which leaves it out", lane, mask);
    w.op[lane] = op;
    w.mask[lane] = mask;
    w.value[lane] = value;
    w.source[lane] = static_cast<unsigned char>(source);
    w.waiting |= 1u << lane;
    if ((w.waiting & mask) == mask)
        meet(w, mask, lane);
    else
        yieldLane(*me);
    return w.result[lane];
}

void Processor::meet(WarpState &w, unsigned mask, unsigned self) {
    const unsigned char op = w.op[self];
    for (unsigned m = mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        if (w.op[l] != op || w.mask[l] != mask)
            fail(Trouble::kWarp, nullptr, "lanes %u and %d of one warp meet in different warp functions or with masks %08x and %08x", self, l, mask,
                 w.mask[l]);
    }
    if (op == sluice_emu::kBallot) {
        std::uint64_t ballot = 0;
        for (unsigned m = mask; m; m &= m - 1) ballot |= w.value[__builtin_ctz(m)] ? m & -m : 0;
        for (unsigned m = mask; m; m &= m - 1) w.result[__builtin_ctz(m)] = ballot;
    } else if (op == sluice_emu::kShuffle) {
        for (unsigned m = mask; m; m &= m - 1) {
            const int l = __builtin_ctz(m);
            const unsigned s = w.source[l];
            if (!(mask >> s & 1)) fail(Trouble::kWarp, nullptr, "lane %d reads lane %u, which is not in the mask %08x", l, s, mask);
            w.result[l] = w.value[s];
        }
    }
    w.waiting &= ~mask;
    w.ready |= mask & ~(1u << self);
}

}  // namespace emu

namespace sluice_emu {

void barrier() { emu::Processor::running()->barrier(); }
int barrierCount(int predicate) { return emu::Processor::running()->barrierCount(predicate); }
uint64_t warp(WarpOp op, unsigned mask, uint64_t value, unsigned source) {
    return emu::Processor::running()->warp(op, mask, value, source);
}

}  // namespace sluice_emu

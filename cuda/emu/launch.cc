#include "launch.h"

#include <condition_variable>
#include <thread>

#include "config.h"
#include "fault.h"
#include "memory.h"
#include "report.h"

namespace emu {

// At most two threads of the machine run blocks, whatever the number of streams: one helper, shared, and processors that
// streams borrow.
static auto &poolLock = *new std::mutex;
static auto &poolChanged = *new std::condition_variable;
static auto &idleProcessors = *new std::vector<Processor *>{new Processor, new Processor};

// Seconds before a launch asks for help: waking the helper costs a good part of that.
constexpr double kPatience = 100e-6;

// Blocks of a launch are dealt by one counter.
struct Deal {
    const Grid *grid;
    std::uint64_t total;
    std::atomic<std::uint64_t> next{0};
    std::mutex mu;
    Failure failure;  // of the first that failed

    // Takes blocks until there are none. Calls more once, when it has run for a while and there is work for two.
    template <typename More>
    void work(Processor &p, More more) {
        p.reverse = config().order != 0;
        p.begin(*grid);
        const double since = now();
        for (bool asked = total < 2; ;) {
            if (!asked && next + 1 < total && now() - since > kPatience) {
                asked = true;
                more();
            }
            std::uint64_t i = next.fetch_add(1);
            if (i >= total) break;
            if (p.reverse) i = total - 1 - i;
            const Dim d = grid->grid;
            if (p.run({static_cast<unsigned>(i % d.x), static_cast<unsigned>(i / d.x % d.y), static_cast<unsigned>(i / d.x / d.y)})) continue;
            next = total;
            std::lock_guard<std::mutex> held(mu);
            if (failure.kind == Trouble::kNone) failure = p.failure;
            break;
        }
        p.end();
    }
};

// The helper takes part in one deal at a time.
class Helper {
  public:
    bool offer(Deal *d, Processor *p) {
        std::lock_guard<std::mutex> held(mu);
        if (deal) return false;
        if (!started) {
            started = true;
            std::thread([this] { loop(); }).detach();
        }
        deal = d;
        processor = p;
        changed.notify_all();
        return true;
    }
    void wait() {
        std::unique_lock<std::mutex> held(mu);
        changed.wait(held, [&] { return !deal; });
    }

  private:
    void loop() {
        useSignalStack();
        std::unique_lock<std::mutex> held(mu);
        for (;;) {
            changed.wait(held, [&] { return deal; });
            held.unlock();
            deal->work(*processor, [] {});
            held.lock();
            deal = nullptr;
            changed.notify_all();
        }
    }
    std::mutex mu;
    std::condition_variable changed;
    bool started = false;
    Deal *deal = nullptr;
    Processor *processor = nullptr;
};
static auto &helper = *new Helper;

static Processor *borrow(bool wait) {
    std::unique_lock<std::mutex> held(poolLock);
    if (idleProcessors.empty() && !wait) return nullptr;
    poolChanged.wait(held, [] { return !idleProcessors.empty(); });
    Processor *p = idleProcessors.back();
    idleProcessors.pop_back();
    return p;
}

static void giveBack(Processor *p) {
    std::lock_guard<std::mutex> held(poolLock);
    idleProcessors.push_back(p);
    poolChanged.notify_one();
}

static Result tell(const Launch &l, const Failure &f) {
    Memory &m = Memory::get();
    const auto address = reinterpret_cast<std::uint64_t>(f.address);
    switch (f.kind) {
    case Trouble::kNone:
        return kSuccess;
    case Trouble::kAddress: {
        const Allocation *a = m.inWindow(address) ? m.around(address) : nullptr;
        complain(a && a->freed ? kUseAfterFree : kOutOfBounds, "kernel %s: %s reaches %s%s%s", l.kernel->name, f.text, m.describe(address).c_str(),
                 a && a->freed ? ", freed after " : "", a && a->freed ? a->freedAfter.c_str() : "");
        return kIllegalAddress;
    }
    case Trouble::kIndex:
        complain(kOutOfBounds, "kernel %s: %s", l.kernel->name, f.text);
        return kIllegalAddress;
    case Trouble::kAlignment:
        complain(kKernelErrors, "kernel %s: %s", l.kernel->name, f.text);
        return kMisalignedAddress;
    default:
        complain(kKernelErrors, "kernel %s: %s", l.kernel->name, f.text);
        return kLaunchFailed;
    }
}

Result run(Stream &s, const Launch &l) {
    s.doing = l.kernel->name;
    Memory &m = Memory::get();
    for (unsigned i = 0; i < l.kernel->params; i++) {
        // A host address would be followed without a fault here, and with one on a device.
        if (l.kernel->kinds[i] != Param::kPointer || l.cells[i] == 0 || m.inWindow(l.cells[i])) continue;
        complain(kKernelErrors, "kernel %s: argument %u is %#llx, which is no device address", l.kernel->name, i, (unsigned long long)l.cells[i]);
        return kIllegalAddress;
    }
    const Grid g{l.kernel, l.grid, l.block, l.dynamicBytes, l.cells.data()};
    Deal deal{&g, l.grid.count(), {}, {}, {}};
    Processor *mine = borrow(true), *second = nullptr;
    bool helped = false;
    deal.work(*mine, [&] {
        second = borrow(false);
        helped = second && helper.offer(&deal, second);
    });
    if (helped) helper.wait();
    giveBack(mine);
    if (second) giveBack(second);
    count(kLaunches);

    Result r = tell(l, deal.failure);
    for (const std::string &d : m.damaged(false)) {
        complain(kOutOfBounds, "kernel %s wrote outside an allocation: %s", l.kernel->name, d.c_str());
        if (r == kSuccess) r = kIllegalAddress;
    }
    std::lock_guard<std::mutex> held(lock);
    s.context->lastKernel = l.kernel->name;
    return r;
}

}  // namespace emu

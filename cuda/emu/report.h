// report.h: what the emulator counts and what it complains of. Complaints go to stderr when they happen and fail the
// process at its end: a C program by its exit status, any other through the file that SLUICE_EMU_STATE names, which
// run.sh reads after the program (a Go program ends without running the library's exit code).
#pragma once
#include <atomic>
#include <cstdint>

namespace emu {

// The order is the interface of sluice_emu_counters and of the state file: append only.
enum Counter : unsigned {
    kLaunches,       // kernels run, those of graphs included
    kGraphLaunches,
    kCopiesIn, kBytesIn,          // host to device
    kCopiesOut, kBytesOut,        // device to host
    kCopiesWithin, kBytesWithin,  // device to device
    kSets, kBytesSet,
    kSyncs,          // host waits: context, stream and event synchronize
    kSyncCopies,     // copies that the host waited for, counted above too
    kPageable,       // asynchronous copies of host memory that is not pinned
    kLiveAllocations, kLiveBytes, kLivePinned, kLivePinnedBytes,
    kLiveObjects,    // streams, events, graphs
    kOutOfBounds,    // complaints from here on
    kUseAfterFree,
    kLeaks,
    kKernelErrors,   // barriers, warp functions, alignment, arguments
    kHostAccess,     // host dereferences of device memory
    kTimeouts,
    kDenied,         // calls refused or failed on request: not complaints
    kCounters
};

extern std::atomic<std::uint64_t> *counters;  // kCounters of them

inline void count(Counter c, std::uint64_t n = 1) { counters[c].fetch_add(n, std::memory_order_relaxed); }

// Prints "emu: ..." and counts. Safe on any thread, not in a signal handler.
void complain(Counter c, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Prints only under SLUICE_EMU_VERBOSE.
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Complaints so far.
std::uint64_t complaints();
// Checks all red zones; complains of what has not been told yet.
void sweep(const char *after);

}  // namespace emu

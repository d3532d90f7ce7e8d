#include "report.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.h"
#include "config.h"
#include "memory.h"

namespace emu {

static std::atomic<std::uint64_t> inProcess[kCounters];
std::atomic<std::uint64_t> *counters = inProcess;

// The state file is the counters themselves, a page a process: whatever ends the process, they are there.
static const bool mapped = [] {
    const std::string &path = config().state;
    if (path.empty()) return false;
    constexpr off_t page = 4096;
    static_assert(sizeof inProcess <= page, "a record is a page");
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *p = MAP_FAILED;
    if (fd >= 0 && flock(fd, LOCK_EX) == 0) {
        const off_t at = lseek(fd, 0, SEEK_END);
        if (at >= 0 && ftruncate(fd, at + page) == 0) p = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    }
    if (p == MAP_FAILED) {
        perror(("emu: SLUICE_EMU_STATE=" + path).c_str());
        exit(2);
    }
    flock(fd, LOCK_UN);  // the mapping keeps the file open, and with it the lock
    close(fd);
    counters = static_cast<std::atomic<std::uint64_t> *>(p);
    return true;
}();

static void print(const char *format, va_list args) {
    char text[1200];
    int n = snprintf(text, sizeof text, "emu: ");
    n += vsnprintf(text + n, sizeof text - n - 1, format, args);
    if (n > static_cast<int>(sizeof text) - 2) n = sizeof text - 2;
    text[n++] = '\n';
    // One write, so that lines of several threads do not mix.
    if (write(2, text, n) < 0) return;
}

void complain(Counter c, const char *format, ...) {
    count(c);
    va_list args;
    va_start(args, format);
    print(format, args);
    va_end(args);
}

void note(const char *format, ...) {
    if (!config().verbose) return;
    va_list args;
    va_start(args, format);
    print(format, args);
    va_end(args);
}

std::uint64_t complaints() {
    std::uint64_t n = 0;
    for (unsigned c = kOutOfBounds; c <= kTimeouts; c++) n += counters[c];
    return n;
}

void sweep(const char *after) {
    for (const std::string &d : Memory::get().damaged(true)) complain(kOutOfBounds, "write outside an allocation: %s (found %s)", d.c_str(), after);
}

// In the order of Counter.
static const char *const kNames[] = {
    "launches", "graph launches", "copies in", "bytes in", "copies out", "bytes out", "copies within", "bytes within", "sets", "bytes set",
    "synchronisations", "waited copies", "pageable copies", "live allocations", "live bytes", "live pinned", "live pinned bytes", "live objects",
    "out of bounds", "use after free", "leaks", "kernel errors", "host accesses", "timeouts", "refused calls",
};
static_assert(sizeof kNames / sizeof *kNames == kCounters, "a name for each counter");

static std::uint64_t report(int fd) {
    sweep("at the end");
    for (unsigned first : {unsigned{kLaunches}, unsigned{kLiveAllocations}, unsigned{kOutOfBounds}}) {
        const unsigned end = first == kLaunches ? kLiveAllocations : first == kLiveAllocations ? kOutOfBounds : kCounters;
        std::string line = "emu:";
        for (unsigned c = first; c < end; c++)
            line += std::string(c == first ? " " : ", ") + kNames[c] + " " + std::to_string(counters[c].load());
        dprintf(fd, "%s\n", line.c_str());
    }
    return complaints();
}

__attribute__((destructor)) static void atExit() {
    const unsigned long long live = counters[kLiveAllocations], pinned = counters[kLivePinned], objects = counters[kLiveObjects];
    if (live + pinned + objects)
        complain(kLeaks, "the process ends with %llu allocations, %llu pinned and %llu objects not freed", live, pinned, objects);
    if (config().verbose || complaints()) report(2);
    if (!complaints()) return;
    fflush(nullptr);  // what the program printed is not lost
    _exit(86);
}

}  // namespace emu

// Writes the counters, in the order of emu::Counter, up to n of them; returns how many there are.
EMU_API int sluice_emu_counters(std::uint64_t *out, int n) {
    for (int i = 0; i < n && i < static_cast<int>(emu::kCounters); i++) out[i] = emu::counters[i];
    return emu::kCounters;
}

// Prints three lines to a file descriptor, checks all red zones, and returns the number of complaints so far.
EMU_API int sluice_emu_report(int fd) { return static_cast<int>(emu::report(fd)); }

// Replaces the failures to inject; zero when the text is understood. An empty text ends them.
EMU_API int sluice_emu_fail(const char *spec) { return emu::setFailures(spec) ? 0 : 1; }

// Forgets the complaints so far, for a test that caused them on purpose.
EMU_API void sluice_emu_forgive(void) {
    for (unsigned c = emu::kOutOfBounds; c <= emu::kTimeouts; c++) emu::counters[c] = 0;
}

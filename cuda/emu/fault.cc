// Faults. In a kernel they end the launch with an error that names it; anywhere else the address is explained, if it is
// the device's, and the program's own handler goes on (Go turns it into a panic).
#include "fault.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"
#include "processor.h"
#include "report.h"

namespace emu {

static struct sigaction before[65];

static const char *position(char *text, std::size_t size) {
    const sluice_emu::Thread *t = sluice_emu::current;
    snprintf(text, size, "block (%u,%u,%u), thread (%u,%u,%u)", t->block.x, t->block.y, t->block.z, t->index.x, t->index.y, t->index.z);
    return text;
}

static void pass(int signal, siginfo_t *info, void *context) {
    const struct sigaction &old = before[signal];
    if (old.sa_flags & SA_SIGINFO) {
        old.sa_sigaction(signal, info, context);
    } else if (old.sa_handler == SIG_DFL) {
        sigaction(signal, &old, nullptr);  // returns to the same instruction, and to the default
    } else if (old.sa_handler != SIG_IGN) {
        old.sa_handler(signal);
    }
}

static void onFault(int signal, siginfo_t *info, void *context) {
    Processor *p = Processor::running();
    char where[120];
    const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
    if (p && sluice_emu::current) {
        if (signal == SIGFPE) p->fail(Trouble::kArithmetic, nullptr, "%s divides an integer by zero", position(where, sizeof where));
        if (p->stackOverflow(info->si_addr)) p->fail(Trouble::kStack, nullptr, "%s overflows its stack", position(where, sizeof where));
        if (p->pastShared(info->si_addr))
            p->fail(Trouble::kIndex, nullptr, "%s reaches past the dynamic shared memory of its block", position(where, sizeof where));
        // The machine does not tell an address that it cannot even form.
        if (signal == SIGSEGV && info->si_code == SI_KERNEL)
            p->fail(Trouble::kIndex, nullptr, "%s reaches an address that no memory has", position(where, sizeof where));
        p->fail(Trouble::kAddress, info->si_addr, "%s", position(where, sizeof where));
    }
    if (signal != SIGFPE && Memory::get().inWindow(address)) {
        count(kHostAccess);
        char text[160];
        const int n = snprintf(text, sizeof text, "emu: the host follows device address %#llx\n", (unsigned long long)address);
        if (write(2, text, static_cast<std::size_t>(n)) < 0) return;
    }
    pass(signal, info, context);
}

void installFaultHandler() {
    static const bool once = [] {
        struct sigaction a;
        memset(&a, 0, sizeof a);
        a.sa_sigaction = onFault;
        // Go wants SA_ONSTACK of every handler; SA_NODEFER lets a launch be left by a jump.
        a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
        for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &a, &before[signal]);
        return true;
    }();
    (void)once;
}

void useSignalStack() {
    // What is sent to the process belongs to threads of the program.
    sigset_t others;
    sigfillset(&others);
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&others, signal);
    pthread_sigmask(SIG_SETMASK, &others, nullptr);
    constexpr std::size_t size = 64 << 10;
    void *p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t s{};
    s.ss_sp = p;
    s.ss_size = size;
    if (p != MAP_FAILED) sigaltstack(&s, nullptr);
}

}  // namespace emu

// What the instrumented kernels call (-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero without its
// library). Each description begins with the place in the source.
struct Place {
    const char *file;
    unsigned line, column;
};

static const char *base(const char *path) {
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

static void stop(const Place *at, emu::Trouble kind, const char *what, unsigned long value) {
    emu::Processor *p = emu::Processor::running();
    char where[120];
    if (!p) {
        fprintf(stderr, "emu: %s:%u: %s (%#lx)\n", at->file, at->line, what, value);
        abort();
    }
    p->fail(kind, nullptr, "%s: %s:%u:%u: %s (%#lx)", emu::position(where, sizeof where), base(at->file), at->line, at->column, what, value);
}

extern "C" {
__attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(void *data, void *pointer) {
    stop(static_cast<Place *>(data), emu::Trouble::kAlignment, "misaligned address", reinterpret_cast<unsigned long>(pointer));
}
__attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds_abort(void *data, void *index) {
    stop(static_cast<Place *>(data), emu::Trouble::kIndex, "index past the end of an array", reinterpret_cast<unsigned long>(index));
}
__attribute__((visibility("hidden"))) void __ubsan_handle_shift_out_of_bounds_abort(void *data, void *, void *bits) {
    stop(static_cast<Place *>(data), emu::Trouble::kArithmetic, "shift by more bits than there are", reinterpret_cast<unsigned long>(bits));
}
__attribute__((visibility("hidden"))) void __ubsan_handle_divrem_overflow_abort(void *data, void *left, void *) {
    stop(static_cast<Place *>(data), emu::Trouble::kArithmetic, "integer division by zero or overflow", reinterpret_cast<unsigned long>(left));
}
}

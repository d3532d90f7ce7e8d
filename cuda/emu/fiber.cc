#include "fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

namespace emu {

Fiber::Fiber(unsigned colour) {
    void *p = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED || mprotect(p, kGuard, PROT_NONE) != 0) {
        perror("emu: stack of a device thread");
        abort();
    }
    low = static_cast<char *>(p);
    top = low + kGuard + kStack - colour % 32 * 320;
}

#ifdef EMU_SWITCH

// The registers that the System V calling convention makes the callee's to keep, and the floating point control words
// are left out: no kernel changes them.
asm(R"(
.text
.p2align 4
.hidden sluice_emu_switch
.type sluice_emu_switch, @function
sluice_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size sluice_emu_switch, .-sluice_emu_switch
)");
extern "C" __attribute__((visibility("hidden"))) void sluice_emu_switch(void **from, void **to);

void switchTo(Registers &from, Registers &to) { sluice_emu_switch(&from.sp, &to.sp); }

void Fiber::prepare(void (*entry)()) {
    // As entry would find it after a call: aligned to 16 with a return address below, here zero, where unwinders stop.
    auto **sp = reinterpret_cast<void **>(reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{15});
    *--sp = nullptr;
    *--sp = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    context.sp = sp;
    prepared = true;
}

#else

void switchTo(Registers &from, Registers &to) { swapcontext(&from.uc, &to.uc); }

void Fiber::prepare(void (*entry)()) {
    getcontext(&context.uc);
    context.uc.uc_stack.ss_sp = low + kGuard;
    context.uc.uc_stack.ss_size = static_cast<std::size_t>(top - low) - kGuard;
    context.uc.uc_link = nullptr;
    makecontext(&context.uc, entry, 0);
    prepared = true;
}

#endif

}  // namespace emu

// fiber.h: stacks that give way to one another within one thread of the machine. A device thread runs on one, so that it
// can stop in the middle of a kernel until the others of its block or warp have come as far.
#pragma once
#include <cstddef>

// EMU_UCONTEXT asks for the portable way, so that its test needs no other machine.
#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace emu {

struct Registers {
#ifdef EMU_SWITCH
    void *sp = nullptr;  // everything else a call preserves lies on the stack
#else
    ucontext_t uc;
#endif
};

// Leaves the running code in from and goes on with to.
void switchTo(Registers &from, Registers &to);

// A stack with an inaccessible page below it.
class Fiber {
  public:
    // colour staggers the top: stacks that start at the same place of a page share the same few sets of the first cache.
    explicit Fiber(unsigned colour);
    // The next switch to the context calls entry, which never returns.
    void prepare(void (*entry)());
    bool overflowed(const void *address) const { return address >= low && address < (const char *)low + kGuard; }

    Registers context;
    bool prepared = false;
    static constexpr std::size_t kGuard = 4096, kStack = 128 << 10;

  private:
    char *low;
    char *top;
};

}  // namespace emu

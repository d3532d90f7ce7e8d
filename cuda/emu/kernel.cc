#include "kernel.h"

namespace emu {

// Filled by constructors before any call; constant afterwards. Zero before the first constructor runs.
static Kernel *head;

void registerKernel(Kernel *k) {
    k->next = head;
    head = k;
}

Kernel *firstKernel() { return head; }

Kernel *findKernel(const char *name) {
    for (Kernel *k = head; k; k = k->next)
        if (std::strcmp(k->name, name) == 0) return k;
    return nullptr;
}

}  // namespace emu

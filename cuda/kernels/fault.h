// The fault word: which step first put a row of the residual stream wrong, kept on the device so that nothing has to
// return to the host while all is well. fault.go reads it.
//
// The word is 0 while all is well, else the complement of (order << 32 | row), order = 8*layer + where. atomicMax of the
// complement keeps the earliest step and, within it, the lowest row, whatever order blocks run in.
#ifndef SLUICE_FAULT_H
#define SLUICE_FAULT_H

#include "device.h"

// fault may be null: nothing is kept.
static __device__ __forceinline__ void fault_raise(unsigned long long *fault, unsigned order, int row) {
    if (fault) atomicMax(fault, ~((unsigned long long)order << 32 | (unsigned)row));
}

#endif

// Slots: the table of pointers to the experts that are on the device, seen from the stream that computes.
//
// CPU reference: none; the host's part is cuda/slots.go.
//
// A layer's row of the table has three addresses an expert (gate, up, down), 0 where the expert is not there. Addresses
// travel as arguments, so that publishing needs no host memory that would have to stay as it is until a copy is done.
#include "device.h"

// One warp, of which one lane writes.
extern "C" __global__ void slots_publish(unsigned long long *entry, long long gate, long long up, long long down) {
    if (threadIdx.x != 0) return;
    entry[0] = (unsigned long long)gate;
    entry[1] = (unsigned long long)up;
    entry[2] = (unsigned long long)down;
}

// Raises flag to seq if every expert with entries is there: the stream's wait for that value is then over before it
// begins. Otherwise the host raises it, once it has brought what is missing. It never goes back: a host that gives up has
// raised it past this call. Numbers are compared in the cyclic sense, as the wait does. One warp.
extern "C" __global__ void slots_release(unsigned *flag, const int *offsets, const unsigned long long *ptrs, int n, unsigned seq) {
    const int lane = threadIdx.x;
    bool missing = false;
    for (int e = lane; e < n; e += 32) missing = missing || (offsets[e + 1] > offsets[e] && ptrs[3 * e] == 0);
    if (__any_sync(FULL_MASK, missing) || lane != 0) return;
    for (unsigned was = *(volatile unsigned *)flag; (int)(was - seq) < 0;) {
        const unsigned found = atomicCAS(flag, was, seq);
        if (found == was) break;
        was = found;
    }
}

// Adds the bytes of the experts with entries to total. One warp; calls of one stream follow one another.
extern "C" __global__ void slots_tally(long long *total, const int *offsets, int n, long long bytes) {
    const int lane = threadIdx.x;
    int count = 0;
    for (int e = lane; e < n; e += 32) count += offsets[e + 1] > offsets[e];
    count = warp_sum(count);
    if (lane == 0) *total += count * bytes;
}

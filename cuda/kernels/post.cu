// Post: which experts a layer call needs, written to host memory that the device has mapped.
//
// CPU reference: the experts with entries in moe.Table, ids ascending.
//
// The host waits for the sequence number in the message's first word, so it is written after everything else has reached
// the host. What the stream does next has to wait for the host's answer; that is a stream wait, not this kernel's.
#include "device.h"

// message, in words: sequence number, number of ids, the error word's two halves, ids. One warp.
extern "C" __global__ void post_needed(volatile unsigned *message, const int *offsets, const unsigned *err, int n, unsigned seq) {
    const int lane = threadIdx.x;
    int count = 0;
    for (int e0 = 0; e0 < n; e0 += 32) {
        const int e = e0 + lane;
        const bool needed = e < n && offsets[e + 1] > offsets[e];
        const unsigned all = __ballot_sync(0xffffffffu, needed);
        if (needed) message[4 + count + __popc(all & ((1u << lane) - 1))] = e;
        count += __popc(all);
    }
    if (lane == 0) {
        message[1] = count;
        message[2] = err[0];
        message[3] = err[1];
    }
    __threadfence_system();
    __syncwarp();
    if (lane == 0) message[0] = seq;
}

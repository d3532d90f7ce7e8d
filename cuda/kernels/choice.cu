// Choice: takes back a choice of ArgMax whose logit is no finite number.
//
// CPU reference: engine's greatest: ArgMax, and an error where the greatest logit is infinite.
#include "device.h"

// One warp, of which one lane works. step: argmax.go; ids may be null.
extern "C" __global__ void choice_check(const float *logits, int *step, int *ids) {
    if (threadIdx.x != 0 || step[2] < 0) return;
    if ((__float_as_uint(logits[step[2]]) & 0x7fffffffu) < 0x7f800000u) return;
    step[2] = -1;
    if (ids) ids[0] = -1;
}

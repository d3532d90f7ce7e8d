//go:build cuda

#include "first.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

static const char *advice(CUresult r) {
	switch (r) {
	case CUDA_ERROR_NO_DEVICE:
		return "the driver finds no device (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them; a container must be given them)";
	case CUDA_ERROR_STUB_LIBRARY:
		return "libcuda.so.1 is a toolkit's stub, not a driver: take its directory out of LD_LIBRARY_PATH";
	case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return "libcuda.so.1 and the kernel module are of different drivers: after an update, reboot";
	case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
		return "libcuda.so.1 is of a compatibility package that does not support this device: take its directory out of LD_LIBRARY_PATH";
	case CUDA_ERROR_SYSTEM_NOT_READY:
		return "the driver is not ready: machines with NVSwitch need the fabric manager running";
	case CUDA_ERROR_OPERATING_SYSTEM:
	case CUDA_ERROR_UNKNOWN:
		return "the driver cannot reach its device: is the kernel module loaded, and may this user open /dev/nvidia*?";
	default:
		return "the driver does not initialise";
	}
}

void sluice_first(void) {
	const char *name = NULL;
	CUresult r = cuInit(0);
	if (r == CUDA_SUCCESS)
		return;
	if (cuGetErrorName(r, &name) != CUDA_SUCCESS || !name)
		name = "unknown result";
	fprintf(stderr, "engine: cuda: %s (cuInit: %s, %d); or use --device cpu\n", advice(r), name, (int)r);
	exit(1);
}

// This cuda.h stands in front of the toolkit's (cuda/env.sh puts its directory first into CGO_CFLAGS) and gives
// gorgonia.org/cu, written for CUDA 11, the shapes it knows when the toolkit's is that of CUDA 13. It adds nothing to
// older ones. An -include would do the same to every C and assembly file of the build, those of the Go runtime too.
//
// CUDA 13 changed five functions that the package calls: creating a context takes parameters, advice and prefetch take
// a location in place of a device, and edges of a graph carry data. Their new forms can do what the old ones did.
#ifndef SLUICE_CUDA_H
#define SLUICE_CUDA_H

#include_next <cuda.h>

#if CUDA_VERSION >= 13000

static inline CUresult sluice_cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev) {
	return cuCtxCreate(ctx, NULL, flags, dev);
}
#undef cuCtxCreate
#define cuCtxCreate sluice_cuCtxCreate

// The old calls meant the host by CU_DEVICE_CPU.
static inline CUmemLocation sluice_location(CUdevice dev) {
	CUmemLocation l = {0};
	l.type = dev == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
	l.id = dev == CU_DEVICE_CPU ? 0 : dev;
	return l;
}

static inline CUresult sluice_cuMemAdvise(CUdeviceptr ptr, size_t count, CUmem_advise advice, CUdevice dev) {
	return cuMemAdvise(ptr, count, advice, sluice_location(dev));
}
#undef cuMemAdvise
#define cuMemAdvise sluice_cuMemAdvise

static inline CUresult sluice_cuMemPrefetchAsync(CUdeviceptr ptr, size_t count, CUdevice dev, CUstream stream) {
	return cuMemPrefetchAsync(ptr, count, sluice_location(dev), 0, stream);
}
#undef cuMemPrefetchAsync
#define cuMemPrefetchAsync sluice_cuMemPrefetchAsync

static inline CUresult sluice_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n) {
	return cuGraphAddDependencies(graph, from, to, NULL, n);
}
#undef cuGraphAddDependencies
#define cuGraphAddDependencies sluice_cuGraphAddDependencies

static inline CUresult sluice_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n) {
	return cuGraphGetEdges(graph, from, to, NULL, n);
}
#undef cuGraphGetEdges
#define cuGraphGetEdges sluice_cuGraphGetEdges

#endif
#endif

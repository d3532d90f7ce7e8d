// A cuda.h with the shapes of CUDA 13, on top of the installed header: our own declarations of what changed, so that a
// machine with an older toolkit can compile against it.
#include_next <cuda.h>

#if CUDA_VERSION < 13000

#undef CUDA_VERSION
#define CUDA_VERSION 13000

typedef struct CUctxCreateParams_st {
	void *execAffinityParams;
	int numExecAffinityParams;
	void *cigParams;
} CUctxCreateParams;

typedef struct CUgraphEdgeData_st {
	unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

#if !defined(CU_DEVICE_CPU)
#define CU_DEVICE_CPU ((CUdevice)-1)
#endif
// The kinds of location grew by the host in 12.
#define CU_MEM_LOCATION_TYPE_HOST ((CUmemLocationType)2)

#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v4
CUresult cuCtxCreate(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev);

#define cuMemAdvise cuMemAdvise_v2
CUresult cuMemAdvise(CUdeviceptr ptr, size_t count, CUmem_advise advice, CUmemLocation location);

#define cuMemPrefetchAsync cuMemPrefetchAsync_v2
CUresult cuMemPrefetchAsync(CUdeviceptr ptr, size_t count, CUmemLocation location, unsigned int flags, CUstream stream);

#define cuGraphAddDependencies cuGraphAddDependencies_v2
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t n);

#define cuGraphGetEdges cuGraphGetEdges_v2
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *n);

// From 12 on the second version goes by the plain name.
#undef cuStreamWaitValue32
#define cuStreamWaitValue32 cuStreamWaitValue32_v2
#undef cuStreamWriteValue32
#define cuStreamWriteValue32 cuStreamWriteValue32_v2

#endif

// The functions of CUDA 13 that the installed libcuda may lack. They check what the old calls turn into.
#include <cuda.h>

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev) {
	*pctx = (CUcontext)8;
	return params == NULL && flags == 4 && dev == 5 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int located(CUmemLocation l, int host, int id) {
	return l.type == (host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE) && l.id == id;
}

CUresult cuMemAdvise_v2(CUdeviceptr ptr, size_t count, CUmem_advise advice, CUmemLocation l) {
	return ptr == 64 && count == 7 && advice == CU_MEM_ADVISE_SET_READ_MOSTLY && located(l, 1, 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t count, CUmemLocation l, unsigned int flags, CUstream stream) {
	return ptr == 64 && count == 7 && located(l, 0, 3) && flags == 0 && stream == NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t n) {
	return data == NULL && from && to && n == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *n) {
	*n = 3;
	return data == NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

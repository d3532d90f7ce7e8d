//go:build cuda

#include "launch.h"

#include <cuda.h>

int sluice_run(const sluice_launch *l, int64_t from, int64_t to, void *stream, int64_t *failed) {
	for (int64_t i = from; i < to; i++) {
		const sluice_launch *k = &l[i];
		if (k->grid[0] == 0)
			continue;
		CUresult r = cuLaunchKernel((CUfunction)k->func, k->grid[0], k->grid[1], k->grid[2], k->block[0], k->block[1],
			k->block[2], k->shared, (CUstream)stream, k->args, NULL);
		if (r != CUDA_SUCCESS) {
			*failed = i;
			return (int)r;
		}
	}
	return 0;
}

int sluice_function(void *module, const char *name, uint32_t shared, void **func) {
	CUfunction f = NULL;
	CUresult r = cuModuleGetFunction(&f, (CUmodule)module, name);
	if (r == CUDA_SUCCESS && shared > 48 << 10)
		r = cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared);
	*func = f;
	return (int)r;
}

int sluice_pin(size_t bytes, void **host, uint64_t *device) {
	CUdeviceptr d = 0;
	CUresult r = cuMemHostAlloc(host, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
	if (r != CUDA_SUCCESS)
		return (int)r;
	r = cuMemHostGetDevicePointer(&d, *host, 0);
	if (r != CUDA_SUCCESS) {
		cuMemFreeHost(*host);
		*host = NULL;
	}
	*device = (uint64_t)d;
	return (int)r;
}

int sluice_unpin(void *host) { return (int)cuMemFreeHost(host); }

// The first version of these calls needs a kernel module option on many machines; the second, of CUDA 11.7, does not.
#if CUDA_VERSION >= 12000
#define WAIT_VALUE cuStreamWaitValue32
#define WRITE_VALUE cuStreamWriteValue32
#else
#define WAIT_VALUE cuStreamWaitValue32_v2
#define WRITE_VALUE cuStreamWriteValue32_v2
#endif

int sluice_wait_value(void *stream, uint64_t addr, uint32_t value) {
	return (int)WAIT_VALUE((CUstream)stream, (CUdeviceptr)addr, value, CU_STREAM_WAIT_VALUE_GEQ);
}

int sluice_write_value(void *stream, uint64_t addr, uint32_t value) {
	return (int)WRITE_VALUE((CUstream)stream, (CUdeviceptr)addr, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

int sluice_capture_begin(void *stream) {
	return (int)cuStreamBeginCapture((CUstream)stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

int sluice_capture_end(void *stream, void **exec) {
	CUgraph graph = NULL;
	CUgraphExec e = NULL;
	*exec = NULL;
	CUresult r = cuStreamEndCapture((CUstream)stream, &graph);
	if (r != CUDA_SUCCESS)
		return (int)r;
	// This entry has one shape from CUDA 11.4 on; cuGraphInstantiate changed its own with 12.
	r = cuGraphInstantiateWithFlags(&e, graph, 0);
	cuGraphDestroy(graph);
	if (r == CUDA_SUCCESS)
		*exec = e;
	return (int)r;
}

int sluice_graph_launch(void *exec, void *stream) { return (int)cuGraphLaunch((CUgraphExec)exec, (CUstream)stream); }

int sluice_graph_free(void *exec) { return (int)cuGraphExecDestroy((CUgraphExec)exec); }

const char *sluice_error_name(int code) {
	const char *s = NULL;
	return cuGetErrorName((CUresult)code, &s) == CUDA_SUCCESS && s ? s : "unknown result";
}

const char *sluice_error_text(int code) {
	const char *s = NULL;
	return cuGetErrorString((CUresult)code, &s) == CUDA_SUCCESS && s ? s : "the driver has no text for it";
}

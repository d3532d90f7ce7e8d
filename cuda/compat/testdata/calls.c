// The calls as gorgonia.org/cu writes them. The exit status is the number of the first one that came out wrong.
#include <cuda.h>

int main(void) {
	CUcontext c = NULL;
	CUgraphNode a = NULL, b = NULL;
	size_t n = 1;
	if (cuCtxCreate(&c, 4, 5) != CUDA_SUCCESS || c != (CUcontext)8)
		return 1;
	if (cuMemAdvise(64, 7, CU_MEM_ADVISE_SET_READ_MOSTLY, CU_DEVICE_CPU) != CUDA_SUCCESS)
		return 2;
	if (cuMemPrefetchAsync(64, 7, 3, NULL) != CUDA_SUCCESS)
		return 3;
	if (cuGraphAddDependencies(NULL, &a, &b, 1) != CUDA_SUCCESS)
		return 4;
	if (cuGraphGetEdges(NULL, &a, &b, &n) != CUDA_SUCCESS || n != 3)
		return 5;
	return 0;
}

//go:build !noasm

package kernels

// The assembly's buffers and strides are made for these sizes: a constant below turns negative, and does not compile,
// where they no longer hold.
const (
	_ = uint(512 - MaxHeadDim)
	_ = uint(64 - KVTile)
	_ = uint(KVTile - 64)
)

// tile picks the implementation. A head that is not whole groups of lanes has no assembly; none of a known model's is.
func (s *attendState) tile(out, q []float32, kv *keyValues, headDim, p0, tile int, factor float32) {
	if !useAVX2 || headDim%dotLanes != 0 {
		s.tileGeneric(out, q, kv, headDim, p0, tile, factor)
		return
	}
	w, off, cnt, at, stride := &s.w[0][0], &s.off[0], &s.cnt[0], kv.at(p0/KVTile), kv.stride
	switch {
	case useAVX512 && kv.k16 != nil:
		scoresF16AVX512(w, &q[0], off, s.n, &kv.k16[at], stride, tile, headDim, factor)
		s.mask(p0)
		weighAVX512(w, &s.max[0], &s.sum[0], &out[0], off, cnt, s.n, headDim)
		valuesF16AVX512(&out[0], w, off, cnt, s.n, &kv.v16[at], stride, tile, headDim)
	case useAVX512 && kv.k32 != nil:
		scoresF32AVX512(w, &q[0], off, s.n, &kv.k32[at], stride, tile, headDim, factor)
		s.mask(p0)
		weighAVX512(w, &s.max[0], &s.sum[0], &out[0], off, cnt, s.n, headDim)
		valuesF32AVX512(&out[0], w, off, cnt, s.n, &kv.v32[at], stride, tile, headDim)
	case useAVX512:
		scoresQ8AVX512(w, &q[0], off, s.n, &kv.k8.Q[at], &kv.k8.D[at/32], stride, tile, headDim, factor)
		s.mask(p0)
		weighAVX512(w, &s.max[0], &s.sum[0], &out[0], off, cnt, s.n, headDim)
		valuesQ8AVX512(&out[0], w, off, cnt, s.n, &kv.v8.Q[at], &kv.v8.D[at/32], stride, tile, headDim)
	case kv.k16 != nil:
		scoresF16AVX2(w, &q[0], off, s.n, &kv.k16[at], stride, tile, headDim, factor)
		s.mask(p0)
		weighAVX2(w, &s.max[0], &s.sum[0], &out[0], off, cnt, s.n, headDim)
		valuesF16AVX2(&out[0], w, off, cnt, s.n, &kv.v16[at], stride, tile, headDim)
	case kv.k32 != nil:
		scoresF32AVX2(w, &q[0], off, s.n, &kv.k32[at], stride, tile, headDim, factor)
		s.mask(p0)
		weighAVX2(w, &s.max[0], &s.sum[0], &out[0], off, cnt, s.n, headDim)
		valuesF32AVX2(&out[0], w, off, cnt, s.n, &kv.v32[at], stride, tile, headDim)
	default:
		scoresQ8AVX2(w, &q[0], off, s.n, &kv.k8.Q[at], &kv.k8.D[at/32], stride, tile, headDim, factor)
		s.mask(p0)
		weighAVX2(w, &s.max[0], &s.sum[0], &out[0], off, cnt, s.n, headDim)
		valuesQ8AVX2(&out[0], w, off, cnt, s.n, &kv.v8.Q[at], &kv.v8.D[at/32], stride, tile, headDim)
	}
}

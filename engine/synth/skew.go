package synth

import (
	"bytes"
	"io"
	"math"
	"strings"

	"sluice/kernels"
)

// MaxRouterSkew bounds Config.RouterSkew: with it the k favourites of a layer are hardly ever left.
const MaxRouterSkew = 8

// A router sees nothing but the token's normalised row, so an expert can be favoured only along a direction that all rows
// share. The embeddings give them one: embeddingMean is added to every weight of theirs, which is little beside their
// spread of 1 and disturbs nothing else, and it stays in the residual stream. The mean of a layer's normalised row is then
//
//	mean(l) = embeddingMean / sqrt(1 + embeddingMean^2 + layerGrowth*l)
//
// where layerGrowth is about the variance that a layer of random weights adds to the stream. An expert whose router row
// has b/(embd*mean(l)) added to each weight has b added to its logit, whose own spread is 1. With b = -skew*ln(rank) a
// softmax over the shared part alone would give rank^-skew: Zipf's law (Zipf, Human behavior and the principle of least
// effort, 1949). The token's own part blurs it, and a choice of k without repetition flattens its head.
const (
	embeddingMean = 0.25
	layerGrowth   = 0.1
)

// skewRouters gives the embeddings their mean and each layer's experts a rank.
func skewRouters(list []tensor, g Geometry, seed uint64, skew float64) {
	layer := 0
	for i := range list {
		t := &list[i]
		switch {
		case t.name == "token_embd.weight":
			t.mean = embeddingMean
		case strings.HasSuffix(t.name, ".ffn_gate_inp.weight"):
			mean := embeddingMean / math.Sqrt(1+embeddingMean*embeddingMean+float64(layerGrowth*float64(layer)))
			t.rows = make([]float32, g.Experts)
			for rank, e := range rng(seed, "ranks "+t.name, 0).Perm(g.Experts) {
				t.rows[e] = float32(-skew * logRank(rank+1) / (float64(g.Embd) * mean))
			}
			layer++
		}
	}
}

// logRank is the natural logarithm of a rank, to 0.01: harmonic numbers, so that no machine's math library has a say in the
// result (see normal).
func logRank(rank int) float64 {
	const gamma = 0.57721566490153286 // Euler's constant
	h, r := 0.0, float64(rank)
	for i := 1; i <= rank; i++ {
		h += 1 / float64(i)
	}
	return h - gamma - 1/(2*r) + 1/(12*r*r)
}

// writeShifted writes an F32 tensor with its rows shifted.
func (d *dealer) writeShifted(w io.Writer, t *tensor) error {
	plain := *t
	plain.rows = nil
	var buf bytes.Buffer
	if err := d.write(&buf, &plain); err != nil {
		return err
	}
	data := buf.Bytes()
	x := make([]float32, t.elements())
	kernels.Dequantize(kernels.F32, x, data)
	for i := range x {
		x[i] += t.rows[i/t.dims[0]]
	}
	kernels.Quantize(kernels.F32, data, x)
	_, err := w.Write(data)
	return err
}

package synth

import (
	"fmt"
	"strings"

	"sluice/kernels"
)

// mix says which type each kind of matrix has. Routers, norms and biases are F32 in all of them.
type mix struct {
	name     string
	fileType uint32 // general.file_type, llama.cpp's number of the mix
	base     kernels.Type
	output   kernels.Type // output.weight
	downEven kernels.Type // experts' down projections of layers 0, 2, 4, ...
}

// llama.cpp's file-type number of a file whose matrices all have one type.
var fileTypes = [...]struct {
	t  kernels.Type
	id uint32
}{
	{kernels.F32, 0}, {kernels.F16, 1}, {kernels.BF16, 32}, {kernels.Q8_0, 7}, {kernels.Q4_0, 2}, {kernels.Q4_1, 3},
	{kernels.Q5_0, 8}, {kernels.Q5_1, 9}, {kernels.Q2_K, 10}, {kernels.Q3_K, 11}, {kernels.Q4_K, 14}, {kernels.Q5_K, 16},
	{kernels.Q6_K, 18}, {kernels.IQ4_NL, 25}, {kernels.IQ4_XS, 30}, {kernels.MXFP4, 38},
}

// mixes lists every mix. The two K mixes spend more bits where an error costs most, on the output matrix and on half of
// the down projections, as the files that people run do.
func mixes() []mix {
	var all []mix
	for _, f := range fileTypes {
		all = append(all, mix{strings.ToLower(f.t.String()), f.id, f.t, f.t, f.t})
	}
	return append(all,
		mix{"q4_k_m", 15, kernels.Q4_K, kernels.Q6_K, kernels.Q6_K},
		mix{"q5_k_m", 17, kernels.Q5_K, kernels.Q6_K, kernels.Q6_K})
}

// Types lists the names that Config.Type takes, case aside.
func Types() []string {
	var names []string
	for _, m := range mixes() {
		names = append(names, m.name)
	}
	return names
}

func findMix(name string) (mix, error) {
	for _, m := range mixes() {
		if strings.EqualFold(m.name, name) {
			return m, nil
		}
	}
	return mix{}, fmt.Errorf("synth: type %q: want one of %s", name, strings.Join(Types(), ", "))
}

func (m mix) down(layer int) kernels.Type {
	if layer%2 == 0 {
		return m.downEven
	}
	return m.base
}

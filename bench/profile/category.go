package profile

import "strings"

// CategoryOther is the category of an op code that no rule names, attention, norms and routing among them.
const CategoryOther = "other"

// Category names the kind of work behind an op code. The rules are tried in order and the first one with a matching
// part wins: SliceWriteDeviceOperation is a slice, although "Write" says more.
func Category(opCode string) string {
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(opCode, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("Conv2d", "conv2d", "Conv2D", "ConvTranspose"):
		return "conv2d / conv_transpose2d"
	case has("Halo", "halo", "UntilizeWithHalo"):
		return "halo"
	case has("Matmul", "matmul", "Linear"):
		return "matmul (1x1 conv)"
	case has("Slice", "slice", "PaddedSlice"):
		return "slice / DRAM-slicing copies"
	case has("Binary", "binary", "Where", "where", "Ternary"):
		return "binary (term sums, fp32 bias add, residual, SE gate)"
	case has("Typecast", "typecast"):
		return "typecast"
	case has("Unary", "unary", "Clamp", "clamp", "Sigmoid"):
		return "unary (SiLU, GELU, sigmoid)"
	case has("Concat", "concat"):
		return "concat"
	case has("Upsample", "upsample"):
		return "upsample"
	case has("Tilize", "tilize", "Untilize", "untilize", "ToLayout", "Layout"):
		return "tilize / untilize / layout"
	case has("Reshape", "reshape", "Transpose", "transpose", "Permute", "permute", "View"):
		return "reshape / transpose / permute"
	case has("ArgMax", "Argmax", "argmax"):
		return "argmax"
	case has("Reduce", "reduce", "Sum"):
		return "reduce (SE / context row sums)"
	case has("Move", "move", "Copy", "copy", "Shard", "shard", "Interleaved", "interleaved", "Reallocate"):
		return "move / copy / reshard"
	case has("Pad", "pad", "Fill", "fill"):
		return "pad / fill"
	}
	return CategoryOther
}

// isCompute says whether an op code is one of the products that the layer cost split is built around.
func isCompute(opCode string) bool {
	return strings.Contains(opCode, "Conv2d") || strings.Contains(opCode, "Matmul") || strings.Contains(opCode, "ConvTranspose")
}

package profile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names of the columns that the summary reads. A file of format v1 has OP NAME and plain dimension
// columns in some versions of the profiler; v2 writes "padded[logical]" dimensions; v2.1 adds the
// architecture and the number of worker cores.
const (
	ColOpCode      = "OP CODE"
	ColOpName      = "OP NAME" // stands in for OP CODE in old files
	ColOpType      = "OP TYPE"
	ColCallCount   = "GLOBAL CALL COUNT"
	ColDevice      = "DEVICE ID"
	ColArch        = "DEVICE ARCH"
	ColAttributes  = "ATTRIBUTES"
	ColFidelity    = "MATH FIDELITY"
	ColCores       = "CORE COUNT"
	ColWorkerCores = "AVAILABLE WORKER CORE COUNT"
	ColHostStart   = "HOST START TS"
	ColHostEnd     = "HOST END TS"
	ColHostNS      = "HOST DURATION [ns]"
	ColFWStart     = "DEVICE FW START CYCLE"
	ColFWEnd       = "DEVICE FW END CYCLE"
	ColGapNS       = "OP TO OP LATENCY [ns]"
	ColFWNS        = "DEVICE FW DURATION [ns]"
	ColKernelNS    = "DEVICE KERNEL DURATION [ns]"
	ColTraceID     = "METAL TRACE ID"
	ColSessionID   = "METAL TRACE REPLAY SESSION ID"
)

// Signposts: rows whose OP TYPE is TypeSignpost and whose OP CODE is one of these.
const (
	TypeSignpost = "signpost"
	TypeDeviceOp = "tt_dnn_device" // OP TYPE of an op that ran on the device

	SectionEager = "eager"
	SectionTrace = "trace"
	SectionEnd   = "_end"  // appended to a section's name it closes that section
	BlockPrefix  = "m:"    // m:<block>: the ops that follow belong to this block
	LayerPrefix  = "c:"    // c:<layer key>: ... and to this layer
	PostSuffix   = "|post" // c:<layer key>|post: the glue after the layer
)

// Operand columns: INPUT_0 to INPUT_4 and OUTPUT_0, each with these.
const (
	OperandW        = "W_PAD[LOGICAL]"
	OperandZ        = "Z_PAD[LOGICAL]"
	OperandY        = "Y_PAD[LOGICAL]"
	OperandX        = "X_PAD[LOGICAL]"
	OperandLayout   = "LAYOUT"
	OperandDatatype = "DATATYPE"
	OperandMemory   = "MEMORY"

	// MaxInputs is the number of input operands a row has room for.
	MaxInputs = 5
)

// InputColumn names a column of input operand i, 0 <= i < MaxInputs; what is one of the Operand names.
func InputColumn(i int, what string) string { return fmt.Sprintf("INPUT_%d_%s", i, what) }

// OutputColumn names a column of the output operand.
func OutputColumn(what string) string { return "OUTPUT_0_" + what }

// Dim writes a dimension as the v2 formats have it.
func Dim(padded, logical int) string {
	return strconv.Itoa(padded) + "[" + strconv.Itoa(logical) + "]"
}

// Columns returns the columns of format v2.1 in file order, in a slice of the caller's own.
func Columns() []string {
	c := []string{ColOpCode, ColOpType, ColCallCount, ColDevice, ColArch, ColAttributes, ColFidelity, ColCores, ColWorkerCores,
		"PARALLELIZATION STRATEGY", ColHostStart, ColHostEnd, ColHostNS, ColFWStart, ColFWEnd, ColGapNS,
		"OP TO OP LATENCY BR/NRISC START [ns]", ColFWNS, ColKernelNS, "DEVICE KERNEL DURATION DM START [ns]",
		"DEVICE KERNEL DURATION PER CORE MIN [ns]", "DEVICE KERNEL DURATION PER CORE MAX [ns]",
		"DEVICE KERNEL DURATION PER CORE AVG [ns]", "DEVICE KERNEL FIRST TO LAST START [ns]",
		"DEVICE BRISC KERNEL DURATION [ns]", "DEVICE NCRISC KERNEL DURATION [ns]", "DEVICE TRISC0 KERNEL DURATION [ns]",
		"DEVICE TRISC1 KERNEL DURATION [ns]", "DEVICE TRISC2 KERNEL DURATION [ns]", "DEVICE ERISC KERNEL DURATION [ns]",
		"DEVICE COMPUTE CB WAIT FRONT [ns]", "DEVICE COMPUTE CB RESERVE BACK [ns]", "DISPATCH TOTAL CQ CMD OP TIME [ns]",
		"DISPATCH GO SEND WAIT TIME [ns]"}
	operand := []string{OperandW, OperandZ, OperandY, OperandX, OperandLayout, OperandDatatype, OperandMemory}
	for i := range MaxInputs {
		for _, what := range operand {
			c = append(c, InputColumn(i, what))
		}
	}
	for _, what := range operand {
		c = append(c, OutputColumn(what))
	}
	c = append(c, ColTraceID, ColSessionID, "COMPUTE KERNEL SOURCE", "COMPUTE KERNEL HASH", "DATA MOVEMENT KERNEL SOURCE",
		"DATA MOVEMENT KERNEL HASH", "TENSIX DM 0 MAX KERNEL SIZE [B]", "TENSIX DM 1 MAX KERNEL SIZE [B]",
		"TENSIX COMPUTE 0 MAX KERNEL SIZE [B]", "TENSIX COMPUTE 1 MAX KERNEL SIZE [B]", "TENSIX COMPUTE 2 MAX KERNEL SIZE [B]",
		"ACTIVE ETH DM 0 MAX KERNEL SIZE [B]", "ACTIVE ETH DM 1 MAX KERNEL SIZE [B]", "IDLE ETH DM 0 MAX KERNEL SIZE [B]",
		"IDLE ETH DM 1 MAX KERNEL SIZE [B]", "PM IDEAL [ns]", "PM COMPUTE [ns]", "PM BANDWIDTH [ns]", "PM REQ I BW",
		"PM REQ O BW", "PM FPU UTIL (%)", "NOC UTIL (%)", "DRAM BW UTIL (%)", "NPE CONG IMPACT (%)")
	for _, unit := range [][2]string{{"SFPU", "SFPU"}, {"FPU", "FPU"}, {"MATH", "Math"}} {
		for _, stat := range []string{"Min", "Median", "Max"} {
			c = append(c, unit[0]+" Util "+stat+" (%)")
		}
		c = append(c, "Avg "+unit[1]+" util on full grid (%)")
	}
	return c
}

// Format is the version of the ops CSV format, told apart by the columns as tt-perf-report does.
type Format string

// The formats.
const (
	V1  Format = "v1"
	V2  Format = "v2"   // dimensions as padded[logical]
	V21 Format = "v2.1" // and DEVICE ARCH or AVAILABLE WORKER CORE COUNT
)

// DetectFormat tells a header's format.
func DetectFormat(columns []string) Format {
	switch {
	case slices.Contains(columns, ColArch) || slices.Contains(columns, ColWorkerCores):
		return V21
	case slices.ContainsFunc(columns, func(c string) bool { return strings.Contains(c, "_PAD[LOGICAL]") }):
		return V2
	}
	return V1
}

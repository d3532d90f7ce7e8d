package profile

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestChipFreq(t *testing.T) {
	dir := t.TempDir()
	csv := filepath.Join(dir, "run", "ops.csv")
	check := func(want float64, log string) {
		t.Helper()
		mhz, got, err := ChipFreqMHz(csv)
		if err != nil || mhz != want || log != "" && got != filepath.Join(dir, log) {
			t.Errorf("%v MHz from %q, %v; want %v from %q", mhz, got, err, want, log)
		}
	}
	check(0, "")
	for _, s := range []struct {
		log string
		mhz float64
	}{{".logs/" + DeviceLogName, 700}, {"run/.logs/" + DeviceLogName, 800}, {DeviceLogName, 900}, {"run/" + DeviceLogName, 1000.25}} {
		writeText(t, dir, s.log, []byte(DeviceLogLine("blackhole", s.mhz)+"\nPCIe slot, core_x\n"))
		check(s.mhz, s.log)
	}
	writeText(t, dir, "run/"+DeviceLogName, []byte("ARCH: x\nCHIP_FREQ[MHz]: 5\n")) // the first line alone counts
	check(900, DeviceLogName)
	writeText(t, dir, "run/"+DeviceLogName, []byte("CHIP_FREQ[MHz]: 1.2.3\n"))
	if _, _, err := ChipFreqMHz(csv); err == nil || !strings.HasSuffix(err.Error(), `line 1: CHIP_FREQ[MHz] "1.2.3" is not a number`) {
		t.Errorf("error %v", err)
	}
}

func TestCategory(t *testing.T) {
	for code, want := range map[string]string{"Conv2dDeviceOperation": "conv2d / conv_transpose2d", "SliceWriteDeviceOperation": "slice / DRAM-slicing copies",
		"UntilizeWithHaloV2": "halo", "Matmul": "matmul (1x1 conv)", "InterleavedToShardedDeviceOperation": "move / copy / reshard",
		"TilizeWithValPaddingDeviceOperation": "tilize / untilize / layout", "Softmax": CategoryOther, "RMSNorm": CategoryOther, "SDPADecode": CategoryOther,
		"TopK": CategoryOther, "Embedding": CategoryOther, "": CategoryOther} {
		if got := Category(code); got != want {
			t.Errorf("%q: %q, want %q", code, got, want)
		}
	}
}

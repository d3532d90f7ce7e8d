//go:build cuda

package cuda_test

import (
	"context"
	"strings"
	"testing"

	"sluice/cuda"
	"sluice/engine/enginetest"
	"sluice/engine/model"
)

var background = context.Background()

// The names by which these tests call their helpers.
var (
	parseModel    = enginetest.ParseModel
	openFile      = enginetest.OpenFile
	writeFile     = enginetest.WriteFile
	trainedModel  = enginetest.TrainedModel
	synthModel    = enginetest.SynthModel
	newSession    = enginetest.NewSession
	greedySampler = enginetest.GreedySampler
	greedy        = enginetest.Greedy
	armTaps       = enginetest.ArmTaps
)

// openDevice takes the device, and fails the test if anything is left on it at the end.
func openDevice(t testing.TB, o cuda.Options) model.Device {
	t.Helper()
	d, err := cuda.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// emulated says whether the device is the emulated one.
func emulated(d model.Device) bool { return strings.Contains(d.Name(), "emulated") }

// emulatedOnly skips the test on a real device, which pretends nothing.
func emulatedOnly(t testing.TB) {
	t.Helper()
	d, err := cuda.New(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !emulated(d) {
		t.Skipf("%s is not the emulated device: it pretends nothing", d.Name())
	}
}

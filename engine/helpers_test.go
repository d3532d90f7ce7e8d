package engine_test

import (
	"context"
	"testing"

	"sluice/engine/demo"
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
	logProb       = enginetest.LogProb
	readDump      = enginetest.ReadDump
)

// demoModel opens the built-in model from memory.
func demoModel(t testing.TB) *model.Model {
	t.Helper()
	return parseModel(t, demo.Name, demo.Model())
}

// demoFile writes the built-in model to a file, for what needs one.
func demoFile(t testing.TB) string {
	t.Helper()
	return writeFile(t, demo.Name, demo.Model())
}

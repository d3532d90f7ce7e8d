package engine_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"testing"

	"sluice/dump"
	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
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
	logProb       = enginetest.LogProb
)

// demoModel opens the built-in model from memory.
func demoModel(t testing.TB) *engine.Model {
	t.Helper()
	return parseModel(t, demo.Name, demo.Model())
}

// demoFile writes the built-in model to a file, for what needs one.
func demoFile(t testing.TB) string {
	t.Helper()
	return writeFile(t, demo.Name, demo.Model())
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// readDump reads a whole selection dump.
func readDump(t testing.TB, path string) []dump.SelRecord {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []dump.SelRecord
	for r := dump.NewSelReader(f); ; {
		rec, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		rec.Expert, rec.Weight = slices.Clone(rec.Expert), slices.Clone(rec.Weight)
		out = append(out, rec)
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const profileCSV = "OP CODE,OP TYPE,DEVICE ID,DEVICE KERNEL DURATION [ns],DEVICE FW DURATION [ns],OP TO OP LATENCY [ns],DEVICE FW START CYCLE,DEVICE FW END CYCLE,CORE COUNT\n"

// runProfile calls the verb in dir and returns standard output, standard error and the error.
func runProfile(t *testing.T, args ...string) (string, string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	c := profileCommand(streams{out: &out, err: &errs})
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.SetArgs(args)
	err := c.ExecuteContext(context.Background())
	return out.String(), errs.String(), err
}

func TestProfileWritesReports(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("new.csv", profileCSV+"eager,signpost,,,,,,,\nMatmul,tt_dnn_device,0,2000,2100,5,100,300,8\neager_end,signpost,,,,,,,\n")
	write("old.csv", profileCSV+"eager,signpost,,,,,,,\nMatmul,tt_dnn_device,0,1000,1100,5,100,300,8\neager_end,signpost,,,,,,,\n")
	write("profile_log_device.csv", "ARCH: cpu, CHIP_FREQ[MHz]: 100\n")
	out, errs, err := runProfile(t, "new.csv", "out.json", "--md", "out.md", "--html", "out.html", "--against", "old.csv", "--whole")
	if err != nil {
		t.Fatal(err)
	}
	md, err := os.ReadFile("out.md")
	if err != nil || string(md) != out {
		t.Errorf("the Markdown file and standard output differ (%v)", err)
	}
	if !strings.Contains(out, "span 2.0 us") || !strings.Contains(out, "## Against old.csv") || !strings.Contains(out, "| Matmul | 1 | 1 | 1.0 | 2.0 | +1.0 | 2.000 |") {
		t.Errorf("tables:\n%s", out)
	}
	if !strings.Contains(errs, "note: section trace never ran") {
		t.Errorf("notes:\n%s", errs)
	}
	var doc map[string]any
	if data, err := os.ReadFile("out.json"); err != nil || json.Unmarshal(data, &doc) != nil || doc["freq_mhz"] != 100.0 || doc["whole"] == nil {
		t.Errorf("JSON %v, %v", doc, err)
	}
	if page, err := os.ReadFile("out.html"); err != nil || !strings.Contains(string(page), "<title>Profile of new.csv</title>") {
		t.Errorf("HTML: %v", err)
	}
	out, errs, err = runProfile(t, "new.csv", "out.json", "--json", "--freq-mhz", "200")
	var j struct {
		FreqSource string `json:"freq_source"`
		Notes      []string
		Report     struct {
			FreqMHz float64 `json:"freq_mhz"`
		}
	}
	if err != nil || errs != "" || json.Unmarshal([]byte(out), &j) != nil || j.FreqSource != "--freq-mhz" || j.Report.FreqMHz != 200 || len(j.Notes) != 1 {
		t.Errorf("--json: %+v, %q, %v", j, errs, err)
	}
}

func TestProfileRefuses(t *testing.T) {
	dir := t.TempDir()
	csv, bad := filepath.Join(dir, "ops.csv"), filepath.Join(dir, "bad.csv")
	out := filepath.Join(dir, "out.json")
	for name, text := range map[string]string{csv: profileCSV + "Matmul,tt_dnn_device,0,1,1,1,1,2,8\n", bad: profileCSV + "Matmul,tt_dnn_device,0,x,1,1,1,2,8\n"} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args  []string
		usage bool
		err   string
	}{
		{[]string{csv}, true, "got 1 arguments, want two"},
		{[]string{csv, ""}, true, "OUT.json is empty"},
		{[]string{csv, csv}, true, "would overwrite the profile that is read"},
		{[]string{csv, out, "--md", out}, true, "both name"},
		{[]string{csv, out, "--freq-mhz", "-1"}, true, "--freq-mhz -1: want a frequency above 0"},
		{[]string{csv, out, "--freq-mhz", "0"}, true, "--freq-mhz 0"},
		{[]string{csv, out, "--frq-mhz", "1"}, true, "unknown flag"},
		{[]string{filepath.Join(dir, "none.csv"), out}, false, "no such file"},
		{[]string{bad, out}, false, `bad.csv: line 2, column 4 (DEVICE KERNEL DURATION [ns]): "x" is not a number`},
		{[]string{csv, out, "--against", bad}, false, `bad.csv: line 2, column 4`},
		{[]string{csv, out, "--device", "3"}, false, `no op of device "3"; the file has 0 (1 ops)`},
	} {
		_, _, err := runProfile(t, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: error %v, want %q", c.args, err, c.err)
		}
		var usage usageError
		if errors.As(err, &usage) != c.usage {
			t.Errorf("%v: usage error %v, want %v", c.args, !c.usage, c.usage)
		}
		if _, err := os.Stat(out); err == nil {
			t.Fatalf("%v: left an output behind", c.args)
		}
	}
	if _, _, err := runProfile(t, bad, out, "--lenient"); err != nil {
		t.Errorf("--lenient: %v", err)
	}
}

package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"sluice/bench/profile"
	"sluice/internal/whole"
)

type profileFlags struct {
	profile.Options
	md, html, against string
	freq              float64
	whole, json       bool
}

// profileJSON is what --json prints: the report and what the file of the report has no field for.
type profileJSON struct {
	Out        string          `json:"out"`
	Format     profile.Format  `json:"format"`
	Arch       string          `json:"arch"`
	Devices    []string        `json:"devices"`
	FreqSource string          `json:"freq_source"` // a file, "--freq-mhz" or "default"
	Notes      []string        `json:"notes"`
	Report     *profile.Report `json:"report"`
}

func profileCommand(io streams) *cobra.Command {
	f := &profileFlags{}
	c := &cobra.Command{
		Use:   "profile CSV OUT.json",
		Short: "Summarise an ops CSV: where the device time goes",
		Long: `Reads an ops CSV of tt-metal's profiler (v1, v2, v2.1) or of engine bench --ops-csv, and writes what its
sections eager and trace cost by category, block, op code and layer, the longest ops and gaps, and the
cost split of the layers. The tables go to standard output too, notes about the file to standard error.

The chip frequency comes from --freq-mhz, else from profile_log_device.csv beside the file or one folder
up, else it is 1350 MHz. A fault of the file is an error that names line and column (the number of the
field); with --lenient it is counted, named and passed over.`,
		Example: `  engine profile ops_perf_results.csv out.json --md out.md --html out.html
  engine profile new.csv out.json --against old.csv
  engine profile plain.csv out.json --whole`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("%s: got %d arguments, want two: the ops CSV and the JSON to write", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args[0], args[1], io) },
	}
	fs := c.Flags()
	fs.StringVar(&f.md, "md", "", "write the tables as Markdown")
	fs.StringVar(&f.html, "html", "", "write the report as one HTML page")
	fs.Float64Var(&f.freq, "freq-mhz", 0, "frequency of the cycle counters (default: the device log's, else 1350)")
	fs.StringVar(&f.against, "against", "", "older ops CSV: also say what got slower since")
	fs.BoolVar(&f.whole, "whole", false, "also summarise all ops of the file as one section")
	fs.StringVar(&f.Device, "device", "", `DEVICE ID whose ops count, or "all" to add up several (default: the file has one)`)
	fs.BoolVar(&f.Lenient, "lenient", false, "count faults of the file and go on")
	fs.BoolVar(&f.json, "json", false, "print one JSON document")
	return c
}

func (f *profileFlags) run(c *cobra.Command, csv, out string, io streams) error {
	if c.Flags().Changed("freq-mhz") && !(f.freq > 0 && f.freq <= math.MaxFloat32) {
		return usagef("--freq-mhz %g: want a frequency above 0", f.freq)
	}
	if err := f.checkOutputs(csv, out); err != nil {
		return err
	}
	doc := profileJSON{Out: out, Devices: []string{}, Notes: []string{}}
	var err error
	if doc.Report, doc.FreqSource, err = f.report(csv); err != nil {
		return err
	}
	r := doc.Report
	doc.Format, doc.Arch = r.Format, r.Arch
	doc.Devices, doc.Notes = append(doc.Devices, r.Devices...), append(doc.Notes, r.Notes...)
	if doc.FreqSource == "default" {
		doc.Notes = append(doc.Notes, fmt.Sprintf("no %s near the file: %v MHz is taken for granted", profile.DeviceLogName, r.FreqMHz))
	}
	if f.against != "" {
		old, _, err := f.report(f.against)
		if err != nil {
			return err
		}
		r.Against = profile.Compare(old, r)
		for _, n := range old.Notes {
			doc.Notes = append(doc.Notes, f.against+": "+n)
		}
	}
	r.Notes = doc.Notes
	if err := whole.WriteFile(out, r.WriteJSON); err != nil {
		return err
	}
	if f.md != "" {
		if err := whole.WriteFile(f.md, r.WriteMarkdown); err != nil {
			return err
		}
	}
	if f.html != "" {
		if err := whole.WriteFile(f.html, r.WriteHTML); err != nil {
			return err
		}
	}
	if f.json {
		return printJSON(io.out, doc)
	}
	for _, n := range doc.Notes {
		fmt.Fprintln(io.err, "note:", n)
	}
	return r.WriteMarkdown(io.out)
}

// report reads one file and says where its frequency is from.
func (f *profileFlags) report(csv string) (*profile.Report, string, error) {
	mhz, source := f.freq, "--freq-mhz"
	if mhz == 0 {
		var err error
		if mhz, source, err = profile.ChipFreqMHz(csv); err != nil {
			return nil, "", err
		}
		if source == "" {
			source = "default"
		}
	}
	p, err := profile.Open(csv, f.Options)
	if err != nil {
		return nil, "", err
	}
	return p.Report(profile.ReportOptions{FreqMHz: mhz, Whole: f.whole}), source, nil
}

// checkOutputs refuses to write over what is read and one output over another.
func (f *profileFlags) checkOutputs(csv, out string) error {
	if out == "" {
		return usagef("OUT.json is empty")
	}
	const read = "the profile that is read"
	return apart([]namedFile{{read, csv}, {read, f.against}}, []namedFile{{"OUT.json", out}, {"--md", f.md}, {"--html", f.html}})
}

package roofline

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"sluice/bench/internal/jsonpos"
)

// Machine is a processor and its memory.
type Machine struct {
	Name      string  `json:"name,omitempty"`
	PeakFlops float64 `json:"peak_flops"`          // operations per second, a multiplication and an addition counted as two
	Bandwidth float64 `json:"bw_hbm"`              // bytes per second of the memory that holds the weights
	Stream    float64 `json:"bw_stream,omitempty"` // bytes per second of the level that missing experts come from; 0: none
	Source    string  `json:"source,omitempty"`    // where the numbers are from
}

// Rates outside this range are taken for a mistake in units. The bounds also keep every quotient finite.
const (
	minRate = 1
	maxRate = 1e24
)

// Check tells what is wrong with the numbers, and nil when nothing is.
func (m Machine) Check() error {
	for _, r := range []struct {
		key  string
		v    float64
		zero bool
	}{{"peak_flops", m.PeakFlops, false}, {"bw_hbm", m.Bandwidth, false}, {"bw_stream", m.Stream, true}} {
		if r.zero && r.v == 0 {
			continue
		}
		if !(r.v >= minRate && r.v <= maxRate) { // written so that NaN fails
			return fmt.Errorf("roofline: machine %q: %s is %v, want %v..%v", m.Name, r.key, r.v, float64(minRate), float64(maxRate))
		}
	}
	return nil
}

// ArithmeticIntensity is C/W: operations per byte of memory traffic.
func (m Machine) ArithmeticIntensity() float64 { return m.PeakFlops / m.Bandwidth }

//go:embed machines.json
var machinesJSON []byte

// Machines is the built-in table: a few chips with what their makers state. Peaks are dense 16-bit matrix rates, without
// structured sparsity.
func Machines() []Machine {
	ms, err := ReadMachines(bytes.NewReader(machinesJSON))
	if err != nil {
		panic("roofline: built-in table: " + err.Error())
	}
	return ms
}

const maxMachineBytes = 1 << 20

// machineFile has pointers where a missing key must be told from a zero.
type machineFile struct {
	Name      string   `json:"name"`
	PeakFlops *float64 `json:"peak_flops"`
	Bandwidth *float64 `json:"bw_hbm"`
	Stream    *float64 `json:"bw_stream"`
	Source    string   `json:"source"`
}

// ReadMachines reads a machine file: one JSON object or an array of them, with the keys of Machine. Unknown keys are
// ignored. An error names the entry and the key.
func ReadMachines(r io.Reader) ([]Machine, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxMachineBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxMachineBytes {
		return nil, fmt.Errorf("roofline: machine file longer than %d bytes", maxMachineBytes)
	}
	var entries []machineFile
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		entries = make([]machineFile, 1)
		err = json.Unmarshal(b, &entries[0])
	} else {
		err = json.Unmarshal(b, &entries)
	}
	if err != nil {
		return nil, fmt.Errorf("roofline: machine file: %w", jsonpos.Describe(b, err))
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("roofline: machine file has no entry")
	}
	var out []Machine
	for i, e := range entries {
		m := Machine{Name: e.Name, Source: e.Source}
		for _, f := range []struct {
			key      string
			from     *float64
			to       *float64
			optional bool
		}{{"peak_flops", e.PeakFlops, &m.PeakFlops, false}, {"bw_hbm", e.Bandwidth, &m.Bandwidth, false}, {"bw_stream", e.Stream, &m.Stream, true}} {
			switch {
			case f.from != nil:
				*f.to = *f.from
			case !f.optional:
				return nil, fmt.Errorf("roofline: machine file: entry %d (%q): key %q is missing", i, e.Name, f.key)
			}
		}
		if err := m.Check(); err != nil {
			return nil, fmt.Errorf("%w (entry %d)", err, i)
		}
		out = append(out, m)
	}
	return out, nil
}

// FindMachine returns the chip of the built-in table with this name, or the first entry of the machine file at that path.
// The error of a name that is neither lists the table.
func FindMachine(nameOrPath string) (Machine, error) {
	var names []string
	for _, m := range Machines() {
		if m.Name == nameOrPath {
			return m, nil
		}
		names = append(names, m.Name)
	}
	f, err := os.Open(nameOrPath)
	if err != nil {
		return Machine{}, fmt.Errorf("roofline: machine %q is neither in the table (%s) nor a file: %w", nameOrPath, strings.Join(names, ", "), err)
	}
	defer f.Close()
	ms, err := ReadMachines(f)
	if err != nil {
		return Machine{}, fmt.Errorf("%s: %w", nameOrPath, err)
	}
	return ms[0], nil
}

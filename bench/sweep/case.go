package sweep

import (
	"fmt"
	"strings"

	"sluice/kernels"
)

// The two modes.
const (
	Prefill = "prefill"
	Decode  = "decode"
)

// Config is the problem that all cases solve. JSON keys are those of the sweep documents.
type Config struct {
	Mode    string `json:"mode"`
	SKV     int    `json:"S_kv"`           // positions of keys and values
	TQ      int    `json:"T_q"`            // queries; 1 in decode
	KVHeads int    `json:"h_kv"`           // key/value heads
	HeadDim int    `json:"d_head"`         // values of a head
	Group   int    `json:"q_heads_per_kv"` // query heads that share a key/value head
	C       int    `json:"C"`              // cubes
	P       int    `json:"P"`              // processing elements of a cube
	Seed    uint64 `json:"seed"`           // of the values
	Limit   int64  `json:"-"`              // most bytes that Execute may hold; 0: no limit
}

const (
	maxSKV   = 1 << 24
	maxTQ    = 1 << 20
	maxHeads = 1 << 10
	maxRanks = 1 << 12
)

// Check tells what is wrong with the sizes, and nil when nothing is. Whether they divide depends on the case: New says.
func (c *Config) Check() error {
	if c.Mode != Prefill && c.Mode != Decode {
		return fmt.Errorf("sweep: mode %q, want %s or %s", c.Mode, Prefill, Decode)
	}
	for _, s := range []struct {
		key    string
		v, max int
	}{{"S_kv", c.SKV, maxSKV}, {"T_q", c.TQ, maxTQ}, {"h_kv", c.KVHeads, maxHeads}, {"d_head", c.HeadDim, kernels.MaxHeadDim},
		{"query heads per key/value head", c.Group, maxHeads}, {"C", c.C, maxRanks}, {"P", c.P, maxRanks}} {
		if s.v < 1 || s.v > s.max {
			return fmt.Errorf("sweep: %s is %d, want 1..%d", s.key, s.v, s.max)
		}
	}
	if c.C*c.P > maxRanks {
		return fmt.Errorf("sweep: C*P is %d, want at most %d", c.C*c.P, maxRanks)
	}
	if c.Mode == Decode && c.TQ != 1 {
		return fmt.Errorf("sweep: T_q is %d, want 1 in decode", c.TQ)
	}
	return nil
}

// qHeads is the number of query heads.
func (c *Config) qHeads() int { return c.KVHeads * c.Group }

// qRow is the number of values of one query, and of one output row.
func (c *Config) qRow() int { return c.qHeads() * c.HeadDim }

// kvRow is the number of values of one position's keys, and of its values.
func (c *Config) kvRow() int { return c.KVHeads * c.HeadDim }

// Case is one way to share the work.
type Case struct {
	Name   string // as in the panels: cube_sp_pe_tp, ...
	Label  string // for figures
	CubeSP bool   // positions are split over cubes, else every cube has all
	PESP   bool   // the cube's positions are split over its PEs, else queries are
}

// Cases returns the four, in the order of the figures.
func Cases() []Case {
	return []Case{
		{"cube_sp_pe_tp", "Case 1\nCube-SP \u00d7 PE-TP", true, false},
		{"cube_repl_pe_tp", "Case 2\nCube-Repl \u00d7 PE-TP", false, false},
		{"cube_repl_pe_sp", "Case 3\nCube-Repl \u00d7 PE-SP", false, true},
		{"cube_sp_pe_sp", "Case 4\nCube-SP \u00d7 PE-SP", true, true},
	}
}

// FindCase returns the case of a name; the error of an unknown one lists them.
func FindCase(name string) (Case, error) {
	var names []string
	for _, k := range Cases() {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Case{}, fmt.Errorf("sweep: case %q, want one of %s", name, strings.Join(names, ", "))
}

// Panel is the name of a case's row in the document of a mode.
func (k Case) Panel(mode string) string { return panelPrefix(mode) + k.Name }

func panelPrefix(mode string) string { return "single_kv_group_" + mode + "_long_ctx_gqa_" }

// panelCase is the way back.
func panelCase(panel, mode string) (Case, error) {
	name, ok := strings.CutPrefix(panel, panelPrefix(mode))
	if !ok {
		return Case{}, fmt.Errorf("sweep: panel %q, want %s...", panel, panelPrefix(mode))
	}
	return FindCase(name)
}

// Work is what a case asks of its ranks, by formula.
type Work struct {
	SLocal     int   `json:"s_local_per_pe"`        // positions that an active PE owns
	ActivePEs  int   `json:"active_pe"`             // PEs that compute
	KVBytes    int64 `json:"kv_bytes_per_pe"`       // keys and values it owns, 2 bytes an element
	TQ         int   `json:"t_q_per_pe"`            // queries it computes
	SProcessed int   `json:"s_kv_processed_per_pe"` // positions it attends over, those that pass by included
	Total      int64 `json:"total_work"`            // pairs of query and position over all PEs
}

// Work checks that the sizes divide and returns the case's figures. A remainder is an error that names the size.
func (k Case) Work(c *Config) (Work, error) {
	if err := c.Check(); err != nil {
		return Work{}, err
	}
	divide := func(what string, n int, by string, parts int) (int, error) {
		if n%parts != 0 {
			return 0, fmt.Errorf("sweep: case %s: %s = %d does not divide over %s = %d (remainder %d)", k.Name, what, n, by, parts, n%parts)
		}
		return n / parts, nil
	}
	w := Work{SLocal: c.SKV, TQ: c.TQ, ActivePEs: c.C * c.P}
	var err error
	switch {
	case k.CubeSP && k.PESP:
		w.SLocal, err = divide("S_kv", c.SKV, "C*P", c.C*c.P)
	case k.CubeSP:
		w.SLocal, err = divide("S_kv", c.SKV, "C", c.C)
	case k.PESP:
		w.SLocal, err = divide("S_kv", c.SKV, "P", c.P)
	}
	if err != nil {
		return Work{}, err
	}
	w.SProcessed = w.SLocal
	if c.Mode == Prefill {
		switch {
		case k.CubeSP && k.PESP:
			w.TQ, err = divide("T_q", c.TQ, "C", c.C)
		case k.CubeSP:
			w.TQ, err = divide("T_q", c.TQ, "C*P", c.C*c.P)
		case !k.PESP:
			w.TQ, err = divide("T_q", c.TQ, "P", c.P)
		}
		if err != nil {
			return Work{}, err
		}
		if k.CubeSP {
			w.SProcessed *= c.C // the ring brings every cube's block by
		}
	}
	if !k.PESP { // queries are what PEs would split
		switch {
		case c.Mode == Prefill && !k.CubeSP:
			w.ActivePEs = c.P // of cube 0
		case c.Mode == Decode && k.CubeSP:
			w.ActivePEs = c.C // one a cube
		case c.Mode == Decode:
			w.ActivePEs = 1
		}
	}
	w.KVBytes = 2 * int64(w.SLocal) * int64(c.kvRow()) * 2
	w.Total = int64(w.ActivePEs) * int64(w.TQ) * int64(w.SProcessed)
	return w, nil
}

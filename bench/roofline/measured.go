package roofline

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"sluice/bench/internal/jsonpos"
)

// Measured is one measured speed, to be drawn beside the bounds.
type Measured struct {
	Label   string  `json:"label"`
	Batch   int     `json:"batch"`   // tokens that shared one read of the weights: 1 in decode, the prompt's length in prefill
	Context int     `json:"context"` // positions before the first token
	Seconds float64 `json:"seconds_per_token"`
	Min     float64 `json:"min_seconds_per_token"` // fastest repeat
	Max     float64 `json:"max_seconds_per_token"`
}

// testName is a name of the bench document: prefill or decode, tokens, and the depth where one is given.
var testName = regexp.MustCompile(`^(pp|tg)([0-9]+)(?:[ @]*d([0-9]+))?$`)

const maxMeasuredBytes = 64 << 20

// measuredFile is the part of a bench document that is read.
type measuredFile struct {
	Model   string `json:"model"`
	Results *[]struct {
		Test  *string  `json:"test"`
		TPS   *float64 `json:"tps"`
		Min   *float64 `json:"min_tps"`
		Max   *float64 `json:"max_tps"`
		Depth *int     `json:"depth"`
	} `json:"results"`
}

// ReadMeasured reads the document of `engine bench --json`: each of its results is a point. Of a result it needs "test"
// (ppN or tgN) and "tps". Errors name the line and column, or the result and the key.
func ReadMeasured(r io.Reader) ([]Measured, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxMeasuredBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxMeasuredBytes {
		return nil, fmt.Errorf("roofline: bench document longer than %d bytes", maxMeasuredBytes)
	}
	var doc measuredFile
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("roofline: bench document: %w", jsonpos.Describe(b, err))
	}
	if doc.Results == nil {
		return nil, fmt.Errorf("roofline: bench document: key %q is missing", "results")
	}
	var out []Measured
	for i, e := range *doc.Results {
		fail := func(format string, args ...any) ([]Measured, error) {
			return nil, fmt.Errorf("roofline: bench document: result %d: %s", i, fmt.Sprintf(format, args...))
		}
		if e.Test == nil {
			return fail("key %q is missing", "test")
		}
		if e.TPS == nil {
			return fail("key %q is missing", "tps")
		}
		name := testName.FindStringSubmatch(*e.Test)
		if name == nil {
			return fail("test %q, want ppN or tgN", *e.Test)
		}
		p := Measured{Label: *e.Test, Batch: 1}
		tokens, err := strconv.Atoi(name[2])
		if err != nil || tokens < 1 || tokens > maxContext {
			return fail("test %q: want 1..%d tokens", *e.Test, maxContext)
		}
		if name[1] == "pp" {
			p.Batch = tokens
		}
		switch {
		case e.Depth != nil:
			p.Context = *e.Depth
		case name[3] != "":
			p.Context, err = strconv.Atoi(name[3])
		}
		if err != nil || p.Context < 0 || p.Context > maxContext {
			return fail("test %q: depth out of 0..%d", *e.Test, maxContext)
		}
		for _, v := range []struct {
			key string
			tps *float64
			to  *float64
		}{{"tps", e.TPS, &p.Seconds}, {"min_tps", e.Min, &p.Max}, {"max_tps", e.Max, &p.Min}} {
			if v.tps == nil {
				v.tps = e.TPS
			}
			if !(*v.tps >= 1e-12 && *v.tps <= 1e12) {
				return fail("%s is %v, want tokens per second above 0", v.key, *v.tps)
			}
			*v.to = 1 / *v.tps
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("roofline: bench document has no result")
	}
	return out, nil
}

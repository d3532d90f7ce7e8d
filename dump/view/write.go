package view

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/template"

	"sluice/dump/inspect"
)

//go:embed page
var page embed.FS

// scripts are the page's parts in the order in which they build on each other.
var scripts = []string{"data.js", "scale.js", "heat.js", "chart.js", "main.js"}

// array says where a table lies in the data and what its numbers are.
type array struct {
	Type   string `json:"type"` // u8, u16, u32 or f64, little-endian
	Offset int    `json:"offset"`
	Length int    `json:"length"` // numbers
}

// recordingJSON is a recording for the script. Tables are row-major, time innermost in those of layers x time, experts
// innermost in the others.
type recordingJSON struct {
	Name      string           `json:"name"`
	Kind      string           `json:"kind"`
	Trace     bool             `json:"trace"` // has residency, bytes and drops
	Model     string           `json:"model"`
	Arch      string           `json:"arch"`
	Facts     [][2]string      `json:"facts"`
	Notes     []string         `json:"notes"`
	Records   uint64           `json:"records"`
	Slots     uint64           `json:"slots"`
	Ticks     int64            `json:"ticks"`
	Turns     int              `json:"turns"`
	Marks     []int64          `json:"marks"`
	KMin      int              `json:"kMin"`
	KMax      int              `json:"kMax"`
	NExpert   int              `json:"nExpert"`
	PerCell   int              `json:"perCell"`
	Cells     int              `json:"expertCells"`
	TimeTicks int64            `json:"timeTicks"`
	TimeBins  int64            `json:"timeBins"`
	PartTicks int64            `json:"partTicks"`
	PartBins  int64            `json:"partBins"`
	Layers    []Layer          `json:"layers"`
	Arrays    map[string]array `json:"arrays"`
}

// packer lays tables behind each other, each in the narrowest type that holds its numbers, aligned for typed arrays.
type packer struct{ data []byte }

func (p *packer) counts(v []uint32) array {
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	a := array{Offset: len(p.data), Length: len(v)}
	switch top := slices.Max(v); {
	case top < 1<<8:
		a.Type = "u8"
		for _, n := range v {
			p.data = append(p.data, byte(n))
		}
	case top < 1<<16:
		a.Type = "u16"
		for _, n := range v {
			p.data = binary.LittleEndian.AppendUint16(p.data, uint16(n))
		}
	default:
		a.Type = "u32"
		for _, n := range v {
			p.data = binary.LittleEndian.AppendUint32(p.data, n)
		}
	}
	return a
}

func (p *packer) sums(v []float64) array {
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	a := array{Type: "f64", Offset: len(p.data), Length: len(v)}
	for _, x := range v {
		p.data = binary.LittleEndian.AppendUint64(p.data, math.Float64bits(x))
	}
	return a
}

func (rec *Recording) json(p *packer) recordingJSON {
	x, g, t := &rec.x, &rec.g, &rec.tables
	j := recordingJSON{Name: rec.Name, Kind: rec.Kind.String(), Trace: rec.Kind == inspect.Trace, Model: rec.model, Arch: rec.arch,
		Facts: rec.facts, Notes: rec.Notes, Records: rec.Records, Slots: x.slots, Ticks: x.ticks, Turns: x.turns, Marks: append([]int64{}, x.marks...), // never null: the script walks them

		KMin: x.kMin, KMax: x.kMax, NExpert: rec.nExpert, PerCell: g.perCell, Cells: g.expertCells, TimeTicks: g.timeTicks, TimeBins: g.timeBins,
		PartTicks: g.partTicks, PartBins: g.partBins, Layers: rec.layers}
	j.Arrays = map[string]array{}
	for _, a := range t.list() {
		switch {
		case a.trace && !j.Trace:
		case a.sums != nil:
			j.Arrays[a.name] = p.sums(a.sums)
		default:
			j.Arrays[a.name] = p.counts(a.counts)
		}
	}
	return j
}

type named struct {
	name   string
	trace  bool // of traces only
	counts []uint32
	sums   []float64
}

// list names the tables for the script, in the order of the data.
func (t *tables) list() []named {
	return []named{
		{"picks", false, t.picks, nil}, {"known", false, t.known, nil}, {"weight", false, nil, t.weight},
		{"hit", true, t.hit, nil}, {"prefetch", true, t.prefetch, nil}, {"dropped", true, t.dropped, nil}, {"bytes", true, nil, t.bytes},
		{"tokens", false, t.tokens, nil}, {"slots", false, t.slots, nil}, {"reused", false, t.reused, nil}, {"compared", false, t.compared, nil},
		{"tHit", true, t.tHit, nil}, {"tPrefetch", true, t.tPrefetch, nil}, {"tDropped", true, t.tDropped, nil},
		{"tWeight", true, nil, t.tWeight}, {"tLost", true, nil, t.tLost}, {"tBytes", true, nil, t.tBytes}, {"prefill", true, t.prefill, nil},
		{"pPicks", false, t.pPicks, nil}, {"pMiss", true, t.pMiss, nil}, {"pDropped", true, t.pDropped, nil},
	}
}

// Write writes the page. The same recordings give the same bytes. The tables are compressed (gzip, which browsers since 2023
// undo themselves) and stand in the page as base64.
func Write(w io.Writer, recs []*Recording) error {
	if len(recs) == 0 {
		return errors.New("view: no recording to write a page of")
	}
	var p packer
	meta := []recordingJSON{}
	for _, rec := range recs {
		meta = append(meta, rec.json(&p))
	}
	head, err := json.Marshal(meta) // with <, > and & written as escapes, so that no name ends the script element
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err = z.Write(p.data); err == nil {
		err = z.Close()
	}
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	parts := map[string]string{"Meta": string(head), "Data": base64.StdEncoding.EncodeToString(packed.Bytes())}
	for _, name := range append([]string{"page.css"}, scripts...) {
		b, err := page.ReadFile("page/" + name)
		if err != nil {
			return fmt.Errorf("view: %w", err)
		}
		if name == "page.css" {
			parts["Style"] = string(b)
		} else {
			parts["Script"] += string(b)
		}
	}
	frame, err := template.ParseFS(page, "page/page.html")
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return frame.Execute(w, parts)
}

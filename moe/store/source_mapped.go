package store

import "fmt"

// NewMapped returns a source whose experts are views into the files' mappings, without a copy. Everything counts as
// resident; which pages are in memory is the kernel's affair, so ResidentBytes is 0. A file that experts lie in and that
// is not mapped is an error. The views are valid for as long as the mappings are.
func NewMapped(l *Layout) (Source, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	for _, f := range l.usedFiles() {
		if l.Files[f].Map == nil {
			return nil, fmt.Errorf("moe: %s: not mapped", l.Files[f].Name)
		}
	}
	return newFixedSource(expertViews(l, func(t *Extent) []byte {
		return l.Files[t.File].Map[t.Off : t.Off+t.Len : t.Off+t.Len]
	})), nil
}

// expertViews returns every expert of the layout with each projection that is present as view says.
func expertViews(l *Layout, view func(*Extent) []byte) [][]Expert {
	views := make([][]Expert, len(l.Experts))
	for layer, experts := range l.Experts {
		if experts == nil {
			continue
		}
		views[layer] = make([]Expert, len(experts))
		for e := range experts {
			for p := range projections {
				if t := experts[e].at(p); t.Len > 0 {
					views[layer][e].set(p, view(t))
				}
			}
		}
	}
	return views
}

package store

import (
	"fmt"
	"strings"
)

// Policy orders the resident experts of a cache for eviction. Ids are dense (Cache.ID). It decides from the sequence of
// calls alone and does no I/O, so that a replay of a recording and a live run execute the same code. Not safe for
// concurrent calls.
type Policy interface {
	// Insert adds an id that is not in the policy; bytes is what its slot takes of the budget.
	Insert(id int32, bytes int64)
	// Touch marks a hit on an id that is in the policy.
	Touch(id int32)
	// Remove takes out an id that is in the policy, evicted or not.
	Remove(id int32)
	// First returns the id to evict first, -1 when there is none.
	First() int32
	// Next returns the id to evict after id, -1 when there is none. Walking from First visits every id once.
	Next(id int32) int32
}

// policies lists the policies by name, in the order that Policies reports.
func policies() []policyRow {
	return []policyRow{
		{"lru", func(ids int, _ int64) Policy { return newLRU(ids) }},
		{"slru", func(ids int, budgetBytes int64) Policy { return newSLRU(ids, budgetBytes) }},
		{"lrfu", func(ids int, _ int64) Policy { return newLRFU(ids) }},
	}
}

type policyRow struct {
	name string
	make func(ids int, budgetBytes int64) Policy
}

// Policies returns the names that NewPolicy takes.
func Policies() []string {
	var names []string
	for _, p := range policies() {
		names = append(names, p.name)
	}
	return names
}

// NewPolicy returns an empty policy over the ids 0..ids-1 for a cache of budgetBytes. An unknown name is an error that
// lists the known ones.
func NewPolicy(name string, ids int, budgetBytes int64) (Policy, error) {
	for _, p := range policies() {
		if p.name == name {
			return p.make(ids, budgetBytes), nil
		}
	}
	return nil, fmt.Errorf("moe: unknown cache policy %q: want one of %s", name, strings.Join(Policies(), ", "))
}

// idLinks are the links of doubly linked lists over dense ids. An id is in at most one list at a time, so that lists
// share the two arrays and nothing is allocated per operation.
type idLinks struct{ prev, next []int32 }

func newIDLinks(ids int) idLinks {
	return idLinks{prev: make([]int32, ids), next: make([]int32, ids)}
}

// idList is one list's ends, -1 when empty; first is evicted first.
type idList struct{ first, last int32 }

func newIDList() idList { return idList{first: -1, last: -1} }

func (l *idLinks) push(list *idList, id int32) {
	l.prev[id], l.next[id] = list.last, -1
	if list.last < 0 {
		list.first = id
	} else {
		l.next[list.last] = id
	}
	list.last = id
}

func (l *idLinks) remove(list *idList, id int32) {
	prev, next := l.prev[id], l.next[id]
	if prev < 0 {
		list.first = next
	} else {
		l.next[prev] = next
	}
	if next < 0 {
		list.last = prev
	} else {
		l.prev[next] = prev
	}
}

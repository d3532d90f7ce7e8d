package store

// The protected segment's share of the budget, in percent: what the W-TinyLFU paper (Einziger, Friedman, Manes: TinyLFU,
// a highly efficient cache admission policy, 2017) gives the hot segment of its main cache. The remaining fifth is where
// an expert has to be demanded a second time to prove itself.
const slruProtectedPercent = 80

// slru is a segmented LRU (Karedla, Love, Wherry: Caching strategies to improve disk system performance, 1994), its
// segments bounded by bytes. An expert enters the probationary segment; a hit moves it to the protected one, whose
// oldest go back to the young end of the probationary segment while it is over its share. The probationary segment is
// evicted first, oldest first, then the protected one. One pass over many experts, as a prompt makes, thus leaves what
// is used again and again in place.
type slru struct {
	links          idLinks
	probation      idList
	protected      idList
	isProtected    []bool
	bytes          []int64 // by id
	protectedBytes int64
	protectedLimit int64
}

func newSLRU(ids int, budgetBytes int64) *slru {
	return &slru{
		links: newIDLinks(ids), probation: newIDList(), protected: newIDList(),
		isProtected: make([]bool, ids), bytes: make([]int64, ids),
		// Divided first: a budget near the largest int64 must not overflow.
		protectedLimit: budgetBytes/100*slruProtectedPercent + budgetBytes%100*slruProtectedPercent/100,
	}
}

func (p *slru) Insert(id int32, bytes int64) {
	p.bytes[id], p.isProtected[id] = bytes, false
	p.links.push(&p.probation, id)
}

func (p *slru) Touch(id int32) {
	if p.isProtected[id] {
		p.links.remove(&p.protected, id)
		p.links.push(&p.protected, id)
		return
	}
	p.links.remove(&p.probation, id)
	p.links.push(&p.protected, id)
	p.isProtected[id] = true
	p.protectedBytes += p.bytes[id]
	for p.protectedBytes > p.protectedLimit {
		old := p.protected.first
		p.Remove(old)
		p.Insert(old, p.bytes[old])
	}
}

func (p *slru) Remove(id int32) {
	if !p.isProtected[id] {
		p.links.remove(&p.probation, id)
		return
	}
	p.links.remove(&p.protected, id)
	p.isProtected[id] = false
	p.protectedBytes -= p.bytes[id]
}

func (p *slru) First() int32 {
	if p.probation.first >= 0 {
		return p.probation.first
	}
	return p.protected.first
}

func (p *slru) Next(id int32) int32 {
	next := p.links.next[id]
	if next < 0 && !p.isProtected[id] {
		return p.protected.first
	}
	return next
}

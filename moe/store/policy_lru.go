package store

// lru evicts the expert whose last use is the longest ago.
type lru struct {
	links idLinks
	list  idList
}

func newLRU(ids int) *lru { return &lru{links: newIDLinks(ids), list: newIDList()} }

func (p *lru) Insert(id int32, _ int64) { p.links.push(&p.list, id) }

func (p *lru) Touch(id int32) {
	p.links.remove(&p.list, id)
	p.links.push(&p.list, id)
}

func (p *lru) Remove(id int32) { p.links.remove(&p.list, id) }

func (p *lru) First() int32 { return p.list.first }

func (p *lru) Next(id int32) int32 { return p.links.next[id] }

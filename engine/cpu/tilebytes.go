package cpu

import "unsafe"

// eachTile visits the memory of one tile number, layer after layer of its class.
func (p *pool) eachTile(class int, at int32, visit func(b []byte)) {
	for i := range p.layers {
		t := &p.layers[i]
		if t.class != class {
			continue
		}
		k, v := int(at)*t.keyStep, int(at)*t.valStep
		switch {
		case t.k16 != nil:
			visit(memory(t.k16[k : k+t.keyStep]))
			visit(memory(t.v16[v : v+t.valStep]))
		case t.k32 != nil:
			visit(memory(t.k32[k : k+t.keyStep]))
			visit(memory(t.v32[v : v+t.valStep]))
		default:
			visit(memory(t.k8.Q[k : k+t.keyStep]))
			visit(memory(t.k8.D[k/32 : (k+t.keyStep)/32]))
			visit(memory(t.v8.Q[v : v+t.valStep]))
			visit(memory(t.v8.D[v/32 : (v+t.valStep)/32]))
		}
	}
}

// memory is x as bytes.
func memory[T int8 | uint16 | float32](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}

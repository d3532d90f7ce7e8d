// Command vec writes the assembly of the float operations: vectors, norms, activations, float products and attention.
// Each routine comes once for AVX2 and once for AVX-512, from one description over an isa.
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	set := flag.String("set", "", "routines to write: vec, exp, acts, dot or attend")
	flag.Parse()
	sets := map[string]func(isa){"vec": vectors, "exp": exponentials, "acts": quantisers, "dot": products, "attend": attention}
	write, ok := sets[*set]
	if !ok {
		log.Fatalf("vec: no set %q", *set)
	}
	ConstraintExpr("!noasm")
	write(isa{})
	write(isa{z: true})
	Generate()
}

// isa is AVX2, or AVX-512 when z is set. The unit of all routines is 16 float32: one Z register, or two Y registers.
type isa struct{ z bool }

func (v isa) name() string {
	if v.z {
		return "AVX512"
	}
	return "AVX2"
}

// r is vector register i.
func (v isa) r(i int) reg.VecPhysical {
	if v.z {
		return zmm[i]
	}
	return ymm[i]
}

func (v isa) bytes() int {
	if v.z {
		return 64
	}
	return 32
}

// per is the number of registers for 16 float32.
func (v isa) per() int { return 64 / v.bytes() }

var (
	zmm = []reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31}
	ymm = []reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15}
	xmm = []reg.VecPhysical{reg.X0, reg.X1, reg.X2, reg.X3, reg.X4, reg.X5, reg.X6, reg.X7, reg.X8, reg.X9, reg.X10, reg.X11, reg.X12, reg.X13, reg.X14, reg.X15}
)

// function opens a routine; doc is its loop in plain Go.
func (v isa) function(name, signature string, doc ...string) {
	TEXT(name+v.name(), NOSPLIT, signature)
	Pragma("noescape")
	Doc(append([]string{name + v.name() + ":"}, doc...)...)
}

func arg(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

func ret() {
	VZEROUPPER()
	RET()
}

// at addresses part of a run of floats: byte offset off behind p.
func at(p reg.Register, off int) Mem { return Mem{Base: p, Disp: off} }

// loop runs body while n, a positive multiple of 16, counts down by 16 with the pointers moving on by 16 elements of size bytes.
func loop(label string, n reg.GPVirtual, body func(), advance ...any) {
	Label(label)
	body()
	for i := 0; i < len(advance); i += 2 {
		ADDQ(Imm(uint64(16*advance[i+1].(int))), advance[i].(reg.GPVirtual))
	}
	SUBQ(Imm(16), n)
	JNE(LabelRef(label))
}

// Constants are kept as 16 copies, so that both register sizes can load them or use them in place.
var tables = map[string]Mem{}

func table(name string, bits ...uint32) Mem {
	m, ok := tables[name]
	if !ok {
		m = GLOBL(name, RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(bits[i%len(bits)]))
		}
		tables[name] = m
	}
	return m
}

func (v isa) zero(r reg.VecPhysical) {
	if v.z {
		VPXORD(r, r, r)
	} else {
		VPXOR(r, r, r)
	}
}

func (v isa) and(m, a, dst Op) {
	if v.z {
		VPANDD(m, a, dst)
	} else {
		VPAND(m, a, dst)
	}
}

func (v isa) or(m, a, dst Op) {
	if v.z {
		VPORD(m, a, dst)
	} else {
		VPOR(m, a, dst)
	}
}

// broadcast fills r with the float32 parameter.
func (v isa) broadcast(param string, r reg.VecPhysical) {
	m, err := Param(param).Resolve()
	if err != nil {
		log.Fatal(err)
	}
	VBROADCASTSS(m.Addr, r)
}

// fold leaves the sum of 16 lanes in element 0 of register 0, in Dot's order; the lanes are in register 0, and 1 for AVX2.
func (v isa) fold(tmp int) {
	t, tx := ymm[tmp], xmm[tmp]
	if v.z {
		VEXTRACTF64X4(Imm(1), reg.Z0, t)
		VADDPS(t, reg.Y0, reg.Y0)
	} else {
		VADDPS(reg.Y1, reg.Y0, reg.Y0)
	}
	VEXTRACTF128(Imm(1), reg.Y0, tx)
	VADDPS(tx, reg.X0, reg.X0)
	VPERMILPS(Imm(0xee), reg.X0, tx)
	VADDPS(tx, reg.X0, reg.X0)
	VPERMILPS(Imm(0x55), reg.X0, tx)
	VADDPS(tx, reg.X0, reg.X0)
}

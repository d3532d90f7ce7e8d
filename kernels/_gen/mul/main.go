// Command mul writes the assembly of the quantised matrix products: one instruction set and one kind of routine a run.
//
// Two shapes of routine share their names and layouts with mul_amd64.go:
//
//   - vec: eight weight rows times one row of activations, straight from the file's layout. Bound by memory.
//   - tile: a decoder that turns 16 weight rows of one chunk (256 columns) into codes interleaved for broadcast
//     activations, one routine a type; and a product of the decoded tile with any number of activation rows, one routine a
//     form of scales. Bound by multiplications.
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	set := flag.String("set", "", "routines to write: tile512, decode512, vec512, ...")
	flag.Parse()
	ConstraintExpr("!noasm")
	gen, ok := map[string]func(){
		"tile512":   tile512,
		"decode512": decoders(false),
		"decode256": decoders(true),
		"vec512":    vec512,
		"few512":    few512,
		"tile256":   tile256,
	}[*set]
	if !ok {
		log.Fatalf("mul: unknown set %q", *set)
	}
	gen()
	Generate()
}

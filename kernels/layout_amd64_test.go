//go:build !noasm

package kernels

import (
	"go/ast"
	"go/constant"
	"go/parser"
	gotoken "go/token"
	gotypes "go/types"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// The generators are a module of their own and cannot import this package, so they repeat its offsets, sizes and tables.
// The tests below read those numbers from the generators' sources and compare each by name: a field that moves, or a
// number that changes on one side only, fails before any assembly runs on it.

// genSource is the parsed source of one generator.
type genSource struct {
	dir   string
	fset  *gotoken.FileSet
	files map[string]*ast.File
}

func readGen(t *testing.T, dir string) genSource {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("_gen", dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("_gen/%s: %d files: %v", dir, len(names), err)
	}
	g := genSource{dir, gotoken.NewFileSet(), map[string]*ast.File{}}
	for _, name := range names {
		if g.files[filepath.Base(name)], err = parser.ParseFile(g.fset, name, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// constants returns the integer constants that a file declares.
func (g genSource) constants(t *testing.T, file string) map[string]uintptr {
	t.Helper()
	src, ok := g.files[file]
	if !ok {
		t.Fatalf("_gen/%s/%s is not there", g.dir, file)
	}
	alone := &ast.File{Name: ast.NewIdent("alone")}
	for _, d := range src.Decls {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == gotoken.CONST {
			alone.Decls = append(alone.Decls, d)
		}
	}
	pkg, err := new(gotypes.Config).Check("alone", g.fset, []*ast.File{alone}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uintptr{}
	for _, name := range pkg.Scope().Names() {
		if v, exact := constant.Uint64Val(constant.ToInt(pkg.Scope().Lookup(name).(*gotypes.Const).Val())); exact {
			out[name] = uintptr(v)
		}
	}
	return out
}

// elements returns the elements of the composite literal that a package variable is declared with, as source values.
func (g genSource) elements(t *testing.T, name string) []ast.Expr {
	t.Helper()
	for _, f := range g.files {
		if o := f.Scope.Lookup(name); o != nil {
			spec, ok := o.Decl.(*ast.ValueSpec)
			if !ok {
				break
			}
			for i, n := range spec.Names {
				if lit, ok := spec.Values[i].(*ast.CompositeLit); ok && n.Name == name {
					return lit.Elts
				}
			}
		}
	}
	t.Fatalf("_gen/%s declares no list %s", g.dir, name)
	return nil
}

func number(t *testing.T, e ast.Expr) float64 {
	t.Helper()
	tv, err := gotypes.Eval(gotoken.NewFileSet(), nil, gotoken.NoPos, gotypes.ExprString(e))
	if err != nil {
		t.Fatal(err)
	}
	v, _ := constant.Float64Val(constant.ToFloat(tv.Value))
	return v
}

func TestLayoutTile(t *testing.T) {
	got := readGen(t, "mul").constants(t, "layout.go")
	for name, want := range map[string]uintptr{
		"step":    unsafe.Sizeof(tile{}.d),
		"half":    unsafe.Sizeof(tile{}.d) / 2,
		"tileW":   unsafe.Offsetof(tile{}.w),
		"tileSc":  unsafe.Offsetof(tile{}.sc),
		"tileMin": unsafe.Offsetof(tile{}.mn),
		"tileD":   unsafe.Offsetof(tile{}.d),
		"tileM":   unsafe.Offsetof(tile{}.min),
		"tokQ":    unsafe.Offsetof(token{}.q),
		"tokD":    unsafe.Offsetof(token{}.d),
		"tokSums": unsafe.Offsetof(token{}.sums),
		"tokDst":  unsafe.Offsetof(token{}.dst),
		"tokMul":  unsafe.Offsetof(token{}.scale),
		"tokSize": unsafe.Sizeof(token{}),
		"fewRows": fewLanes,
		"fewMost": fewMost,
	} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("_gen/mul/layout.go: %s is %d (declared: %t), want %d", name, n, ok, want)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("_gen/mul/layout.go: %s is compared with nothing of this package", name)
	}
	// A row of sums is a step too.
	if a, b := unsafe.Sizeof(tileScratch{}.acc[0]), unsafe.Sizeof(tile{}.d); a != b {
		t.Errorf("a row of sums has %d bytes, want %d", a, b)
	}
}

func TestLayoutAttend(t *testing.T) {
	got := readGen(t, "vec").constants(t, "attention.go")
	for name, want := range map[string]uintptr{"kvTile": KVTile, "maxHead": MaxHeadDim} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("_gen/vec/attention.go: %s is %d (declared: %t), want %d", name, n, ok, want)
		}
	}
	for field, size := range map[string]uintptr{"off": unsafe.Sizeof(attendState{}.off[0]), "cnt": unsafe.Sizeof(attendState{}.cnt[0])} {
		if size != 8 {
			t.Errorf("attendState.%s has elements of %d bytes, the assembly steps by 8", field, size)
		}
	}
	if size := unsafe.Sizeof(attendState{}.w[0]); size != 4*got["kvTile"] {
		t.Errorf("attendState.w has rows of %d bytes, the assembly steps by %d", size, 4*got["kvTile"])
	}
}

// TestLayoutBlocks compares the bytes of a block that each decoder and each product walks over with the type's.
func TestLayoutBlocks(t *testing.T) {
	sizes := map[string]int{}
	for _, typ := range quantised() {
		sizes[strings.ReplaceAll(typ.String(), "_", "")] = typ.BlockBytes()
	}
	writers := map[string]bool{"d.super": true, "d.small": true, "superVec512": true, "smallVec512": true, "fewSuper": true, "fewSmall": true}
	found := map[string]int{}
	for file, f := range readGen(t, "mul").files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 3 || !writers[gotypes.ExprString(call.Fun)] {
				return true
			}
			name, ok := call.Args[0].(*ast.BasicLit)
			if !ok || name.Kind != gotoken.STRING {
				return true
			}
			size, ok := call.Args[1].(*ast.BasicLit)
			if !ok || size.Kind != gotoken.INT {
				return true
			}
			typ, _ := strconv.Unquote(name.Value)
			got, _ := strconv.Atoi(size.Value)
			want, known := sizes[typ]
			if !known || got != want {
				t.Errorf("_gen/mul/%s: %s has blocks of %d bytes, want %d", file, typ, got, want)
			}
			found[typ]++
			return true
		})
	}
	for _, typ := range quantised() {
		want := 2 // its decoders, into a tile and into registers
		if typ.hasVec() {
			want = 3
		}
		if name := strings.ReplaceAll(typ.String(), "_", ""); found[name] != want {
			t.Errorf("_gen/mul has %d block sizes of %v, want %d", found[name], typ, want)
		}
	}
}

// TestLayoutTables compares the numbers that assembly loads from its own memory.
func TestLayoutTables(t *testing.T) {
	mul := readGen(t, "mul")
	for name, want := range map[string]*[16]byte{"iq4Codes": &iq4Codes, "e2m1Codes": &e2m1Codes} {
		got := mul.elements(t, name)
		if len(got) != len(want) {
			t.Fatalf("_gen/mul: %s has %d values, want %d", name, len(got), len(want))
		}
		for i, e := range got {
			if n := number(t, e); n != float64(want[i]) {
				t.Errorf("_gen/mul: %s[%d] is %g, want %d", name, i, n, want[i])
			}
		}
	}
	want := map[string]float32{
		"expMax": expMax, "expMin": expMin, "expLog2E": expLog2E, "expMagic": expMagic, "expLn2Hi": expLn2Hi, "expLn2Lo": expLn2Lo,
		"expC2": expC2, "expC3": expC3, "expC4": expC4, "expC5": expC5, "expC6": expC6, "one": 1,
	}
	for _, e := range readGen(t, "vec").elements(t, "expBits") {
		kv := e.(*ast.KeyValueExpr)
		name, _ := strconv.Unquote(kv.Key.(*ast.BasicLit).Value)
		w, known := want[name]
		if got := float32(number(t, kv.Value)); !known || got != w {
			t.Errorf("_gen/vec: %s is %g, want %g", name, got, w)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("_gen/vec: expBits has no %s", name)
	}
}

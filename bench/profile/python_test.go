package profile

import "testing"

// What CPython prints for these.
func TestFloatPrintsAsPython(t *testing.T) {
	for f, want := range map[Float]string{0: "0.0", 1350: "1350.0", 0.1: "0.1", 1357596.3: "1357596.3", 1e15: "1000000000000000.0", 1e16: "1e+16",
		1.5e300: "1.5e+300", 1e-4: "0.0001", 1e-5: "1e-05", 2.5e-10: "2.5e-10", -41.13: "-41.13"} {
		if got := f.String(); got != want {
			t.Errorf("%v: %s, want %s", float64(f), got, want)
		}
	}
}

func TestRoundIsPythons(t *testing.T) {
	for _, c := range []struct {
		v    float64
		n    int
		want Float
	}{{0.25, 1, 0.2}, {0.35, 1, 0.3}, {0.75, 1, 0.8}, {2.675, 2, 2.67}, {1e22, 1, 1e22}, {-0.25, 1, -0.2}, {0.05, 1, 0.1}, {0.15, 1, 0.1}} {
		if got := round(c.v, c.n); got != c.want {
			t.Errorf("round(%v, %d) = %v, want %v", c.v, c.n, got, c.want)
		}
	}
}

func TestReprIsPythons(t *testing.T) {
	for s, want := range map[string]string{"a": `'a'`, "it's": `"it's"`, `it's "x"`: `'it\'s "x"'`, "a\\b\n\t\r": `'a\\b\n\t\r'`, "é\u200b": `'é\u200b'`,
		"\x00\x7f\u00a0": `'\x00\x7f\xa0'`, "\U000e0001": `'\U000e0001'`} {
		if got := repr(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

func TestInlineJSON(t *testing.T) {
	got, err := inlineJSON([]TopGap{{Op: `a,b:"c" \é` + "\U0001f600", GapUS: 1}})
	want := `[{"index": 0, "op": "a,b:\"c\" \\\u00e9\ud83d\ude00", "after": "", "gap_us": 1.0, "block": "", "layer": ""}]`
	if err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestCleanPath(t *testing.T) {
	for p, want := range map[string]string{"a.csv": "a.csv", "./a.csv": "a.csv", "a//b/./c": "a/b/c", "../a": "../a", "/x/../y/": "/x/../y", "": ".", ".": ".", "//a": "//a", "///a": "/a"} {
		if got := cleanPath(p); got != want {
			t.Errorf("%q: %s, want %s", p, got, want)
		}
	}
}

package profile

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

func TestParseNumber(t *testing.T) {
	for text, want := range map[string]float64{"": 0, " ": 0, "7": 7, " 11035\t": 11035, "1.5": 1.5, ".5": .5, "5.": 5, "-3": -3, "+3": 3, "1e3": 1000,
		"6831673963631": 6831673963631, "0.1": 0.1, "123456789012345678": 123456789012345678, "0.000000000000001": 1e-15, "\u00a012\u2003": 12, "007": 7} {
		if got, ok := parseNumber([]byte(text)); !ok || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{".", "-", "+", "e", "1e", "1_000", "0x10", "nan", "inf", "Infinity", "1e999", "1,5", "1 2", "--1", "1.2.3", "N/A", "\xff", "12a"} {
		if got, ok := parseNumber([]byte(text)); ok {
			t.Errorf("%q: taken as %v", text, got)
		}
	}
}

func TestParseNumberRoundsRight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		text := strconv.FormatFloat(rng.Float64()*math.Pow10(rng.IntN(12)), 'f', rng.IntN(16), 64)
		want, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := parseNumber([]byte(text)); !ok || got != want {
			t.Fatalf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestLogical(t *testing.T) {
	for text, want := range map[string]string{"32[16]": "16", "7": "7", " 7 ": "7", "": "?", "x": "?", "32[": "32", "32[]": "32", "32[16": "32", "[16]": "?", "32[16]x": "16", "-1": "?", "8 [4]": "8"} {
		if got := string(logical([]byte(text))); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

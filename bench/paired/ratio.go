package paired

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// confidence is what an interval is to cover of the median.
const confidence = 0.95

// LeastRounds is the number of rounds from which there is such an interval: of five, all lie on one side of the median once in 16.
const LeastRounds = 6

// Lowest is the ratio that a median must not be thought to lie below.
const Lowest = 0.96

// Figure is one thing that was measured in both programs, in each round once: larger is better.
type Figure struct {
	Name     string
	Old, New []float64 // by round
}

// Ratio is what the rounds of a figure say of new / old.
type Ratio struct {
	Rounds           int
	Median, Low, Top float64 // the median of the ratios and an interval that covers the true one
	Covers           float64 // the interval's confidence; below 0.95 only for fewer than LeastRounds rounds
}

// Holds tells whether the rounds leave it open that new is as fast as old, and exclude that it is slower than Lowest.
func (r Ratio) Holds() bool { return r.Covers >= confidence && r.Top >= 1 && r.Low >= Lowest }

// Ratio takes the ratios round by round. The interval is between two order statistics: the true median has as many of n
// ratios below it as a fair coin gives heads, whatever their distribution is. A figure without rounds gives NaN.
func (f Figure) Ratio() Ratio {
	n := min(len(f.Old), len(f.New))
	r := Ratio{Rounds: n, Median: math.NaN(), Low: math.NaN(), Top: math.NaN()}
	if n == 0 {
		return r
	}
	ratio := make([]float64, n)
	for i := range ratio {
		ratio[i] = f.New[i] / f.Old[i]
	}
	slices.Sort(ratio)
	r.Median = (ratio[(n-1)/2] + ratio[n/2]) / 2
	k, outside := 0, tail(n, 0)
	for k+1 < (n+1)/2 && 2*tail(n, k+1) <= 1-confidence {
		k++
		outside = tail(n, k)
	}
	r.Low, r.Top, r.Covers = ratio[k], ratio[n-1-k], max(0, 1-2*outside)
	return r
}

// tail is the probability of at most k heads of n throws.
func tail(n, k int) float64 {
	p, sum := math.Pow(0.5, float64(n)), 0.0
	for i := range k + 1 {
		sum += p
		p *= float64(n-i) / float64(i+1)
	}
	return sum
}

// Read takes lines "name old new", a round of a figure each, figures in the order in which they first come. An error names
// the line.
func Read(r io.Reader) ([]Figure, error) {
	var figures []Figure
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) != 3 {
			return nil, fmt.Errorf("paired: line %d: %d words, want name, old and new", n, len(words))
		}
		var v [2]float64
		for i, w := range words[1:] {
			x, err := strconv.ParseFloat(w, 64)
			if err != nil || !(x > 0) || math.IsInf(x, 0) {
				return nil, fmt.Errorf("paired: line %d: %q: want a number above 0", n, w)
			}
			v[i] = x
		}
		at := slices.IndexFunc(figures, func(f Figure) bool { return f.Name == words[0] })
		if at < 0 {
			at, figures = len(figures), append(figures, Figure{Name: words[0]})
		}
		f := &figures[at]
		f.Old, f.New = append(f.Old, v[0]), append(f.New, v[1])
	}
	return figures, lines.Err()
}

// WriteTable writes a line for each figure and returns whether every one holds.
func WriteTable(to io.Writer, figures []Figure) (bool, error) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "figure\told\tnew\tnew/old\t%.0f %% interval\trounds\t\n", 100*confidence)
	all := true
	for _, f := range figures {
		r := f.Ratio()
		verdict := "pass"
		switch {
		case r.Rounds < LeastRounds:
			verdict, all = fmt.Sprintf("no verdict: the interval covers %.0f %%, %d rounds are the least", 100*r.Covers, LeastRounds), false
		case r.Top >= 1 && r.Low < Lowest:
			verdict, all = "FAIL: too wide to tell, more rounds or a quieter machine would", false
		case !r.Holds():
			verdict, all = "FAIL", false
		}
		fmt.Fprintf(w, "%s\t%.5g\t%.5g\t%.4f\t%.4f to %.4f\t%d\t%s\n", f.Name, median(f.Old), median(f.New), r.Median, r.Low, r.Top, r.Rounds, verdict)
	}
	return all, w.Flush()
}

// median of some values, NaN of none.
func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return math.NaN()
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

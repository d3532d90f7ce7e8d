package tokenizer

// cased are the parameters of matchCased.
type cased struct {
	digits       int  // most digits in a word
	contractions bool // 's and the like end a word
}

// matchCased matches the expression of GPT-4o (digits 3, contractions) and of Mistral's Tekken (digits 1, none)
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
func matchCased(p cased) matcher {
	digits := matchNumber(p.digits)
	return func(t *runes, i, hi int) int {
		// The optional first character: any but a letter, a digit or a newline. It may be a mark, which the two
		// classes of letters have too: then there is a second chance without it.
		prefix := t.c[i]&(letter|number) == 0 && !newline(t.r[i])
		end := 0
		for _, try := range [2]func(*runes, int, int) int{capitalised, capitals} {
			if prefix {
				end = try(t, i+1, hi)
			}
			if end == 0 {
				end = try(t, i, hi)
			}
			if end > 0 {
				if p.contractions {
					end += contraction(t, end, hi, true)
				}
				return end - i
			}
		}
		if t.c[i]&number != 0 {
			return digits(t, i, hi)
		}
		isPunct := func(c class) bool { return c&(space|letter|number) == 0 }
		if n := punctuation(t, i, hi, isPunct, func(r rune) bool { return newline(r) || r == '/' }); n > 0 {
			return n
		}
		return matchLineEnd(t, i, hi)
	}
}

const (
	upperClass = upper | other | mark
	lowerClass = lower | other | mark
)

// capitalised returns the end of [upperClass]*[lowerClass]+ at i, 0 for no match. The first class is greedy: only where
// no lower-case letter follows its run does it give back, as far as the last rune that the second class takes as well.
func capitalised(t *runes, i, hi int) int {
	k := t.run(i, hi, upperClass)
	if end := t.run(k, hi, lowerClass); end > k {
		return end
	}
	for j := k - 1; j >= i; j-- {
		if t.c[j]&lowerClass != 0 {
			return j + 1
		}
	}
	return 0
}

// capitals returns the end of [upperClass]+[lowerClass]* at i, 0 for no match.
func capitals(t *runes, i, hi int) int {
	k := t.run(i, hi, upperClass)
	if k == i {
		return 0
	}
	return t.run(k, hi, lowerClass)
}

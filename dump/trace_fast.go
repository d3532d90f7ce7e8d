package dump

import "bytes"

// Recordings reach hundreds of megabytes, nearly all of them with the columns in the order in which the format was defined,
// those of several sequences with two more behind. For that order rows are taken straight from the reader's buffer. Whatever is not plain there (an error, a comment, a line
// over the buffer's end, digits beyond what a value needs) is left to the general path, which alone words errors.

// standardOrder tells whether the columns are the nine, ten or twelve known ones in the writer's order.
func standardOrder(kinds []uint8) bool {
	if len(kinds) != colDropped && len(kinds) != colDropped+1 && len(kinds) != colUnknown {
		return false
	}
	for i, k := range kinds {
		if int(k) != i {
			return false
		}
	}
	return true
}

// nextFast takes the next row from the buffer if it is plain. Without success nothing is consumed, and row has no
// meaning.
func (t *TraceReader) nextFast(row *TraceRow) bool {
	b, _ := t.br.Peek(t.br.Buffered())
	turn, i := plainUint(b, 0, ',')
	phase, i := oneCode(b, i)
	step, i := plainUint(b, i, ',')
	layer, i := plainUint(b, i, ',')
	slot, i := plainUint(b, i, ',')
	expert, i := plainUint(b, i, ',')
	if i >= len(b) || turn|step > maxTraceInt || phase > Decode || slot >= maxTraceID ||
		layer >= uint64(limitOr(t.pre.meta.NLayer)) || expert >= uint64(limitOr(t.pre.meta.NExpert)) {
		return false
	}
	row.WeightUnknown = false
	w, i := plainDecimal(b, i)
	if w >= 0 {
		row.Weight = w
	} else { // an exponent, nan, many digits
		n := bytes.IndexByte(b[i:], ',')
		if n < 0 || row.setWeight(b[i:i+n]) != "" {
			return false
		}
		i += n + 1
	}
	residency, i := oneCode(b, i)
	size, i := plainUint(b, i, t.end(colExpertBytes))
	dropped, seq, pass := uint64(0), uint64(0), uint64(0)
	if len(t.kinds) > colDropped {
		dropped, i = plainUint(b, i, t.end(colDropped))
	}
	if len(t.kinds) > colSeq {
		seq, i = plainUint(b, i, ',')
		pass, i = plainUint(b, i, '\n')
	}
	if i > len(b) || residency > HitPrefetch || dropped > 1 || seq > maxTraceInt || pass > maxPass {
		return false
	}
	row.Turn, row.Phase, row.Step, row.Layer, row.Slot, row.Expert = int(turn), int(phase), int(step), int(layer), int(slot), int(expert)
	row.Residency, row.ExpertBytes, row.Dropped, row.Extra = int(residency), int64(size), dropped == 1, t.extra
	row.Seq, row.Pass = int(seq), int64(pass)
	t.br.Discard(i)
	t.off = t.next
	t.next += int64(i)
	t.line++
	t.rows++
	return true
}

// end is what stands behind the field of a column.
func (t *TraceReader) end(col int) byte {
	if col == len(t.kinds)-1 {
		return '\n'
	}
	return ','
}

// notPlain is a position beyond every buffer: once reached, it is passed on to the end.
const notPlain = 1 << 40

// plainUint reads 1 to 18 digits at b[i:] and the byte end (before '\n' also "\r\n" is taken), and returns the position
// behind it; above len(b) when it is something else.
func plainUint(b []byte, i int, end byte) (n uint64, next int) {
	from := i
	for ; uint(i) < uint(len(b)); i++ {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		n = n*10 + uint64(d)
	}
	if i == from || i-from > 18 || i >= len(b) {
		return 0, notPlain
	}
	if b[i] == '\r' && end == '\n' && i+1 < len(b) {
		i++
	}
	if b[i] != end {
		return 0, notPlain
	}
	return n, i + 1
}

// oneCode reads one byte of a field whose values are single digits, and the comma behind it. What is no digit is above 9.
func oneCode(b []byte, i int) (n uint64, next int) {
	if uint(i+1) < uint(len(b)) && b[i+1] == ',' {
		return uint64(b[i] - '0'), i + 2
	}
	return 0, notPlain
}

// plainDecimal reads digits with at most one point among them and a comma behind. Up to 15 digits the number and the
// power of ten are exact in float64, so that the one division rounds as strconv does (Clinger, How to read floating point
// numbers accurately, 1990). A negative result: something else, and the position is unchanged.
func plainDecimal(b []byte, from int) (w float64, next int) {
	var n uint64
	digits, point := 0, -1
	for i := from; i < len(b); i++ {
		c := b[i]
		if d := c - '0'; d <= 9 {
			n = n*10 + uint64(d)
			digits++
			continue
		}
		if c == '.' && point < 0 {
			point = digits
			continue
		}
		if c != ',' || digits == 0 || digits > 15 {
			break
		}
		if point < 0 {
			point = digits
		}
		return float64(n) / pow10(digits-point), i + 1
	}
	return -1, from
}

// pow10 is 10^n for 0 <= n <= 15.
func pow10(n int) float64 {
	table := [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}
	return table[n]
}

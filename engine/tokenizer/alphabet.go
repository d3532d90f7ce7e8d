package tokenizer

import (
	"math"
	"unicode/utf8"
)

// The byte alphabet of GPT-2's encoder.py: vocabularies of byte-level BPE spell every byte as one printable character.
// The visible Latin-1 characters stand for themselves, the other 68 bytes take U+0100 and up in order.

// printableByte says whether b stands for itself.
func printableByte(b int) bool {
	return 0x21 <= b && b <= 0x7e || 0xa1 <= b && b <= 0xac || 0xae <= b && b <= 0xff
}

var byteRunes = func() (runes [256]rune) {
	next := rune(256)
	for b := range runes {
		if runes[b] = rune(b); !printableByte(b) {
			runes[b] = next
			next++
		}
	}
	return runes
}()

var runeBytes = func() (bytes [256 + 68]int16) {
	for i := range bytes {
		bytes[i] = -1
	}
	for b, r := range byteRunes {
		bytes[r] = int16(b)
	}
	return bytes
}()

// appendSpelled appends the spelling of the bytes of s.
func appendSpelled(dst, s []byte) []byte {
	for _, b := range s {
		dst = utf8.AppendRune(dst, byteRunes[b])
	}
	return dst
}

// appendUnspelled appends the bytes that a spelling stands for. A character outside the alphabet stands for its own
// UTF-8 bytes.
func appendUnspelled(dst []byte, spelling string) []byte {
	for i := 0; i < len(spelling); {
		r, n := utf8.DecodeRuneInString(spelling[i:])
		if int(r) < len(runeBytes) && runeBytes[r] >= 0 {
			dst = append(dst, byte(runeBytes[r]))
		} else {
			dst = append(dst, spelling[i:i+n]...)
		}
		i += n
	}
	return dst
}

// ordered maps finite floats to integers of the same order. Both zeros are equal.
func ordered(x float32) uint32 {
	b := math.Float32bits(x + 0)
	if b == 1<<31 {
		b = 0
	}
	if b>>31 != 0 {
		return ^b
	}
	return b | 1<<31
}

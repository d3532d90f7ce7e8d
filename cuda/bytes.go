//go:build cuda

package cuda

import "unsafe"

// Devices and files of this engine are little endian, as the machines are that it runs on.

// float32Bytes is the memory of x.
func float32Bytes(x []float32) []byte { return bytesOf(x) }

// int32Bytes is the memory of x.
func int32Bytes(x []int32) []byte { return bytesOf(x) }

func bytesOf[T float32 | int32](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
}

// float32s reads b, which is aligned to 4 bytes, as numbers.
func float32s(b []byte) []float32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
}

// int32s reads b, which is aligned to 4 bytes, as numbers.
func int32s(b []byte) []int32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(&b[0])), len(b)/4)
}

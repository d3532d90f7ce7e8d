"""Writes the *.bin files of this directory with ggml's own functions. See README.md.

usage: make_golden.py LIBGGML_BASE LIBGGML_CPU   (shared libraries; run in this directory)
"""
import ctypes, random, struct, sys

N = 512  # elements of the acts row and of each type's second row

# name: elements per block, bytes per block, offsets of float16 fields, symbol suffix, activation form of ggml's dot
TYPES = {
    "q4_0": (32, 18, [0], "q4_0", "q8_0"), "q4_1": (32, 20, [0, 2], "q4_1", "q8_1"),
    "q5_0": (32, 22, [0], "q5_0", "q8_0"), "q5_1": (32, 24, [0, 2], "q5_1", "q8_1"),
    "q8_0": (32, 34, [0], "q8_0", "q8_0"), "iq4_nl": (32, 18, [0], "iq4_nl", "q8_0"),
    "mxfp4": (32, 17, [], "mxfp4", "q8_0"),
    "q2_k": (256, 84, [80, 82], "q2_K", "q8_K"), "q3_k": (256, 110, [108], "q3_K", "q8_K"),
    "q4_k": (256, 144, [0, 2], "q4_K", "q8_K"), "q5_k": (256, 176, [0, 2], "q5_K", "q8_K"),
    "q6_k": (256, 210, [208], "q6_K", "q8_K"), "iq4_xs": (256, 136, [0], "iq4_xs", "q8_K"),
}
ACTS = {"q8_0": (32, 34), "q8_1": (32, 36), "q8_K": (256, 292)}
SCALES = [0x3C00, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x0000, 0x8000, 0x1234]


def main(base_path, cpu_path):
    base = ctypes.CDLL(base_path, mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(cpu_path)
    cpu.ggml_cpu_init()
    rng = random.Random(20240607)

    def dequantize(name, data, n):
        out = (ctypes.c_float * n)()
        getattr(base, "dequantize_row_" + name)(data, out, ctypes.c_int64(n))
        return bytes(out)

    def quantize(name, values, size):
        out = ctypes.create_string_buffer(size)
        src = (ctypes.c_float * len(values))(*values)
        getattr(base, "quantize_row_%s_ref" % name)(src, out, ctypes.c_int64(len(values)))
        return out.raw

    x = [rng.gauss(0, 1) * (8 if i % 97 == 0 else 1) for i in range(N)]
    x = list(struct.unpack("<%df" % N, struct.pack("<%df" % N, *x)))
    acts = {k: quantize(k, x, N // n * size) for k, (n, size) in ACTS.items()}
    with open("acts.bin", "wb") as f:
        f.write(struct.pack("<%df" % N, *x) + acts["q8_0"] + acts["q8_K"])

    for name, (n, size, halves, symbol, act) in TYPES.items():
        blocks = b""
        for i, scale in enumerate(SCALES if n == 32 else SCALES[:5]):
            b = bytearray({1: b"\xff" * size, 2: b"\x00" * size}.get(i, rng.randbytes(size)))
            for at in halves:
                struct.pack_into("<H", b, at, scale ^ (0x8000 if at != halves[0] else 0))
            if name == "mxfp4":
                b[0] = [127, 0, 1, 2, 252, 253, 254, 255][i]
            blocks += bytes(b)
        count = len(blocks) // size * n
        row = quantize(symbol, [rng.gauss(0, 0.05) for _ in range(N)], N // n * size)
        dot = ctypes.c_float()
        fn = getattr(cpu, "ggml_vec_dot_%s_%s_generic" % (symbol, act))
        z = ctypes.c_size_t(0)
        fn(ctypes.c_int(N), ctypes.byref(dot), z, row, z, acts[act], z, ctypes.c_int(1))
        with open(name + ".bin", "wb") as f:
            f.write(blocks + dequantize(symbol, blocks, count))
            f.write(row + dequantize(symbol, row, N) + struct.pack("<f", dot.value))


main(*sys.argv[1:])

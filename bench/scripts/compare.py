#!/usr/bin/env python3
"""compare.py DIR ROUNDS ARCH: the table of compare.sh from the JSON files of its rounds."""
import json
import statistics
import sys


def load(path):
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def speeds(doc):
    """{test: [tokens per second]} of our bench, our driver or llama-bench."""
    out = {}
    if isinstance(doc, list):  # llama-bench -o json
        for r in doc:
            test = "pp%d" % r["n_prompt"] if r["n_prompt"] else "tg%d" % r["n_gen"]
            out[test] = list(r["samples_ts"])
        return out
    for r in doc["results"]:
        out[r["test"]] = [r["tokens"] / s for s in r["seconds"]]
    return out


def main():
    folder, rounds, arch = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    ours, theirs, band, per_token = {}, {}, [], None
    for r in range(rounds):
        mine = load("%s/ours.%d" % (folder, r))
        for test, v in speeds(mine).items():
            ours.setdefault(test, []).extend(v)
        for x in mine["results"]:
            if x["test"].startswith("tg") and x.get("weight_bytes_per_token"):
                per_token = x["weight_bytes_per_token"]
        for test, v in speeds(load("%s/theirs.%d" % (folder, r))).items():
            theirs.setdefault(test, []).extend(v)
        band.append({m["pages"]: m["median_bytes_per_second"] for m in mine["probe"]["memory"]})
    print("architecture %s, %d rounds" % (arch, rounds))
    print("%-8s %26s %26s %7s" % ("test", "ours, tokens/s", "llama.cpp, tokens/s", "ratio"))

    def cell(v):
        return "%.1f [%.1f..%.1f]" % (statistics.median(v), min(v), max(v))

    for test in ours:
        if test not in theirs:
            continue
        a, b = ours[test], theirs[test]
        print("%-8s %26s %26s %7.2f" % (test, cell(a), cell(b), statistics.median(a) / statistics.median(b)))
    decode = [t for t in ours if t.startswith("tg")]
    if per_token and decode:
        rate = statistics.median(ours[decode[0]]) * per_token / 1e9
        print("decode reads %.1f MB of weights a token: %.1f GB/s" % (per_token / 1e6, rate))
        for kind in sorted({k for b in band for k in b}):
            v = [b[kind] / 1e9 for b in band if b.get(kind)]
            if v:
                print("  pages %-5s probe reads %s GB/s: decode at %.0f %%" % (kind, cell(v), 100 * rate / statistics.median(v)))


main()

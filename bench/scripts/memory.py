#!/usr/bin/env python3
"""Measures the resident memory of the engine with an expert cache, from /proc, against what it should be.

    python3 bench/scripts/memory.py                      # a synthetic model of 1.6 GB, made and removed
    python3 bench/scripts/memory.py --model m.gguf --cache-mb 2000 --chunk 512,2048 -- --dense mmap

The rule: with --cache-mb N the peak of resident memory stays within dense weights + N + KV cache + 64 MiB, and no page
of an expert becomes resident through the file's mapping. bench fills its context and both commands fill the cache, so
that neither part of the allowance is idle. Exit 1 when the rule is broken, 2 for wrong usage. Needs Linux and nothing
but the engine; what stands behind -- is handed to it.

Columns, in MiB: used is what the cache has mapped; peak is VmHWM, or the largest walk of smaps_rollup where that is
larger; over is peak - (dense + N + KV). anon over is RssAnon at its largest - (used + KV, and the dense weights where
they are copied): parts of the allowance that were never touched, such as most rows of the embedding in a mapping, hide
nothing in it. exp is what of the experts is resident in the mapping, but for the pages beside dense tensors that the
kernel maps along with a fault.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
LIMIT = 64 * MIB
FOLIO = 2 * MIB  # with a faulting page Linux maps the rest of its large folio of the page cache, up to this much
EXPERT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)(_exps|\.\d+)\.weight$")
WORDS = "in the beginning was a river and it ran down to the sea where men of old had built their towns".split()


def status(pid):
    """Rss and its parts in bytes, {} once the process has gone."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return {k: int(v.split()[0]) * 1024 for k, v in (l.split(":", 1) for l in f) if k in ("VmHWM", "RssAnon", "RssFile")}
    except (OSError, ValueError, IndexError):
        return {}


def rollup(pid):
    """Resident bytes by a walk of the page tables, which is exact where the counters of status are batched."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            return next(int(l.split()[1]) * 1024 for l in f if l.startswith("Rss:"))
    except (OSError, StopIteration):
        return 0


def resident_expert_pages(pid, model, spans):
    """Pages of experts that are present in the process's mappings of the model's files."""
    n = 0
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", 0) as pm:
            for line in maps:
                part = line.split(None, 5)
                if len(part) < 6 or part[5].strip() not in model:
                    continue
                lo, hi = (int(x, 16) for x in part[0].split("-"))
                base = int(part[2], 16)
                for off, end in spans[model[part[5].strip()]]:
                    first = max(lo, lo - base + (off + PAGE - 1) // PAGE * PAGE)
                    last = min(hi, lo - base + end // PAGE * PAGE)
                    if first >= last:
                        continue
                    raw = os.pread(pm.fileno(), (last - first) // PAGE * 8, first // PAGE * 8)
                    n += sum(e >> 63 for (e,) in struct.iter_unpack("<Q", raw[: len(raw) // 8 * 8]))
    except OSError:
        pass
    return n


def measure(cmd, model, spans):
    """Runs cmd and returns its peaks, its JSON document and its standard error."""
    peak = {"VmHWM": 0, "RssAnon": 0, "RssFile": 0, "rollup": 0, "expert": 0}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        p = subprocess.Popen(cmd, stdout=out, stderr=err)
        walk = 0.0
        while p.poll() is None:
            for k, v in status(p.pid).items():
                peak[k] = max(peak[k], v)
            if time.monotonic() >= walk:
                peak["rollup"] = max(peak["rollup"], rollup(p.pid))
                peak["expert"] = max(peak["expert"], resident_expert_pages(p.pid, model, spans))
                walk = time.monotonic() + 0.3
            time.sleep(0.005)
        out.seek(0)
        err.seek(0)
        log = err.read()
        if p.returncode != 0:
            sys.exit(f"memory.py: {' '.join(cmd)}: status {p.returncode}\n{log}")
        return peak, json.load(out), log


def describe(engine, path):
    """Dense bytes, expert bytes, and for every shard file the ranges in which experts lie."""
    info = json.loads(subprocess.run([engine, "gguf", "info", "--json", path], check=True, capture_output=True).stdout)
    shards = [path]
    if info["shards"] > 1:
        stem, count = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path).groups()
        shards = [f"{stem}-{i + 1:05d}-of-{count}.gguf" for i in range(int(count))]
    dense = experts = 0
    spans = [[] for _ in shards]
    for t in sorted(info["tensors"], key=lambda t: t["offset"]):
        if not EXPERT.fullmatch(t["name"]):
            dense += t["bytes"]
            continue
        experts += t["bytes"]
        span, lo, hi = spans[t["shard"]], t["offset"], t["offset"] + t["bytes"]
        if span and lo - span[-1][1] < PAGE:  # beside the one before, but for alignment
            lo = span.pop()[0]
        span.append((lo, hi))
    spans = [[(lo + FOLIO, hi - FOLIO) for lo, hi in span] for span in spans]
    return dense, experts, {os.path.realpath(s): i for i, s in enumerate(shards)}, spans


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    ap = argparse.ArgumentParser(description="Resident memory of the engine with an expert cache, against its bound.")
    ap.add_argument("--engine", default="bin/engine")
    ap.add_argument("--model", help="GGUF file (default: a synthetic one of 1.6 GB)")
    ap.add_argument("--cache-mb", type=numbers, default=[250, 1000], metavar="N,...")
    ap.add_argument("--chunk", type=numbers, default=[512], metavar="N,...", help="prompt chunks")
    ap.add_argument("--prompt", type=int, default=512, help="prompt tokens of bench; the context is this long")
    ap.add_argument("--tokens", type=int, default=16, help="tokens to decode")
    ap.add_argument("args", nargs="*", help="further arguments of the engine, behind --")
    a = ap.parse_args()
    if not os.access(a.engine, os.X_OK):
        ap.error(f"--engine {a.engine}: no such program (make builds bin/engine)")
    with tempfile.TemporaryDirectory() as tmp:
        model = a.model
        if model is None:
            model = os.path.join(tmp, "synthetic.gguf")
            subprocess.run([a.engine, "gguf", "synth", model, "--preset", "olmoe-1b-7b", "--arch", "qwen3moe", "--layers", "6",
                            "--type", "q4_k_m"], check=True)
        text = os.path.join(tmp, "prompt.txt")
        with open(text, "w") as f:
            f.write(" ".join(WORDS[i * i % 17 + i % 4] for i in range(a.prompt // 4)))
        return table(a, model, text)


def table(a, model, text):
    dense, experts, files, spans = describe(a.engine, model)
    print(f"model {os.path.basename(model)}: {dense / MIB:.1f} MiB dense, {experts / MIB:.1f} MiB in experts; page {PAGE} bytes; all figures MiB")
    print(f"{'command':8}{'chunk':>6}{'N':>7}{'used':>8}{'KV':>8}{'anon':>9}{'file':>8}{'peak':>9}{'over':>9}{'anon over':>11}{'exp':>7}  verdict")
    bad = 0
    common = ["-m", model, "--json", "-c", str(a.prompt), *a.args]
    for chunk in a.chunk:
        for mb in a.cache_mb:
            for verb, args in (("run", ["-f", text, "-n", str(a.tokens), "--ignore-eos", "--temp", "0"]),
                               ("bench", ["--pp", str(a.prompt), "--tg", str(a.tokens), "--repeat", "1"])):
                peak, doc, log = measure([a.engine, verb, *common, *args, "-b", str(chunk), "--cache-mb", str(mb)], files, spans)
                kv = float(re.search(r"tokens of context \(\w+, ([\d.]+) MiB\)", log).group(1)) * MIB
                used = doc["cache"]["resident_bytes"]
                rss = max(peak["VmHWM"], peak["rollup"])
                over = rss - (dense + mb * MIB + kv)
                anon = peak["RssAnon"] - (used + kv + (dense if "\nweights: anon" in log else 0))
                exp = peak["expert"] * PAGE
                ok = over < LIMIT and anon < LIMIT and exp == 0
                bad += not ok
                cols = [used, kv, peak["RssAnon"], peak["RssFile"], rss, over, anon, exp]
                width = [8, 8, 9, 8, 9, 9, 11, 7]
                print(f"{verb:8}{chunk:6}{mb:7}" + "".join(f"{c / MIB:{w}.1f}" for c, w in zip(cols, width)) + ("  ok" if ok else "  TOO MUCH"), flush=True)
    print(f"bound: over and anon over below {LIMIT // MIB}, exp 0: " + ("kept" if not bad else f"broken by {bad} runs"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

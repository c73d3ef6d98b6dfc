"""Ours against ONNX Runtime on one machine, turn about, medians of rounds: the table of eval/perf/README.md.

Usage: pair.py --reach PATH --python PATH --models DIR --tools DIR [--rounds 3] [--seconds 2] [--langs zh,en] [--avx2] [--tokens 256] [--out FILE]
--reach   the `reach` binary, built with optimisation; its models must be in REACH_MODELS
--python  a Python that has onnxruntime, tokenizers and numpy
--models  folder of the ONNX models (bge-small-zh-v15, bge-small-zh-v15-q, ...)
--tools   folder with baseline_embed.py and texts_{zh,en}.txt
--avx2    also ours with REACH_KERNEL=avx2 against their fp32
--tokens  also texts joined until they have about so many tokens
A round runs ours, theirs, and theirs at its best (two processes, sorted). Only ratios mean something: machines differ and are noisy.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile

ap = argparse.ArgumentParser()
for name in ("reach", "python", "models", "tools"):
    ap.add_argument("--" + name, required=True)
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--seconds", type=float, default=2)
ap.add_argument("--langs", default="zh,en")
ap.add_argument("--avx2", action="store_true")
ap.add_argument("--tokens", type=int, default=0)
ap.add_argument("--out")
a = ap.parse_args()


def lines(*command, **env):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return [json.loads(l) for l in done.stdout.splitlines() if l.startswith("{")]


def ours(lang, texts, **env):
    return lines(a.reach, "bench", "embed", "--lang", lang, "--texts", texts, "--seconds", str(a.seconds), "--rounds", "1", "--json", **env)[0]


def theirs(lang, texts, *more):
    return lines(a.python, f"{a.tools}/baseline_embed.py", a.models, texts, "--lang", lang, "--seconds", str(a.seconds), *more)


def joined(lang, texts):
    """Texts of about `--tokens` tokens: requests one after the other (a Chinese character is about a token, an English word 1.3)."""
    out, now, size = [], [], 0
    for line in open(texts, encoding="utf-8"):
        line = line.strip()
        now.append(line)
        size += len(line) if lang == "zh" else int(1.25 * len(line.split())) + 1
        if size >= a.tokens:
            out.append(("，" if lang == "zh" else ", ").join(now))
            now, size = [], 0
    handle, path = tempfile.mkstemp(suffix=f"_{lang}.txt", text=True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")
    return path


def row(lang, texts, rounds, label, best=True):
    """One comparison; every figure is the median over the rounds."""
    mine, alone, their, their_alone, their_best, mean = [], [], [], [], [], 0
    for _ in range(rounds):
        o = ours(lang, texts)
        mine.append(o["texts_per_s"])
        alone.append(o["p50_ms"])
        mean = o["tokens_a_text"]
        t = [x for x in theirs(lang, texts) if "int8" in x["model"]]
        their.append(max(x["texts_per_s"] for x in t))
        their_alone.append(min(x["p50_ms"] for x in t if x["batch"] == 1))
        if best:
            their_best.append(theirs(lang, texts, "--best")[0]["texts_per_s"])
    m = statistics.median
    return {
        "what": label, "tokens": mean, "kernel": o["kernel"], "machine": o["cpu"], "commit": o["commit"], "rounds": rounds,
        "ours_texts_per_s": m(mine), "onnx_texts_per_s": m(their), "ratio": round(m(x / y for x, y in zip(mine, their)), 2),
        "onnx_best_texts_per_s": m(their_best) if best else None,
        "ratio_best": round(m(x / y for x, y in zip(mine, their_best)), 2) if best else None,
        "ours_alone_ms": m(alone), "onnx_alone_ms": m(their_alone), "alone": round(m(x / y for x, y in zip(alone, their_alone)), 2),
    }


rows = []
for lang in a.langs.split(","):
    texts = f"{a.tools}/texts_{lang}.txt"
    rows.append(row(lang, texts, a.rounds, lang))
    if a.tokens:
        rows.append(row(lang, joined(lang, texts), a.rounds, f"{lang}, about {a.tokens} tokens", best=False))
    if a.avx2:
        pairs = []
        for _ in range(a.rounds):
            o = ours(lang, texts, REACH_KERNEL="avx2")
            pairs.append((o["texts_per_s"], max(x["texts_per_s"] for x in theirs(lang, texts) if "fp32" in x["model"])))
        m = statistics.median
        rows.append({"what": f"{lang}, AVX2 against their fp32", "kernel": "avx2", "rounds": a.rounds, "ours_texts_per_s": m(p[0] for p in pairs),
                     "onnx_texts_per_s": m(p[1] for p in pairs), "ratio": round(m(x / y for x, y in pairs), 2)})
for r in rows:
    print(json.dumps(r, ensure_ascii=False), flush=True)
if a.out:
    with open(a.out, "w", encoding="utf-8") as file:
        json.dump(rows, file, ensure_ascii=False, indent=1)
        file.write("\n")

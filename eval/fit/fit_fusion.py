"""Fits the fusion weights from feature dumps of `reach eval run --features`.

Usage: fit_fusion.py OUT.json DUMP.jsonl … [--leave-out]
A dump is one situation (a set, with or without examples). Every situation counts the same, whatever its size. Model: score = Σ w·x, softmax over the
candidates of a query, loss = −ln(share of the right ones) + l2·Σ(w·sd)²; weights are ≥ 0 (evidence may not count against a candidate) except those in
NEGATIVE, which are ≤ 0. --leave-out prints top-1/top-3 on each situation with every situation of the same family left out of the fit.
Needs numpy and scipy. Use train and dev queries only.
"""
import argparse, json, os
import numpy as np
from scipy.optimize import minimize

FEATURES = ["gap_name", "gap_description", "gap_centred", "gap_dense", "gap_examples", "gap_label", "gap_schema", "bm25", "cov_schema",
            "name_covered", "name_run", "name_grams", "grams", "schema_covered", "schema_grams", "covered", "hub", "rich"]
NEGATIVE = {"hub", "rich"}


def read(path):
    with open(path, encoding="utf-8") as f:
        names = json.loads(next(f))["features"]
        place = [names.index(n) for n in FEATURES]
        queries = []
        for line in f:
            q = json.loads(line)
            if not q["in_scope"] or not any(i["right"] for i in q["items"]):
                continue
            x = np.array([[i["x"][p] for p in place] for i in q["items"]])
            y = np.array([i["right"] for i in q["items"]], float)
            queries.append((x, y))
        return queries


def pack(situations):
    xs, ys, lens, weight = [], [], [], []
    for queries in situations:
        for x, y in queries:
            xs.append(x); ys.append(y); lens.append(len(y)); weight.append(1 / max(1, len(queries)))
    lens = np.array(lens); start = np.r_[0, np.cumsum(lens)[:-1]]
    w = np.array(weight); w /= w.sum()
    return np.vstack(xs), np.concatenate(ys), lens, start, w


def fit(situations, l2=2e-3):
    X, y, lens, start, w = pack(situations)
    q = np.repeat(np.arange(len(lens)), lens)
    mean = np.add.reduceat(X, start) / lens[:, None]
    sd = np.sqrt(((X - mean[q]) ** 2).mean(0)) + 1e-6
    Z = X / sd

    def loss(v):
        t = Z @ v
        t -= np.maximum.reduceat(t, start)[q]
        e = np.exp(t)
        p = e / np.add.reduceat(e, start)[q]
        right = np.maximum(np.add.reduceat(p * y, start), 1e-12)
        g = Z.T @ ((p - p * y / right[q]) * w[q])
        return -(w * np.log(right)).sum() + l2 * v @ v, g + 2 * l2 * v

    bounds = [(None, 0) if n in NEGATIVE else (0, None) for n in FEATURES]
    r = minimize(loss, np.zeros(len(FEATURES)), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500})
    return r.x / sd, r.x


def hits(queries, w):
    out = []
    for x, y in queries:
        order = np.argsort(-(x @ w), kind="stable")[:3]
        out.append([y[order[0]], y[order].max()])
    return 100 * np.mean(out, 0)


def arm(queries, name):
    w = np.zeros(len(FEATURES)); w[FEATURES.index(name)] = 1
    return hits(queries, w)


def family(path):
    return os.path.basename(path).split(".")[0].replace("_fewshot", "").replace("_zh", "").replace("_en", "")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("out"); ap.add_argument("dumps", nargs="+"); ap.add_argument("--leave-out", action="store_true")
    a = ap.parse_args()
    data = {p: read(p) for p in a.dumps}
    w, scaled = fit(list(data.values()))
    for n, v, s in sorted(zip(FEATURES, w, scaled), key=lambda t: -abs(t[2])):
        print(f"{n:18} {v:9.4f}  per spread {s:7.3f}")
    show = lambda t: f"{t[0]:.1f} / {t[1]:.1f}"
    print("(over queries whose right answer was recalled)")
    for p, queries in data.items():
        row = [show(arm(queries, "gap_dense")), show(arm(queries, "bm25")), show(hits(queries, w))]
        if a.leave_out:
            others = [d for o, d in data.items() if family(o) != family(p)]
            if others:
                row.append(show(hits(queries, fit(others)[0])))
        print(f"{os.path.basename(p):32} {len(queries):5}  dense {row[0]}  words {row[1]}  fused {row[2]}" + (f"  family left out {row[3]}" if len(row) > 3 else ""))
    model = {"kind": "linear", "mean": [0.0] * len(FEATURES), "scale": [1.0] * len(FEATURES), "weights": [round(float(v), 6) for v in w], "bias": 0.0}
    keep = [i for i, v in enumerate(w) if abs(v) > 1e-9]
    model = {"kind": "linear", "mean": [0.0] * len(keep), "scale": [1.0] * len(keep), "weights": [model["weights"][i] for i in keep], "bias": 0.0}
    json.dump({"features": [FEATURES[i] for i in keep], "temperature": 1.0, "members": [{"weight": 1.0, "model": model}]}, open(a.out, "w"), indent=1)

"""Fits how far the confidence believes what was learned, from dumps of `reach eval run --features` after learning.

Usage: fit_learned.py src/route/weights/confidence.json DUMP.jsonl=COUNT … ; COUNT = labelled texts a capability in that run (5 examples, 10 outcomes …).
Model: logit(right) = (1 − e)·zero-shot + e·(w0 + w1·logit(share_1) + w2·zero-shot + w3·in-scope), e = COUNT/(COUNT + 2). Every dump counts the same.
Dumps must be of dev splits, after outcomes of train splits without negatives. Prints the four weights, and for each dump calibration error and shares with
its family of sets left out. Needs numpy and scipy.
"""
import json, os, sys
import numpy as np
from scipy.optimize import minimize

shipped = json.load(open(sys.argv[1], encoding="utf-8"))


def linear(scorer, names, x):
    m = scorer["members"][0]["model"]
    at = [names.index(f) for f in scorer["features"]]
    return m["bias"] + sum(w * (x[i] - mean) / s for w, mean, s, i in zip(m["weights"], m["mean"], m["scale"], at))


def read(path):
    with open(path, encoding="utf-8") as f:
        names = json.loads(next(f))["confidence"]
        rows = []
        for line in f:
            q = json.loads(line)
            if q["items"]:
                x = q["confidence"]
                share = min(max(x[names.index("share_1")], 1e-4), 1 - 1e-4)
                rows.append([linear(shipped["right"], names, x), np.log(share / (1 - share)), linear(shipped["in_scope"], names, x),
                             q["in_scope"], q["items"][0]["right"]])
    return np.array(rows, float)


runs = {}
for argument in sys.argv[2:]:
    path, count = argument.rsplit("=", 1)
    runs[path] = (read(path), float(count) / (float(count) + 2))
sigmoid = lambda z: 1 / (1 + np.exp(-z))
parts = lambda d: np.column_stack([np.ones(len(d)), d[:, 1], d[:, 0], d[:, 2]])
family = lambda p: os.path.basename(p).split(".")[0].replace("d_", "").split("_")[0]


def fit(paths, l2=1e-2):
    def loss(w):
        total, slope = l2 * w @ w, 2 * l2 * w
        for p in paths:
            d, e = runs[p]
            x, y = parts(d), d[:, 4]
            q = sigmoid((1 - e) * d[:, 0] + e * (x @ w))
            total -= np.mean(y * np.log(q + 1e-9) + (1 - y) * np.log(1 - q + 1e-9))
            slope = slope + x.T @ ((q - y) * e) / len(d)
        return total, slope
    return minimize(loss, np.zeros(4), jac=True).x


def report(path, w):
    d, e = runs[path]
    q, y = sigmoid((1 - e) * d[:, 0] + e * (parts(d) @ w)), d[:, 4]
    b = np.minimum((q * 10).astype(int), 9)
    error = sum(abs(q[b == i].sum() - y[b == i].sum()) for i in range(10)) / len(q)
    auto = q >= shipped["point"]["auto"]
    return f"calibration error {error:.3f}, auto {auto.mean():.2f}, precision {y[auto].mean():.3f}"


w = fit(list(runs))
print("weights", [round(float(v), 3) for v in w])
for path in runs:
    print(path, "| fitted:", report(path, w), "| left out:", report(path, fit([p for p in runs if family(p) != family(path)])))

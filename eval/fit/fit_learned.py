"""Fits how far the confidence believes what was learned, from dumps of `reach eval run --features` after learning.

Usage: fit_learned.py src/route/weights/confidence.json DUMP.jsonl=COUNT … ; COUNT = labelled texts a capability in that run (5 examples, 10 outcomes …).
Model: logit(right) = (1 − e)·zero-shot + e·(w0 + w1·logit(share_1) + w2·zero-shot + w3·in-scope), e = COUNT/(COUNT + 2). Every dump counts the same.
Dumps must be of dev splits, after outcomes of train splits. Prints the four weights, and for each dump calibration error and shares with its family of
sets left out; and `auto_learned`: the lowest threshold at which `auto` keeps the stated precision on average, and the least on every dump, where the
dump was left out of the fit, for ten outcomes and more. Needs numpy and scipy.
"""
import json, os, sys
import numpy as np
from scipy.optimize import minimize
from fit_confidence import REACH

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
                x[names.index("reach")] = min(x[names.index(n)] - r for n, r in zip(("over_talk_ceiling", "over_foreign_talk"), REACH))
                share = min(max(x[names.index("share_1")], 1e-4), 1 - 1e-4)
                rows.append([linear(shipped["right"], names, x), np.log(share / (1 - share)), linear(shipped["in_scope"], names, x),
                             q["in_scope"], q["items"][0]["right"]])
    return np.array(rows, float)


STRANGERS = 0.18  # share of traffic out of scope that every dump is weighed to, where it has enough to say something


def weights(d):
    inside = d[:, 3] > 0
    if (~inside).sum() < 20:
        return np.full(len(d), 1 / len(d))
    return np.where(inside, (1 - STRANGERS) / inside.sum(), STRANGERS / (~inside).sum())


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
            q, v = sigmoid((1 - e) * d[:, 0] + e * (x @ w)), weights(d)
            total -= v @ (y * np.log(q + 1e-9) + (1 - y) * np.log(1 - q + 1e-9))
            slope = slope + x.T @ (v * (q - y) * e)
        return total, slope
    return minimize(loss, np.zeros(4), jac=True).x


def report(path, w):
    d, e = runs[path]
    q, y = sigmoid((1 - e) * d[:, 0] + e * (parts(d) @ w)), d[:, 4]
    b, v = np.minimum((q * 10).astype(int), 9), weights(d)
    error = sum(abs((v * q)[b == i].sum() - (v * y)[b == i].sum()) for i in range(10))
    auto = q >= shipped["point"]["auto"]
    return f"calibration error {error:.3f}, auto {v[auto].sum():.2f}, precision {v[auto] @ y[auto] / v[auto].sum():.3f}"


w = fit(list(runs))
print("weights", [round(float(v), 3) for v in w])
for path in runs:
    print(path, "| fitted:", report(path, w), "| left out:", report(path, fit([p for p in runs if family(p) != family(path)])))
AIM, LEAST, ENOUGH = 0.95, 0.88, 10
left = [(p, fit([o for o in runs if family(o) != family(p)]), *runs[p]) for p in runs]
taught = [(p, sigmoid((1 - e) * d[:, 0] + e * (parts(d) @ w)), d, weights(d)) for p, w, d, e in left if e >= ENOUGH / (ENOUGH + 2)]
for t in np.arange(0.6, 0.99, 0.01):
    precision = [v[q >= t] @ d[q >= t, 4] / v[q >= t].sum() for _, q, d, v in taught]
    if np.mean(precision) >= AIM and min(precision) >= LEAST:
        print(f"auto_learned {t:.2f}")
        for p, q, d, v in taught:
            a, out = q >= t, d[:, 3] == 0
            print(f"{os.path.basename(p):32} auto {v[a].sum():.2f} precision {v[a] @ d[a, 4] / v[a].sum():.3f} out of scope auto {a[out].mean():.2f}")
        break

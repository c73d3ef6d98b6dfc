"""Fits DOUBT of src/route/confidence.rs: how far doubt that anybody can do it is doubt that the best candidate is right.

    python3 eval/fit/fit_doubt.py src/route/weights/confidence.json DUMP...

DUMP: features of a dev split (`reach eval run ... --split dev --features DUMP`). Each dump counts the same, and requests out of scope as 15 % of it: the
sets' own shares differ from 1 to 16 %, and the heads were fitted where they are rare. Prints the three weights, and for each dump the calibration error
and what of its requests out of scope is among the surest 40 % before and after.
"""
import json
import sys

import numpy as np
from scipy.optimize import minimize

OUTSIDE, SUREST = 0.15, 0.4


def linear(head, names, row):
    model = head["members"][0]["model"]
    at = [names.index(n) for n in head["features"]]
    x = (np.array([row[i] for i in at]) - model["mean"]) / np.array(model["scale"])
    return float(x @ np.array(model["weights"]) + model["bias"]) * head["members"][0]["weight"] / head["temperature"]


def read(path, heads):
    rows = []
    with open(path) as lines:
        names = json.loads(next(lines))["confidence"]
        for query in map(json.loads, lines):
            if query["items"]:
                right, scope = (linear(heads[h], names, query["confidence"]) for h in ("right", "in_scope"))
                rows.append((1.0, right, min(0.0, scope), query["answer"]["right"], query["in_scope"]))
    return np.array(rows, float)


def weights(rows):
    inside = rows[:, 4] > 0
    share = (~inside).mean()
    w = np.where(inside, (1 - OUTSIDE) / max(1 - share, 1e-9), OUTSIDE / max(share, 1e-9))
    return w / w.sum()


def figures(rows, logits):
    w, p, right = weights(rows), 1 / (1 + np.exp(-logits)), rows[:, 3]
    place = np.minimum((p * 10).astype(int), 9)
    error = sum(abs(((p - right) * w)[place == i].sum()) for i in range(10))
    outside = rows[:, 4] == 0
    surest = np.argsort(-logits)[: int(SUREST * len(rows))]
    return f"{error:.3f} {outside[surest].sum() / max(outside.sum(), 1):.3f}"


def main():
    heads = json.load(open(sys.argv[1]))
    dumps = {path: read(path, heads) for path in sys.argv[2:]}
    x = np.vstack(list(dumps.values()))
    w = np.concatenate([weights(r) for r in dumps.values()])
    loss = lambda b: (w * np.logaddexp(0, -(2 * x[:, 3] - 1) * (x[:, :3] @ b))).sum()
    b = minimize(loss, np.array([0.0, 1.0, 0.0]), method="BFGS").x
    print("DOUBT", [round(float(v), 3) for v in b])
    for path, rows in dumps.items():
        print(path, "before", figures(rows, rows[:, 1]), "after", figures(rows, rows[:, :3] @ b))


main()

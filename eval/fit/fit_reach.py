"""Chooses the two distances of `REACH` in src/route/confidence.rs from feature dumps of `reach eval run --features`.

Usage: fit_reach.py DUMP.jsonl …
A request is taken for out of scope when the best of the fleet lies less than A over what talk reaches on the same fleet, or less than B over its likeness
to talk that the fleet does not answer (both in model spreads). Of all pairs (A, B) that cost no situation more than NONE of its in-scope requests, the
one that finds the most out-of-scope requests is taken, averaged over the situations that have enough of them; then the same with each family of sets
left out, to show how well it carries over. Needs numpy. Use train and dev queries only.
"""
import json, os, sys
import numpy as np
from fit_fusion import family

NONE, ENOUGH = 0.045, 20
A, B = np.arange(-2.5, 1.0, 0.05), np.arange(-3.0, 1.0, 0.05)


def read(path):
    with open(path, encoding="utf-8") as f:
        names = json.loads(next(f))["confidence"]
        at = [names.index("over_talk_ceiling"), names.index("over_foreign_talk")]
        rows = [([q["confidence"][i] for i in at], q["in_scope"]) for q in map(json.loads, f) if q["items"]]
    return np.array([r[0] for r in rows]), np.array([r[1] for r in rows])


def shares(x, inside):
    """none[a, b] = share answered `none`, in scope and out of it."""
    far = lambda rows: np.array([[((rows[:, 0] < a) | (rows[:, 1] < b)).mean() for b in B] for a in A])
    return far(x[inside]), far(x[~inside])


data = {p: read(p) for p in sys.argv[1:]}
table = {p: shares(*d) for p, d in data.items() if (~d[1]).sum() >= ENOUGH}
everywhere = {p: shares(*d)[0] for p, d in data.items()}


def choose(paths):
    allowed = np.all([everywhere[p] <= NONE for p in paths], axis=0)
    found = np.mean([table[p][1] for p in paths if p in table], axis=0)
    return np.unravel_index(np.where(allowed, found, -1).argmax(), found.shape)


i, j = choose(list(data))
print(f"REACH = ({A[i]:.2f}, {B[j]:.2f})")
for p in data:
    k, l = choose([o for o in data if family(o) != family(p)])
    out = lambda i, j: f"in scope none {everywhere[p][i, j]:.3f}" + (f", out of scope none {table[p][1][i, j]:.2f}" if p in table else "")
    print(f"{os.path.basename(p):32} {out(i, j)} | left out ({A[k]:.2f}, {B[l]:.2f}): {out(k, l)}")

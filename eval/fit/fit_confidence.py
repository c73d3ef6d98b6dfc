"""Fits the confidence from feature dumps of `reach eval run --features` (made with the fusion weights that are shipped).

Usage: fit_confidence.py OUT.json DUMP.jsonl … [--fusion src/route/weights/fusion.json]
With --fusion the list is ordered anew by those weights, so that one dump serves both fits.
Two logistic heads over the features of the whole list: the best candidate is right (out of scope = wrong), and anybody can do it (in scope and out of
scope weighed alike: a prior of one half). Every situation counts the same. It prints calibration error, AUROC and what the operating point gives on each situation with its family left out.
The operating point: `auto` where every situation keeps the stated precision on the left-out probabilities, `suggest` where in-scope requests answered
`none` stay under the stated share. Needs numpy and scipy. Use train and dev queries only.
"""
import argparse, json, os, re
import numpy as np
from scipy.optimize import minimize
from fit_fusion import family

AIM_PRECISION, AIM_NONE = 0.92, 0.04
# what tells that nobody fits: whether the best of the fleet is near enough at all (fit_reach.py). More features fit the sets better and carry over
# worse: with them the share found on a family of sets left out of the fit falls.
SCOPE = ["reach"]
SURE = 0.65  # whoever is right with this probability is not answered with `none`; as in src/route/confidence.rs
ENOUGH = 20  # out-of-scope requests a situation needs to say something about scope

LEFT_OUT = {"fleet_z", "over_talk_ceiling", "over_foreign_talk", "reach", "q_fleet", "q_examples", "q_schema", "q_words", "q_known"}  # the first can't be had for another order of the list; the others carry a set's make-up, not evidence


def reorder(q, head, fusion):
    """Items by the new weights, and the features of the confidence for that order."""
    place = [head["features"].index(n) for n in fusion["features"]]
    model = fusion["members"][0]["model"]
    w = np.array(model["weights"]) / np.array(model["scale"]) / fusion["temperature"]
    items = q["items"]
    x = np.array([i["x"] for i in items])
    score = x[:, place] @ w
    order = np.argsort(-score, kind="stable")
    old, new = items[0]["x"], items[order[0]]["x"]
    distinct, seen = [], set()
    for i in order:
        if items[i]["folded"] not in seen:
            seen.add(items[i]["folded"]); distinct.append(score[i])
    e = np.exp(np.array(distinct) - distinct[0]); p = e / e.sum()
    share = lambda k: p[k] if k < len(p) else 0.0
    at = {n: k for k, n in enumerate(head["features"])}
    out = dict(zip(head["confidence"], q["confidence"]))
    for n in out:
        if n in at:
            out[n] = new[at[n]]
    out["fused"] = float(np.clip(distinct[0], -30, 30))
    out["lead"] = float(np.clip(distinct[0] - distinct[1], 0, 12)) if len(distinct) > 1 else 12.0
    out["share_1"], out["share_2"], out["share_3"] = share(0), share(1), share(2)
    out["entropy"] = float(-(p[p > 1e-9] * np.log(p[p > 1e-9])).sum())
    out["talk"] = float(np.clip(out["talk"] + new[at["absolute"]] - old[at["absolute"]], -8, 8))
    q["items"] = [items[i] for i in order]
    q["confidence"] = [out[n] for n in head["confidence"]]


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REACH = [float(v) for v in re.search(r"REACH: \(f32, f32\) = \((.*)\);", open(os.path.join(ROOT, "src/route/confidence.rs"), encoding="utf-8").read())[1].split(",")]


def read(path, fusion=None):
    with open(path, encoding="utf-8") as f:
        head = json.loads(next(f))
        keep = [i for i, n in enumerate(head["confidence"]) if n not in LEFT_OUT]
        names = [head["confidence"][i] for i in keep]
        reach = [head["confidence"].index(n) for n in SCOPE]
        x, s, right, scope, held, named = [], [], [], [], [], []
        for line in f:
            q = json.loads(line)
            if not q["items"]:
                continue
            if fusion:
                reorder(q, head, fusion)
            # by the distances that are in force, whichever were when the dump was made
            near = [q["confidence"][head["confidence"].index(n)] for n in ("over_talk_ceiling", "over_foreign_talk")]
            q["confidence"][head["confidence"].index("reach")] = min(n - r for n, r in zip(near, REACH))
            x.append([q["confidence"][i] for i in keep])
            s.append([q["confidence"][i] for i in reach])
            right.append(q["items"][0]["right"])
            scope.append(q["in_scope"])
            held.append(any(i["right"] for i in q["items"][:5]))
            named.append(q["items"][0]["named"])
        return {"names": names, "x": np.array(x), "s": np.array(s), "right": np.array(right, float), "scope": np.array(scope, float), "held": np.array(held), "named": np.array(named)}


def logistic(situations, target):
    rows, l2 = ("s", 1e-2) if target == "scope" else ("x", 3e-3)
    if target == "scope":
        situations = [d for d in situations if (1 - d["scope"]).sum() >= ENOUGH]
    X = np.vstack([d[rows] for d in situations]); y = np.concatenate([d[target] for d in situations])
    alike = lambda t: np.where(t > 0, 0.5 / t.sum(), 0.5 / (1 - t).sum())
    w = np.concatenate([alike(d[target]) if target == "scope" else np.full(len(d["x"]), 1 / len(d["x"])) for d in situations]); w /= w.sum()
    mean, sd = X.mean(0), X.std(0) + 1e-3
    Z = (X - mean) / sd

    def loss(v):
        t = Z @ v[:-1] + v[-1]
        p = 1 / (1 + np.exp(-t))
        value = (w * (np.logaddexp(0, t) - y * t)).sum() + l2 * v[:-1] @ v[:-1]
        r = w * (p - y)
        return value, np.r_[Z.T @ r + 2 * l2 * v[:-1], r.sum()]

    r = minimize(loss, np.zeros(X.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return mean, sd, r.x[:-1], r.x[-1]


def probability(model, x):
    mean, sd, w, b = model
    return 1 / (1 + np.exp(-((x - mean) / sd @ w + b)))


def in_scope(right, scope):
    return np.where(right >= SURE, np.maximum(right, scope), scope)


def ece(p, y):
    b = np.minimum((p * 10).astype(int), 9)
    return sum(abs(p[b == k].mean() - y[b == k].mean()) * (b == k).mean() for k in range(10) if (b == k).any())


def auroc(p, y):
    r = p.argsort().argsort() + 1.0
    n, m = y.sum(), (1 - y).sum()
    return (r[y > 0].sum() - n * (n + 1) / 2) / max(1, n * m)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("out"); ap.add_argument("dumps", nargs="+"); ap.add_argument("--fusion")
    a = ap.parse_args()
    fusion = json.load(open(a.fusion)) if a.fusion else None
    data = {p: read(p, fusion) for p in a.dumps}
    out_of = {}
    for p, d in data.items():
        others = [o for q, o in data.items() if family(q) != family(p)] or [d]
        out_of[p] = (probability(logistic(others, "right"), d["x"]), probability(logistic(others, "scope"), d["s"]))
    # operating points by left-out probabilities
    best = None
    for t in np.arange(0.5, 0.995, 0.01):
        precision = [d["right"][out_of[p][0] >= t].mean() for p, d in data.items() if (out_of[p][0] >= t).sum() >= 10]
        if precision and min(precision) >= AIM_PRECISION:
            best = t
            break
    auto = float(best or 0.9)
    # of the probabilities that will be in force: how well they carry over is in the table, and a bound on a share needs no margin for a misfit
    everything = [logistic(list(data.values()), t) for t in ("right", "scope")]
    suggest = 0.02
    for t in np.arange(0.02, 0.6, 0.01):
        given = [(probability(everything[0], d["x"]), probability(everything[1], d["s"]), d["scope"]) for d in data.values() if (1 - d["scope"]).sum() >= ENOUGH]
        none = [(in_scope(r, s)[inside > 0] < t).mean() for r, s, inside in given]
        if max(none) > 0.05 or np.mean(none) > AIM_NONE:
            break
        suggest = float(t)
    print(f"auto {auto:.2f}, suggest {suggest:.2f}")
    for p, d in data.items():
        r, s = out_of[p]
        s = in_scope(r, s); inside = d["scope"] > 0; auto_, none = (r >= auto), (s < suggest) & (r < auto)
        sug = ~auto_ & ~none & inside
        outside = ~inside
        f = lambda v: f"{v.mean():.2f}" if len(v) else "–"
        print(f"{os.path.basename(p):32} ece {ece(r, d['right']):.3f} auroc {auroc(r, d['right']):.3f} | auto {f(auto_)} precision {f(d['right'][auto_])} | in scope none {f(none[inside])} holds {f(d['held'][sug])} | out of scope auto {f(auto_[outside])} none {f(none[outside])}")
    names = next(iter(data.values()))["names"]

    def scorer(target):
        mean, sd, w, b = logistic(list(data.values()), target)
        model = {"kind": "linear", "mean": [round(float(v), 6) for v in mean], "scale": [round(float(v), 6) for v in sd], "weights": [round(float(v), 6) for v in w], "bias": round(float(b), 6)}
        return {"features": SCOPE if target == "scope" else names, "temperature": 1.0, "members": [{"weight": 1.0, "model": model}]}

    old = json.load(open(a.out))["point"].get("auto_learned", round(auto, 3)) if os.path.exists(a.out) else round(auto, 3)  # fit_learned.py finds it
    point = {"auto": round(auto, 3), "auto_learned": old, "auto_margin": 0.0, "suggest": round(suggest, 3), "floor": 0.01, "keep_under_floor": 2}
    json.dump({"models": ["bge-small-zh-v1.5", "bge-small-en-v1.5"], "right": scorer("right"), "in_scope": scorer("scope"), "point": point}, open(a.out, "w"), indent=1)

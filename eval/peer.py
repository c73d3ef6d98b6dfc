"""The nearest peer beside us: semantic-router (aurelio) and `reach` on the same queries, the peer on the same bge-small vectors (ONNX Runtime, fp32).

Needs: pip install semantic-router==1.1.1 onnxruntime tokenizers numpy; MODELS with bge-small-{zh,en}-v15/{model.onnx,tokenizer.json}.
Usage: peer.py MODELS --reach REACH SET_DIR… [--fewshot] [--limit 1000] [--json FILE]
The peer is calibrated on at most 500 dev (else train) queries of the set, as its own `fit` does it; we are not: one shipped setting for all sets.
A set is a folder with manifests.jsonl, queries.jsonl (and manifests_fewshot.jsonl). At most --limit test queries, drawn with seed 7, go to both.

top1: right first, in scope, percent. auto: share of the queries the peer answers (confidence >= 0.5). precision: right among them. Ours at that share:
the same number of queries, those we are surest of; what no threshold turns into `auto` (several requests, one bare word …) comes last. outside: share of
the queries out of scope among the answered. ece: ten equal bins of the top confidence, all queries, out of scope = wrong.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np

BLOCKED = {"out_of_scope", "under_floor", "cross_language", "several_requests", "too_short", "several_names", "negated", "no_candidate"}


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def drawn(queries, seed, most):
    queries = list(queries)
    random.Random(seed).shuffle(queries)
    return queries[:most]


def calibration_error(confidence, right):
    bins = np.clip((confidence * 10).astype(int), 0, 9)
    gaps = [(bins == b).mean() * abs(confidence[bins == b].mean() - right[bins == b].mean()) for b in range(10) if (bins == b).any()]
    return float(sum(gaps))


class Vectors:
    """bge-small through ONNX Runtime: first token, normalised, one text at a time."""

    def __init__(self, folder):
        import onnxruntime
        from tokenizers import Tokenizer

        self.tokens = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokens.enable_truncation(256)
        self.tokens.no_padding()
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), providers=["CPUExecutionProvider"])
        self.known = {}

    def __call__(self, texts):
        return [self.one(text) for text in texts]

    def one(self, text):
        if text not in self.known:
            ids = np.array([self.tokens.encode(text).ids], np.int64)
            fed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            vector = self.session.run(None, fed)[0][0, 0]
            self.known[text] = (vector / np.linalg.norm(vector)).tolist()
        return self.known[text]


def peer(vectors, capabilities, fit, test):
    """Confidence and whether the first is right, a query."""
    from semantic_router import Route
    from semantic_router.encoders import DenseEncoder
    from semantic_router.routers import IndexedRouter

    class Encoder(DenseEncoder):
        name: str = "bge-small"
        type: str = "local"

        def __call__(self, docs):
            return vectors(docs)

        async def acall(self, docs):
            return vectors(docs)

    def name(agent, capability):
        return f"{agent}|{capability}"

    def utterances(c):
        return [c["capability"].replace("_", " ") + ". " + c["description"], *(c.get("examples") or [])]

    routes = [Route(name=name(c["agent_id"], c["capability"]), utterances=utterances(c)) for c in capabilities]
    router = IndexedRouter(Encoder(), routes, confidence_threshold=0.5)
    router.fit([q["query"] for q in fit], [name(*q["expected"][0]) if q["expected"] else None for q in fit])
    confidence, right = [], []
    for query in test:
        choice = router(query["query"], threshold=0.0)
        confidence.append(choice.confidence or 0.0)
        right.append(choice.name in {name(*e) for e in query["expected"]})
    return np.array(confidence, float), np.array(right)


def ours(reach, manifests, test):
    """The same of `reach eval run`, and which answers a threshold could turn into `auto`."""
    with tempfile.TemporaryDirectory() as folder:
        queries, features = os.path.join(folder, "queries.jsonl"), os.path.join(folder, "features.jsonl")
        with open(queries, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(q, ensure_ascii=False) + "\n" for q in test)
        command = [reach, "eval", "run", "--manifests", manifests, "--queries", queries, "--features", features, "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        answers = [line["answer"] for line in lines(features)[1:]]
    confidence = np.array([a["probability"] for a in answers], float)
    free = np.array([a["why"] not in BLOCKED for a in answers])
    auto = np.array([a["kind"] == "auto" for a in answers])
    return confidence, np.array([a["right"] for a in answers]), free, auto


def figures(right, inside, confidence, answered):
    outside = ~inside
    return {
        "top1": round(100 * float(right[inside].mean()), 1),
        "auto": round(float(answered.mean()), 3),
        "precision": round(float(right[answered].mean()), 3) if answered.any() else None,
        "outside": round(float(answered[outside].mean()), 3) if outside.any() else None,
        "ece": round(calibration_error(confidence, right), 3),
    }


def compare(folder, args):
    manifests = os.path.join(folder, "manifests_fewshot.jsonl" if args.fewshot else "manifests.jsonl")
    every = lines(os.path.join(folder, "queries.jsonl"))
    test = drawn((q for q in every if q["split"] == "test"), 7, args.limit)
    fit = drawn([q for q in every if q["split"] == "dev"] or [q for q in every if q["split"] == "train"], 5, 500)
    vectors = Vectors(os.path.join(args.models, f"bge-small-{test[0]['lang']}-v15"))
    inside = np.array([bool(q["expected"]) for q in test])
    confidence, right = peer(vectors, lines(manifests), fit, test)
    answered = confidence >= 0.5
    theirs = figures(right, inside, confidence, answered)
    confidence, right, free, auto = ours(args.reach, manifests, test)
    # stable: ties stay in the order of the queries
    surest = np.argsort(-(confidence + 2.0 * free), kind="stable")[: int(answered.sum())]
    same = np.zeros(len(test), bool)
    same[surest] = True
    mine = figures(right, inside, confidence, same)
    mine["shipped"] = {k: v for k, v in figures(right, inside, confidence, auto).items() if k in ("auto", "precision", "outside")}
    name = os.path.basename(folder.rstrip("/")) + ("_fewshot" if args.fewshot else "")
    return {"set": name, "queries": len(test), "in_scope": int(inside.sum()), "peer": theirs, "reach": mine}


def shown(value):
    return "–" if value is None else f"{value:g}"


def table(rows):
    head = ["set", "top-1", "auto share of the peer", "precision at it", "outside at it", "ece", "our shipped auto / precision"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for r in rows:
        p, o = r["peer"], r["reach"]
        pairs = [f"{shown(p[k])} / **{shown(o[k])}**" for k in ("top1", "precision", "outside", "ece")]
        shipped = f"{shown(o['shipped']['auto'])} / {shown(o['shipped']['precision'])}"
        print("| " + " | ".join([r["set"], pairs[0], shown(p["auto"]), *pairs[1:], shipped]) + " |")


def misses(rows):
    for r in rows:
        p, o = r["peer"], r["reach"]
        if o["top1"] <= p["top1"]:
            yield f"{r['set']}: top-1 is not higher"
        if p["precision"] is not None and o["precision"] <= p["precision"]:
            yield f"{r['set']}: precision at the peer's share is not higher"
        if p["outside"] is not None and o["outside"] > p["outside"]:
            yield f"{r['set']}: more out of scope is answered at the peer's share"
    mean = {who: float(np.mean([r[who]["ece"] for r in rows])) for who in ("peer", "reach")}
    print(f"\nmean ece: {mean['peer']:.3f} / **{mean['reach']:.3f}**")
    if mean["reach"] >= mean["peer"]:
        yield "mean ece is not lower"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?")
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--reach", default="reach")
    parser.add_argument("--fewshot", action="store_true")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--json", help="keep the figures in this file (rows of other sets stay)")
    parser.add_argument("--show", help="only print the table of such a file")
    args = parser.parse_args()
    rows = []
    if args.show:
        rows = json.load(open(args.show, encoding="utf-8"))
    for folder in args.sets if not args.show else []:
        rows.append(compare(folder, args))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if args.json and not args.show:
        kept = json.load(open(args.json, encoding="utf-8")) if os.path.exists(args.json) else []
        rows = sorted([k for k in kept if k["set"] not in {r["set"] for r in rows}] + rows, key=lambda r: r["set"])
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")
    table(rows)
    for miss in list(misses(rows)):
        print(f"miss: {miss}")


if __name__ == "__main__":
    main()

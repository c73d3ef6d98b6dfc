"""Both languages in one fleet against each alone, and requests that mix them against pure ones.

Usage: mixed.py --reach REACH [--pair SET_ZH SET_EN]… [--fleet datasets/fleet --queries datasets/queries.jsonl] [--limit N] [--json FILE]   (PyYAML for --fleet)
--pair: the test queries of each set over its own fleet, then over the two fleets as one. --fleet: a fleet written in both languages with only its
Chinese and only its English texts, then whole; and its mixed requests beside the pure ones. top-1 in percent, in scope.
"""

import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def write(folder, name, rows):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


def tested(path, most):
    queries = [q for q in lines(path) if q["split"] == "test"]
    random.Random(7).shuffle(queries)
    return queries[:most]


def top1(reach, manifests, queries):
    """Percent, and the calibration error."""
    with tempfile.TemporaryDirectory() as folder:
        asked = write(folder, "queries.jsonl", queries)
        command = [reach, "eval", "run", "--manifests", manifests, "--queries", asked, "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    return round(100 * report["top1"], 1), report["n_in_scope"]


def prefixed(lang, rows):
    """Ids of two sets may be the same: each gets its language in front, alone and together."""
    return [{**r, "agent_id": f"{lang}-{r['agent_id']}", "namespace": f"{lang}-{r['namespace']}"} for r in rows]


def asked(lang, queries):
    return [{**q, "expected": [[f"{lang}-{a}", c] for a, c in q["expected"]]} for q in queries if q["expected"]]


def pair(reach, zh, en, most):
    fleets = {lang: prefixed(lang, lines(os.path.join(s, "manifests.jsonl"))) for lang, s in (("zh", zh), ("en", en))}
    queries = {lang: asked(lang, tested(os.path.join(s, "queries.jsonl"), most)) for lang, s in (("zh", zh), ("en", en))}
    with tempfile.TemporaryDirectory() as folder:
        both = write(folder, "both.jsonl", fleets["zh"] + fleets["en"])
        for lang, s in (("zh", zh), ("en", en)):
            alone, n = top1(reach, write(folder, "alone.jsonl", fleets[lang]), queries[lang])
            together, _ = top1(reach, both, queries[lang])
            others = os.path.basename((en if lang == "zh" else zh).rstrip("/"))
            yield {"queries": os.path.basename(s.rstrip("/")), "n": n, "alone": alone, "with": others, "together": together}


def is_limited(query):
    return any(tag.startswith("needs_") for tag in query.get("tags", []))


def is_chinese(text):
    return any("\u4e00" <= c <= "\u9fff" for c in text)


def only(lang, manifest):
    """The manifest with the texts of one language."""
    capabilities = []
    for capability in manifest["capabilities"]:
        description = capability["description"]
        if not isinstance(description, dict) or lang not in description:
            continue
        examples = [e for e in capability.get("examples", []) if is_chinese(e) == (lang == "zh")]
        capabilities.append({**capability, "description": {lang: description[lang]}, "examples": examples})
    return {**manifest, "capabilities": capabilities} if capabilities else None


def fleet(reach, folder, path, most):
    import yaml

    manifests = []
    for file in sorted(glob.glob(os.path.join(folder, "**", "*.yaml"), recursive=True)):
        with open(file, encoding="utf-8") as text:
            manifests.append(yaml.safe_load(text))
    # left out: what a caller can't reach at some hours or without scopes, and two wishes at once
    queries = [q for q in tested(path, most) if q["expected"] and q.get("mode", "any") == "any" and not is_limited(q)]
    with tempfile.TemporaryDirectory() as place:
        whole = write(place, "whole.jsonl", manifests)
        for lang in ("zh", "en"):
            pure = [q for q in queries if q["lang"] == lang]
            own = [m for m in (only(lang, m) for m in manifests) if m]
            alone, n = top1(reach, write(place, "own.jsonl", own), pure)
            together, _ = top1(reach, whole, pure)
            yield {"queries": f"{os.path.basename(os.path.dirname(path))} {lang}", "n": n, "alone": alone, "with": "the other language's texts", "together": together}
        mixed, n = top1(reach, whole, [q for q in queries if q["lang"] == "mixed"])
        # pure requests without any other difficulty
        plain = [q for q in queries if q["lang"] != "mixed" and not q.get("tags")]
        pure, m = top1(reach, whole, plain)
        yield {"queries": "mixed requests", "n": n, "together": mixed, "pure": pure, "n_pure": m}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reach", default="reach")
    parser.add_argument("--pair", nargs=2, action="append", default=[])
    parser.add_argument("--fleet")
    parser.add_argument("--queries")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    sources = [pair(args.reach, zh, en, args.limit) for zh, en in args.pair]
    if args.fleet:
        sources.append(fleet(args.reach, args.fleet, args.queries, 10**9))
    for source in sources:
        for row in source:
            print(json.dumps(row, ensure_ascii=False), file=sys.stderr, flush=True)
            rows.append(row)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1, ensure_ascii=False)
            file.write("\n")
    for r in rows:
        if "alone" in r:
            print(f"{r['queries']} ({r['n']}): alone {r['alone']}, with {r['with']} {r['together']} ({r['together'] - r['alone']:+.1f})")
        else:
            print(f"{r['queries']} ({r['n']}): {r['together']}, pure ones ({r['n_pure']}) {r['pure']} ({r['together'] - r['pure']:+.1f})")


if __name__ == "__main__":
    main()

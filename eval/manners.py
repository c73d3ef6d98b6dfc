"""Requests with manners around them, and with what rides on them, against the same requests bare.

Usage: manners.py --reach REACH --set NAME MANIFESTS QUERIES… [--split test] [--limit 600] [--json FILE]
For each set the requests of one split (one wish, in scope or not), then the same with a greeting, thanks, urgency, a long way of asking, who is to be told,
a picture, loudness, and with something about the caller's day, which no rule knows. top-1 and share of `auto` in percent.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile


def bare(text):
    return text.rstrip(".?!。？！ ")


EN = {
    "greeting": lambda q: f"Hi there, hope you are doing well. {q}",
    "please and thanks": lambda q: f"Hello, could you please help me with this: {q} Thank you so much!",
    "urgent": lambda q: f"{bare(q)}, this is really urgent",
    "long way of asking": lambda q: f"I was wondering if you could {q[0].lower()}{q[1:]}",
    "tell me": lambda q: f"{bare(q)} and let me know how it went",
    "copy": lambda q: f"{bare(q)}, and cc my manager",
    "pictures": lambda q: f"{q} 🙏🙏",
    "about my day": lambda q: f"I'm on the train and my battery is low. {q}",
}
ZH = {
    "greeting": lambda q: f"你好，在吗？{q}",
    "please and thanks": lambda q: f"您好，麻烦您帮我看一下，{q}，非常感谢！",
    "urgent": lambda q: f"{bare(q)}，比较急，尽快",
    "tell me": lambda q: f"{bare(q)}，然后把结果告诉我",
    "copy": lambda q: f"{bare(q)}，顺便抄送给运营",
    "pictures": lambda q: f"{q}🙏🙏",
    "loud": lambda q: f"{q}！！！",
    "about my day": lambda q: f"我现在在外面不太方便，{q}",
}


def measured(reach, manifests, queries, cache, split):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(json.dumps(q, ensure_ascii=False) + "\n" for q in queries)
        file.flush()
        command = [reach, "eval", "run", "--manifests", manifests, "--queries", file.name, "--split", split, "--cache", cache, "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    return round(100 * report["top1"], 1), round(100 * report["decisions"]["auto"], 1)


def rows(reach, name, manifests, path, split, most):
    with open(path, encoding="utf-8") as file:
        queries = [json.loads(line) for line in file if line.strip()]
    queries = [q for q in queries if q["split"] == split and q.get("mode", "any") == "any"]
    random.Random(7).shuffle(queries)
    with tempfile.TemporaryDirectory() as cache:
        for lang, ways in (("zh", ZH), ("en", EN)):
            own = [q for q in queries if any("\u4e00" <= c <= "\u9fff" for c in q["query"]) == (lang == "zh")][:most]
            if len(own) < 50:
                continue
            yield {"set": name, "lang": lang, "way": "bare", "n": len(own), **figures(measured(reach, manifests, own, cache, split))}
            for way, said in ways.items():
                asked = [{**q, "query": said(q["query"])} for q in own]
                yield {"set": name, "lang": lang, "way": way, "n": len(own), **figures(measured(reach, manifests, asked, cache, split))}


def figures(pair):
    return {"top1": pair[0], "auto": pair[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reach", default="reach")
    parser.add_argument("--set", nargs=3, action="append", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=600)
    parser.add_argument("--json")
    args = parser.parse_args()
    found = []
    for name, manifests, queries in args.set:
        for row in rows(args.reach, name, manifests, queries, args.split, args.limit):
            print(json.dumps(row, ensure_ascii=False), file=sys.stderr, flush=True)
            found.append(row)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1, ensure_ascii=False)
            file.write("\n")
    for r in found:
        print(f"| {r['set']} {r['lang']} ({r['n']}) | {r['way']} | {r['top1']} | {r['auto']} |")


if __name__ == "__main__":
    main()

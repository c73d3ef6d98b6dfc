#!/usr/bin/env python3
"""Checks this folder and counts what is in it.

    python3 datasets/check.py            # check everything; exit 1 on any fault or if CARD.md has old counts
    python3 datasets/check.py --write    # the same, and write the counts into CARD.md

Standard library only. With PyYAML installed the manifests are parsed and checked field by field, and with
jsonschema installed (>= 4.0) every schema is checked against Draft 2020-12; without them the names are
read by a line scan, which is enough for the labels and for the counts.
"""
import collections
import datetime
import hashlib
import io
import json
import os
import re
import sys
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN, END = "<!-- counts: written by check.py -->", "<!-- end of counts -->"
FAULTS = []

try:
    import yaml
except ImportError:
    yaml = None
try:
    from jsonschema import Draft202012Validator
except ImportError:
    Draft202012Validator = None


def fault(where, what):
    FAULTS.append("%s: %s" % (where, what))


def norm(text):
    """Case, width and punctuation folded away: two texts that differ only there count as the same."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).lower())


def grams(text):
    text = norm(text)
    return {text[i:i + 3] for i in range(max(1, len(text) - 2))}


def manifests():
    for folder, _, files in sorted(os.walk(os.path.join(HERE, "fleet"))):
        for name in sorted(files):
            path = os.path.join(folder, name)
            if not name.endswith(".yaml"):
                fault(path, "not a .yaml file")
                continue
            with io.open(path, encoding="utf-8") as f:
                yield os.path.relpath(path, HERE), f.read()


def scan(text):
    """The few names that labels need, without a YAML parser."""
    one = lambda key: re.search(r"^%s: (.+)$" % key, text, re.M).group(1).strip()
    caps = [{"intent": m} for m in re.findall(r"^  - intent: (\S+)$", text, re.M)]
    for chunk, cap in zip(re.split(r"^  - intent: .*$", text, flags=re.M)[1:], caps):
        for key in ("hours", "regions", "scopes", "output_schema", "input_schema"):
            if re.search(r"^    %s:" % key, chunk, re.M):
                cap[key] = True
    visible = re.search(r"^visible_to: \[(.*)\]$", text, re.M)
    return {"namespace": one("namespace"), "agent_id": one("agent_id"), "capabilities": caps,
            "visible_to": [v.strip().strip('"') for v in visible.group(1).split(",")] if visible else []}


AGENT_KEYS = {"domain", "namespace", "agent_id", "agent_version", "owner", "contact", "description", "endpoints", "health_check",
              "ttl", "max_queue_depth", "concurrency", "timeouts", "retry", "notification_endpoint", "attributes", "visible_to",
              "tags", "capabilities"}
CAP_KEYS = {"intent", "aliases", "description", "examples", "tags", "input_schema", "output_schema", "rate_limit", "cost",
            "latency_hint", "hours", "regions", "scopes", "idempotent", "state_machine", "compensate"}
CLOCK = re.compile(r"^([01]\d|2[0-3]):[0-5]\d$")
DURATION = re.compile(r"^\d+(ms|s|m|h)$")


def check_manifest(path, m):
    for key in set(m) - AGENT_KEYS:
        fault(path, "unknown key %s" % key)
    if not re.match(r"^[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,7}$", m["namespace"]):
        fault(path, "bad namespace")
    if not re.match(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$", m["agent_id"]):
        fault(path, "bad agent_id")
    if not m.get("endpoints"):
        fault(path, "no endpoint")
    for e in m.get("endpoints", []):
        if (e["protocol"] == "pull") == ("address" in e):
            fault(path, "an endpoint needs an address, a pull endpoint has none")
    own = [c["intent"] for c in m["capabilities"]]
    if len(set(own)) != len(own):
        fault(path, "a capability stands twice")
    for c in m["capabilities"]:
        where = "%s %s" % (path, c["intent"])
        for key in set(c) - CAP_KEYS:
            fault(where, "unknown key %s" % key)
        if not re.match(r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$", c["intent"]):
            fault(where, "not snake_case")
        d = c.get("description")
        if not isinstance(d, dict) or not d.get("zh") or not d.get("en"):
            fault(where, "description needs zh and en")
        elif not re.search("[\u3400-\u9fff]", d["zh"]) or re.search("[\u3400-\u9fff]", d["en"]):
            fault(where, "description in the wrong language")
        if not 1 <= len(c.get("examples", [])) <= 4 or not all(isinstance(x, str) for x in c.get("examples", [])):
            fault(where, "1 to 4 examples, each a string")
        for key in ("aliases", "tags"):
            if not all(isinstance(x, str) for x in c.get(key, [])):
                fault(where, "%s must be strings" % key)
        if "latency_hint" in c and not DURATION.match(str(c["latency_hint"])):
            fault(where, "bad latency_hint")
        if c.get("compensate") and c["compensate"] not in own:
            fault(where, "compensate names no capability of this agent")
        for w in (c.get("hours") or {}).get("windows", []):
            if not (CLOCK.match(str(w["from"])) and CLOCK.match(str(w["to"]))):
                fault(where, "bad hours")
        for key in ("input_schema", "output_schema"):
            schema = c.get(key)
            if schema is None:
                if key == "input_schema":
                    fault(where, "no input_schema")
                continue
            if set(schema.get("required", [])) - set(schema.get("properties", {})):
                fault(where, "%s requires an undescribed field" % key)
            if Draft202012Validator:
                try:
                    Draft202012Validator.check_schema(schema)
                except Exception as e:  # the library has several error types
                    fault(where, "%s: %s" % (key, e))


def load_fleet():
    fleet, agents = {}, {}
    for path, text in manifests():
        if yaml:
            try:
                m = yaml.safe_load(text)
                check_manifest(path, m)
            except Exception as e:  # whatever is wrong, say where and go on
                fault(path, repr(e))
                continue
        else:
            m = scan(text)
        if path.replace(os.sep, "/") != "fleet/%s/%s.yaml" % (m["namespace"], m["agent_id"]):
            fault(path, "file name and names inside differ")
        if m["agent_id"] in agents:
            fault(path, "agent_id is used twice; labels name agents by id alone")
        agents[m["agent_id"]] = m
        for c in m["capabilities"]:
            fleet[m["agent_id"], c["intent"]] = c
    return agents, fleet


def load(name):
    rows = []
    with io.open(os.path.join(HERE, name), encoding="utf-8") as f:
        for n, line in enumerate(f, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as e:
                fault("%s:%d" % (name, n), e)
    return rows


def check_labels(name, rows, fleet):
    ids = collections.Counter(r["id"] for r in rows)
    for i in [i for i, n in ids.items() if n > 1]:
        fault(name, "id %s is used %d times" % (i, ids[i]))
    for r in rows:
        if not norm(r["query"]):
            fault(name, "%s: empty text" % r["id"])
        if r["lang"] not in ("zh", "en", "mixed") or r["split"] not in ("dev", "test"):
            fault(name, "%s: bad lang or split" % r["id"])
        for pair in r["expected"]:
            if tuple(pair) not in fleet:
                fault(name, "%s: %s is not in the fleet" % (r["id"], pair))
        if len(r["expected"]) > 1 and r.get("mode") not in ("any", "all"):
            fault(name, "%s: several expected need a mode" % r["id"])


def main():
    agents, fleet = load_fleet()
    queries, ambiguous, outcomes = load("queries.jsonl"), load("ambiguous.jsonl"), load("outcomes.jsonl")
    check_labels("queries.jsonl", queries, fleet)
    check_labels("ambiguous.jsonl", ambiguous, fleet)

    seen = {}
    for r in queries:
        digest = lambda t: hashlib.sha256(t.encode("utf-8"))
        if r["id"] != "ar-" + digest(norm(r["query"])).hexdigest()[:10]:
            fault("queries.jsonl", "%s: the id does not follow from the text" % r["id"])
        if r["split"] != ("test" if digest(r["id"]).digest()[0] % 2 else "dev"):
            fault("queries.jsonl", "%s: the split does not follow from the id" % r["id"])
        if norm(r["query"]) in seen:
            fault("queries.jsonl", "%s and %s have the same text" % (r["id"], seen[norm(r["query"])]))
        seen[norm(r["query"])] = r["id"]
    offers = collections.defaultdict(set)
    for agent, intent in fleet:
        offers[intent].add((agent, intent))
    for r in queries:
        if r.get("mode") != "all":
            for _, intent in r["expected"]:
                if offers[intent] - {tuple(p) for p in r["expected"]}:
                    fault("queries.jsonl", "%s leaves out an agent that offers %s" % (r["id"], intent))
    if yaml:
        examples = {norm(x) for c in fleet.values() for x in c.get("examples", [])}
        for r in queries:
            if norm(r["query"]) in examples:
                fault("queries.jsonl", "%s copies an example of a manifest" % r["id"])
    sets = {split: [(r, grams(r["query"])) for r in queries if r["split"] == split] for split in ("dev", "test")}
    for a, x in sets["dev"]:
        for b, y in sets["test"]:
            if len(x) > 3 and len(x & y) > 0.7 * len(x | y):
                fault("queries.jsonl", "%s (dev) and %s (test) are nearly the same" % (a["id"], b["id"]))
    texts = collections.defaultdict(set)
    for r in ambiguous:
        texts[norm(r["query"])].add(r["split"])
    for text, splits in texts.items():
        if len(splits) > 1:
            fault("ambiguous.jsonl", "%s is in both splits" % text)

    held_out = {norm(r["query"]) for r in queries + ambiguous if r["split"] == "test"}
    last = ""
    for n, r in enumerate(outcomes, 1):
        where = "outcomes.jsonl:%d" % n
        datetime.datetime.fromisoformat(r["at"])
        if r["at"] < last:
            fault(where, "not in order of time")
        last = r["at"]
        if norm(r["query"]) in held_out:
            fault(where, "holds a text of the test split")
        if r["outcome"] not in ("acked", "adopted", "modified", "overridden", "rejected", "timeout"):
            fault(where, "unknown outcome")
        if ("correct" in r) != (r["outcome"] == "overridden"):
            fault(where, "'correct' belongs to overridden only")
        for pair in [r["chosen"]] + ([r["correct"]] if "correct" in r else []):
            if tuple(pair) not in fleet:
                fault(where, "%s is not in the fleet" % pair)

    shared = sorted(i for i, s in offers.items() if len(s) > 1)
    count = lambda rows, **kw: sum(all(r.get(k) == v for k, v in kw.items()) for r in rows)
    tags = collections.Counter(t for r in queries for t in r.get("tags", []))
    covered = collections.Counter(tuple(p) for r in queries for p in r["expected"])
    out = ["", "| what | count |", "|---|---|",
           "| agents / namespaces / capabilities | %d / %d / %d |" % (len(agents), len({m["namespace"] for m in agents.values()}), len(fleet)),
           "| capabilities with hours / regions / scopes (any of them) | %d / %d / %d (%d) |" % tuple(
               [sum(1 for c in fleet.values() if c.get(k)) for k in ("hours", "regions", "scopes")]
               + [sum(1 for c in fleet.values() if c.get("hours") or c.get("regions") or c.get("scopes"))]),
           "| capabilities with an output schema | %d |" % sum(1 for c in fleet.values() if c.get("output_schema")),
           "| agents granted to some namespaces only | %d |" % sum(1 for m in agents.values() if "*" not in m.get("visible_to", [])),
           "| intents offered by two agents | %s |" % ", ".join(shared),
           "| queries (fewest for one capability) | %d (%d) |" % (len(queries), min(covered.get(p, 0) for p in fleet)),
           "| outcomes | %d (%s) |" % (len(outcomes), ", ".join("%s %d" % p for p in collections.Counter(r["outcome"] for r in outcomes).most_common())),
           "| ambiguous requests | %d rows, %d texts (dev %d / test %d rows) |" % (len(ambiguous), len(texts), count(ambiguous, split="dev"), count(ambiguous, split="test")),
           "", "| queries | all | dev | test |", "|---|---|---|---|"]
    row = lambda name, keep: out.append("| %s | %d | %d | %d |" % (
        name, sum(map(keep, queries)), sum(keep(r) for r in queries if r["split"] == "dev"), sum(keep(r) for r in queries if r["split"] == "test")))
    row("all", lambda r: True)
    for lang in ("zh", "en", "mixed"):
        row("language " + lang, lambda r: r["lang"] == lang)
    for tag, _ in sorted(tags.items(), key=lambda p: (p[0].startswith("needs_"), -p[1], p[0])):
        row("tag `%s`" % tag, lambda r: tag in r.get("tags", []))
    out.append("")
    block = "\n".join(out)

    path = os.path.join(HERE, "CARD.md")
    with io.open(path, encoding="utf-8") as f:
        card = f.read()
    head, rest = card.split(BEGIN)
    old, tail = rest.split(END)
    if "--write" in sys.argv[1:]:
        with io.open(path, "w", encoding="utf-8", newline="\n") as f:
            f.write(head + BEGIN + "\n" + block + "\n" + END + tail)
    elif old.strip() != block.strip():
        fault("CARD.md", "counts are out of date; run check.py --write")
    print(block)
    if not yaml:
        print("PyYAML is missing: manifests were only scanned for names", file=sys.stderr)
    elif not Draft202012Validator:
        print("jsonschema is missing: schemas were not checked", file=sys.stderr)
    for f in FAULTS:
        print("FAULT " + f, file=sys.stderr)
    return 1 if FAULTS else 0


if __name__ == "__main__":
    sys.exit(main())

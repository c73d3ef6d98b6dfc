#!/usr/bin/env python3
"""Writes outcomes.jsonl: an invented history of requests, choices and what came of them.

Deterministic (one seed), Python standard library only. It reads queries.jsonl and ambiguous.jsonl of
this folder and takes texts of their dev split only, so that nothing of the test split is ever learned.

    python3 datasets/make_history.py            # writes datasets/outcomes.jsonl
    python3 datasets/make_history.py --check    # exit 1 if the file on disk differs

What is in it, so that a learner has something to find:
- each department uses a handful of capabilities most of the time (its desk and some favourites);
- one short text means different things to different departments ("status update");
- the router of this story starts without knowing that: it errs on ambiguous texts and on a few clear ones,
  and people override, reject or put up with it;
- legal and marketing want the professional translator, everybody else is happy with the fast one;
- callers of the tenant eu-retail follow parcels with the European desk;
- three habits change in the course of the period (OLD_HABITS); the labels of ambiguous.jsonl are the new ones;
- a few labels are wrong on purpose (NOISE), as in any real log.
"""
import collections
import datetime
import io
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 20250601
LINES = 4000
DAYS = 60
START = datetime.datetime(2025, 4, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=8)))
NOISE = 0.015
AMBIGUOUS_SHARE = 0.30

# department: (caller, share of the traffic, agents it mostly works with)
DEPARTMENTS = {
    "order-service": ("order-svc", 16, ["order-desk", "refund-desk", "exchange-desk", "parcel-tracker"]),
    "support": ("cs-console", 16, ["ticket-desk", "kb-answer", "complaint-care", "return-desk", "refund-desk"]),
    "warehouse": ("wms-app", 10, ["stock-keeper", "wms-floor", "return-desk"]),
    "logistics": ("tms-app", 5, ["freight-desk", "pickup-service", "parcel-tracker"]),
    "finance": ("finance-portal", 9, ["invoice-desk", "expense-desk", "ledger-desk", "cashier"]),
    "hr": ("hr-bot", 8, ["leave-desk", "people-desk", "recruiter", "learning-hub"]),
    "ops": ("ops-bot", 10, ["alert-hub", "self-healer", "metrics-watch", "incident-room"]),
    "devtools": ("dev-assistant", 8, ["code-reviewer", "ci-runner", "repo-clerk"]),
    "qa": ("qa-console", 3, ["quality-lab"]),
    "data": ("data-workbench", 4, ["pipeline-ops", "data-analyst"]),
    "bi": ("bi-copilot", 4, ["report-factory", "data-analyst"]),
    "marketing": ("mkt-studio", 6, ["campaign-studio", "social-desk", "text-helper"]),
    "sales": ("sales-assistant", 6, ["customer-book"]),
    "loyalty": ("member-app", 2, ["loyalty-desk"]),
    "procurement": ("buyer-console", 4, ["buyer-desk"]),
    "legal": ("legal-desk-ui", 3, ["contract-desk", "compliance-desk"]),
    "travel": ("travel-bot", 4, ["trip-planner"]),
    "admin": ("office-assistant", 5, ["calendar-keeper", "office-desk", "minutes-writer", "document-clerk"]),
    "it": ("it-helpdesk", 4, ["device-desk", "access-desk"]),
    "security": ("soc-console", 2, ["threat-desk", "access-desk"]),
}
PRO_TRANSLATION = {"legal", "marketing"}
EU_PARCELS = {"shipment_track", "delivery_reschedule"}
# (department, text): until that day the text meant something else there; old habits should fade
OLD_HABITS = {
    ("finance", "发票"): (30, ("invoice-desk", "invoice_ocr")),
    ("ops", "周报"): (30, ("report-factory", "report_generate")),
    ("support", "let them know"): (25, ("campaign-studio", "email_blast")),
}


def load(name):
    with io.open(os.path.join(HERE, name), encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def right_agent(pairs, department, tenant):
    """Of several agents with the same intent, the one that suits this department and tenant."""
    pairs = [tuple(p) for p in pairs]
    by = dict(pairs)
    intent = pairs[0][1]
    if intent == "translate_text" and len(by) > 1:
        return ("translator-pro" if department in PRO_TRANSLATION else "translator-fast", intent)
    if intent in EU_PARCELS and len(by) > 1:
        return ("eu-express" if tenant == "eu-retail" else "parcel-tracker", intent)
    if intent == "service_restart" and len(by) > 1:
        return ("self-healer", intent)
    return pairs[0]


def build():
    rng = random.Random(SEED)
    queries = [q for q in load("queries.jsonl") if q["split"] == "dev"]
    ambiguous = [a for a in load("ambiguous.jsonl") if a["split"] == "dev"]
    clear = [q for q in queries
             if q["expected"] and q.get("mode") != "all" and "ambiguous" not in q.get("tags", [])
             and len({i for _, i in q["expected"]}) == 1]

    by_agent = collections.defaultdict(list)
    by_intent = collections.defaultdict(list)
    for q in clear:
        for agent, intent in q["expected"]:
            by_agent[agent].append(q)
            by_intent[intent].append(q)
    siblings = collections.defaultdict(set)        # what a router may mix up: other capabilities of the agent
    for q in clear:
        for agent, intent in q["expected"]:
            siblings[agent].add((agent, intent))
    favourites = collections.defaultdict(set)      # habits of a department, whatever split the text is in
    for a in load("ambiguous.jsonl"):
        favourites[a["department"]].add(a["expected"][0][1])
    rows = collections.defaultdict(list)           # ambiguous dev rows of a department
    meanings = collections.defaultdict(set)        # all meanings a text has
    for a in ambiguous:
        rows[a["department"]].append(a)
        for p in a["expected"]:
            meanings[a["query"]].add(tuple(p))

    names = sorted(DEPARTMENTS)
    weights = [DEPARTMENTS[n][1] for n in names]
    moments = sorted(rng.random() for _ in range(LINES))
    out = []
    for m in moments:
        day = int(m * DAYS)
        department = rng.choices(names, weights)[0]
        caller, _, agents = DEPARTMENTS[department]
        tenant = "eu-retail" if rng.random() < 0.25 else "cn-retail"
        night = department in ("ops", "support", "security") and rng.random() < 0.3
        hour = rng.choice([20, 21, 22, 23, 0, 1, 2, 5, 6, 7]) if night else rng.choice(
            [8, 9, 9, 10, 10, 10, 11, 11, 13, 14, 14, 15, 15, 16, 16, 17, 18])
        at = START + datetime.timedelta(days=day, hours=hour, minutes=rng.randrange(60), seconds=rng.randrange(60))
        if rows[department] and rng.random() < AMBIGUOUS_SHARE:
            a = rng.choice(rows[department])
            text, correct = a["query"], tuple(a["expected"][0])
            until, old = OLD_HABITS.get((department, text), (0, None))
            if day < until:
                correct = old
            rivals = sorted(meanings[text] - {correct})
            # the router learns slowly in this story: 45 % right in the beginning, 65 % in the end
            right = rng.random() < 0.45 + 0.20 * day / DAYS
        else:
            pick = rng.random()
            if pick < 0.55:
                pool = by_agent[rng.choice(agents)]
            elif pick < 0.90 and favourites[department]:
                pool = by_intent[rng.choice(sorted(favourites[department]))]
            elif pick < 0.94 and department in PRO_TRANSLATION | {"support", "order-service"}:
                pool = by_intent["translate_text"]
            else:
                pool = clear
            q = rng.choice(pool or clear)
            text, correct = q["query"], right_agent(q["expected"], department, tenant)
            twins = {tuple(p) for p in q["expected"]} - {correct}
            rivals = sorted(twins) or sorted(siblings[correct[0]] - {correct})
            right = rng.random() < (0.60 if twins else 0.93)
        chosen = correct if right or not rivals else rng.choice(rivals)
        dice = rng.random()
        if chosen == correct:
            outcome = ("adopted" if dice < 0.52 else "acked" if dice < 0.85 else "modified" if dice < 0.93
                       else "timeout" if dice < 0.97 else "rejected" if dice < 0.985 else "acked")
        else:
            outcome = "overridden" if dice < 0.68 else "rejected" if dice < 0.86 else "modified" if dice < 0.92 else "acked"
        if outcome != "overridden" and rng.random() < NOISE:
            outcome = "adopted" if outcome == "rejected" else "rejected"
        line = {"at": at.isoformat(), "caller": caller, "tenant": tenant, "department": department,
                "query": text, "chosen": list(chosen), "outcome": outcome}
        if outcome == "overridden":
            line["correct"] = list(correct)
        out.append(line)
    out.sort(key=lambda r: (r["at"], r["caller"], r["query"], r["chosen"]))
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in out)


def main():
    text = build()
    path = os.path.join(HERE, "outcomes.jsonl")
    if "--check" in sys.argv[1:]:
        with io.open(path, encoding="utf-8") as f:
            same = f.read() == text
        print("outcomes.jsonl is up to date" if same else "outcomes.jsonl differs from what the script makes", file=sys.stderr)
        return 0 if same else 1
    with io.open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(text)
    print("%d lines" % text.count("\n"), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

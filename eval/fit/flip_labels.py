"""Labelled queries with a share of their labels made wrong, for the robustness of learning.

Usage: flip_labels.py QUERIES.jsonl SHARE [SEED] > FLIPPED.jsonl
Of the queries of the split `train` that somebody can do, each has its answer replaced with the chance SHARE by that of another one, drawn from all answers
that occur; everything else stays as it is. The same seed gives the same labels. Standard library only.
"""
import json, random, sys

path, share = sys.argv[1], float(sys.argv[2])
draw = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 7)
with open(path, encoding="utf-8") as file:
    lines = [json.loads(line) for line in file if line.strip()]
answers = sorted({json.dumps(line["expected"]) for line in lines if line["expected"]})
for line in lines:
    if line["split"] == "train" and line["expected"] and draw.random() < share:
        own = json.dumps(line["expected"])
        line["expected"] = json.loads(draw.choice([a for a in answers if a != own]))
    print(json.dumps(line, ensure_ascii=False))

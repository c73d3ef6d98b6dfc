"""Prints the table of eval/README.md from reports of `reach eval run --json`. Usage: table.py REPORT.json …"""
import json, os, sys

print("| set | in + out of scope | dense | words | fused | calibration error | AUROC | auto | auto precision | suggest holds | in scope none | out of scope auto | out of scope none |")
print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
for path in sys.argv[1:]:
    r = json.load(open(path, encoding="utf-8"))
    if "decisions" not in r:
        # another kind of report in the same folder
        continue
    d = r["decisions"]
    arm = lambda name: f"{100 * r['arms'][name]['top1']:.1f} / {100 * r['arms'][name]['top3']:.1f}"
    f = lambda v, n=2: "–" if v is None else f"{v:.{n}f}"
    cells = [os.path.basename(path)[:-5], f"{r['n_in_scope']} + {r['n_out_of_scope']}", arm("dense"), arm("keyword"), arm("fused"), f(r["ece"], 3), f(r["auroc"]), f(d["auto"]), f(d["auto_precision"]), f(d["suggest_holds"]), f(d["in_scope_none"]), f(d["out_of_scope_auto"]), f(d["out_of_scope_none"])]
    print("| " + " | ".join(cells) + " |")

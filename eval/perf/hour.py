"""An hour of requests of random lengths from random namespaces: does memory stay flat?

Usage: hour.py --reach PATH [--minutes 60] [--rate 60] [--cache "8 MiB"] [--outcomes 0.01] [--fleet datasets/fleet] [--queries datasets/queries.jsonl] [--out FILE]
--reach   the `reach` binary; its models must be in REACH_MODELS
--rate    requests a second, spread over two connections
--cache   room for vectors of requests that were seen before; --outcomes: share of the requests that get an outcome
Starts a server of its own on free ports with a fresh data folder, registers the fleet, and asks with texts of 1 to 400 words cut at random from the
queries, narrowed to a random choice of namespaces; some get an outcome, one in two hundred registers an agent again with another description.
Memory is read every ten seconds. Compared are the first and the last sixth after a warm-up of a sixth; the cache of vectors is small, so that it is full
by then. Only memory is measured: what else the machine does does not matter. Standard library only.
"""
import argparse, http.client, json, random, shutil, socket, statistics, subprocess, sys, tempfile, threading, time

ap = argparse.ArgumentParser()
ap.add_argument("--reach", required=True)
ap.add_argument("--minutes", type=float, default=60)
ap.add_argument("--rate", type=float, default=60)
ap.add_argument("--cache", default="8 MiB")
ap.add_argument("--outcomes", type=float, default=0.01)
ap.add_argument("--fleet", default="datasets/fleet")
ap.add_argument("--queries", default="datasets/queries.jsonl")
ap.add_argument("--out")
a = ap.parse_args()


def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


http_port, grpc_port = free(), free()
data = tempfile.mkdtemp(prefix="reach-hour-")
server = subprocess.Popen([a.reach, "serve", "--data", data, "--http-port", str(http_port), "--grpc-port", str(grpc_port), "--set", "telemetry.log=warn", "--set", f"models.query_cache_bytes={a.cache}"])


def rss():
    with open(f"/proc/{server.pid}/status") as f:
        return next(int(l.split()[1]) / 1024 for l in f if l.startswith("VmRSS"))


class Client:
    def __init__(self):
        self.connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=60)

    def call(self, method, path, body=None):
        for again in (True, False):
            try:
                self.connection.request(method, path, json.dumps(body) if body is not None else None, {"content-type": "application/json"})
                answer = self.connection.getresponse()
                return answer.status, json.loads(answer.read() or b"null")
            except (http.client.HTTPException, OSError):
                self.connection.close()
                if not again:
                    raise


def up():
    try:
        return Client().call("GET", "/ready")[0] == 200
    except OSError:
        return False


while not up():
    if server.poll() is not None:
        sys.exit("the server ended")
    time.sleep(0.2)
subprocess.run([a.reach, "register", a.fleet, "--server", f"http://127.0.0.1:{http_port}"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
client = Client()
agents, after = [], None
while True:
    page = client.call("GET", "/v1/agents?limit=100" + (f"&after={after}" if after else ""))[1]
    agents += page["agents"]
    after = page.get("next")
    if not after:
        break
spaces = sorted({x["agent"]["namespace"] for x in agents})
with open(a.queries, encoding="utf-8") as f:
    texts = [json.loads(l)["query"] for l in f]
words = [w for t in texts for w in (t.split() if " " in t else [t])]
stop, counts, lock = threading.Event(), {}, threading.Lock()


def work(seed):
    draw, own = random.Random(seed), Client()
    gap, due = 2 / a.rate, time.monotonic()
    while not stop.is_set():
        due += draw.expovariate(1) * gap
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - 1)
        n, at = int(400 ** draw.random()), draw.randrange(len(words))
        ask = {"query": " ".join((words[at:] + words)[:n]), "namespaces": draw.sample(spaces, draw.randint(1, len(spaces))), "caller": f"c{draw.randrange(5000)}"}
        status, answer = own.call("POST", "/v1/resolve", ask)
        kind = f"resolve {status}"
        if status == 200 and answer.get("candidates") and draw.random() < a.outcomes:
            report = {"outcomes": [{"decision_id": answer["decision_id"], "verdict": draw.choice(["adopted", "rejected"])}]}
            kind += f", report {own.call('POST', '/v1/feedback', report)[0]}"
        if draw.random() < 0.005:
            manifest = draw.choice(agents)["manifest"]
            manifest = json.loads(json.dumps(manifest))
            capability = draw.choice(manifest["capabilities"])
            description = capability.setdefault("description", {})
            lang = draw.choice(sorted(description) or ["en"])
            description[lang] = description.get(lang, "").split(" · ")[0] + f" · {draw.randrange(10**6)}"
            kind += f", register {own.call('POST', '/v1/agents', manifest)[0]}"
        with lock:
            counts[kind] = counts.get(kind, 0) + 1


threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in (1, 2)]
for t in threads:
    t.start()
samples, end = [], time.monotonic() + a.minutes * 60
try:
    while time.monotonic() < end and server.poll() is None:
        time.sleep(min(10, max(0.1, end - time.monotonic())))
        samples.append(rss())
finally:
    stop.set()
    ended = server.poll()
    server.terminate()
    server.wait()
    shutil.rmtree(data, ignore_errors=True)
sixth = max(1, len(samples) // 6)
first, last = statistics.mean(samples[sixth:2 * sixth]), statistics.mean(samples[-sixth:])
report = {"minutes": a.minutes, "rate": a.rate, "answers": counts, "rss_mib_after_warm_up": round(first, 1), "rss_mib_at_end": round(last, 1),
          "growth_percent": round(100 * (last / first - 1), 2), "every_minute_mib": [round(x, 1) for x in samples[5::6]], "server_ended": ended}
print(json.dumps(report, indent=1))
if a.out:
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
        f.write("\n")

"""Spawns and reaps processes with subprocess.Popen. A contestant of spawn-suite; usage and output as spawn_mech.c.

MECHANISM: plain | process_group | preexec_fn. Needs Python 3.11.
"""
import itertools
import os
import resource
import subprocess
import sys
import threading
import time

mechanism = sys.argv[1]
options = {"count": 1000, "limit": 60000, "parallel": 2, "interval": 0, "rss": 0, "threads": 0, "children": 0,
           "env": 0, "envlen": 0, "after": 0}
for argument in sys.argv[2:]:
    key, _, value = argument.partition("=")
    options[key] = value if key in {"program", "arg"} else int(value)

keywords = {
    "plain": {},
    "process_group": {"process_group": 0},
    "preexec_fn": {"preexec_fn": lambda: None},
}[mechanism]
if options["env"]:
    added = {f"HQ_BENCH_{i:03}": "x" * options["envlen"] for i in range(options["env"])}
    keywords["env"] = {**os.environ, **added}

resident = b"\1" * (options["rss"] << 20)
asleep = threading.Event()
threading.stack_size(64 * 1024)
for _ in range(options["threads"] - 1):
    threading.Thread(target=asleep.wait, daemon=True).start()
alive = [subprocess.Popen([options["program"], "pause"]) for _ in range(options["children"])]

indices = itertools.count()
done = [0] * options["parallel"]
fixed = [options["program"], *([options["arg"]] if "arg" in options else [])]
left = []


def cpu_seconds():
    """Returns the user and system CPU seconds of this process and of the children that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime for usage in usages), sum(usage.ru_stime for usage in usages)


before = cpu_seconds()
begin = time.monotonic_ns()
deadline = begin + options["limit"] * 1_000_000


def work(number):
    """Creates processes until there are enough or the time is up."""
    while True:
        index = next(indices)
        due = begin + index * options["interval"]
        if index >= options["count"] or max(time.monotonic_ns(), due) >= deadline:
            return
        command = fixed.copy()
        if options["interval"]:
            time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
            command.append(str(due))
        child = subprocess.Popen(command, **keywords)
        if options["after"]:
            left.append(child)
        elif child.wait() != 0:
            os._exit(1)
        done[number] += 1


workers = [threading.Thread(target=work, args=(number,)) for number in range(options["parallel"])]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
spawned = time.monotonic_ns()
if any(child.wait() != 0 for child in left):
    os._exit(1)
ended = time.monotonic_ns()
user, system = (after - earlier for after, earlier in zip(cpu_seconds(), before, strict=True))
print(sum(done), (ended - begin) / 1e9, (spawned - begin) / 1e9, user, system, file=sys.stderr, flush=True)
os._exit(0)

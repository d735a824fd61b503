"""How well does hq predict when a job ends? Measures the error half way through runs of a real server and workers.

    python3 benchmarks/eta.py [--hq PATH] [--rounds N] [--only NAME] [--out FILE]

Each run records twice a second what `hq status` expects, and when the job really ended. The output is the relative error of the
remaining time half way through each run, and the median of the rounds. The tasks sleep, so a loaded machine has little effect;
two CPUs are enough.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

# The name, the tasks, what task number N does, the cpus of the workers and when they start, in
# seconds.
RUNS = [
    ("steady", 160, "sleep 1", [(8, 0)]),
    ("two kinds", 200, "if [ $((N % 10)) = 3 ]; then sleep 4; else sleep 0.5; fi", [(8, 0)]),
    ("failures", 240, "if [ $((N % 5)) = 2 ]; then exit 3; fi; sleep 0.$((5 + N % 5))", [(8, 0)]),
    ("growing cluster", 300, "sleep 1", [(3, 0), (3, 8), (6, 15)]),
    ("long tail", 360, "sleep $(awk -v n=$N 'BEGIN { srand(n * 7919 + ROUND * 104729); rand(); print 0.25 * exp(1.0 * "
     "sqrt(-2 * log(1 - rand())) * cos(6.283185 * rand())) }')", [(8, 0)]),
]
GOAL = 0.20


def run(hq, name, tasks, command, workers):
    """Returns samples of (time, seconds left or None), and when the first task had started and the last one ended."""
    with tempfile.TemporaryDirectory() as directory:
        env = dict(os.environ, HQ_SERVER_DIR=os.path.join(directory, "server"))
        log = open(os.path.join(directory, "log"), "w")

        def ask(*args):
            return subprocess.run([hq, *args], env=env, cwd=directory, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, check=True, text=True).stdout

        def start(*args):
            return subprocess.Popen([hq, *args], env=env, cwd=directory, stdout=log, stderr=log)

        processes = [start("server", "start")]
        try:
            subprocess.run([hq, "server", "wait"], env=env, stdout=log, stderr=log, check=True, timeout=60)
            waiting = list(workers)
            while waiting and waiting[0][1] == 0:
                processes.append(start("worker", "start", "--cpus", str(waiting.pop(0)[0])))
            while not json.loads(ask("worker", "list", "--output-mode", "json")):
                time.sleep(0.1)
            begun = time.time()
            ask("submit", "--array", f"1-{tasks}", "--stdout", "none", "--stderr", "none", "--", "bash", "-c",
                f"N=$HQ_TASK_ID; {command}")
            samples = []
            while True:
                while waiting and time.time() - begun >= waiting[0][1]:
                    processes.append(start("worker", "start", "--cpus", str(waiting.pop(0)[0])))
                asked = time.time()
                jobs = json.loads(ask("status", "--output-mode", "json"))["unfinished_jobs"]
                if not jobs:
                    break
                samples.append((asked, jobs[0]["left"]))
                time.sleep(max(0.0, 0.5 - (time.time() - asked)))
            times = json.loads(ask("query", "--output-mode", "json",
                                   "SELECT min(started_unix_ns) / 1e9 AS a, max(ended_unix_ns) / 1e9 AS b FROM tasks"))[0]
            return samples, times["a"], times["b"]
        finally:
            subprocess.run([hq, "server", "stop"], env=env, stdout=log, stderr=log)
            for process in reversed(processes):
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


def error_at_half_time(samples, first, last):
    """Returns the error of the first forecast after the middle of the run."""
    middle = (first + last) / 2
    for at, left in samples:
        if at >= middle:
            return abs(left - (last - at)) / (last - at) if left is not None else 1.0
    return 1.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hq", default="target/release/hq")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only")
    parser.add_argument("--out", help="write what was recorded as JSON")
    options = parser.parse_args()
    recorded, worst = [], 0.0
    print(f"{'run':16} {'took':>7}  error half way, each round and median")
    for name, tasks, command, workers in RUNS:
        if options.only not in (None, name):
            continue
        errors = []
        for number in range(options.rounds):
            numbered = command.replace("ROUND", str(number))
            samples, first, last = run(os.path.abspath(options.hq), name, tasks, numbered, workers)
            errors.append(error_at_half_time(samples, first, last))
            recorded.append({"run": name, "took": last - first,
                             "samples": [[at - first, left] for at, left in samples]})
        median = statistics.median(errors)
        worst = max(worst, median)
        shown = " ".join(f"{error:6.1%}" for error in errors)
        print(f"{name:16} {last - first:6.1f}s  {shown}   median {median:.1%}", flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(recorded, file)
    print(f"largest median {worst:.1%}, goal below {GOAL:.0%}")
    sys.exit(worst >= GOAL)


if __name__ == "__main__":
    main()

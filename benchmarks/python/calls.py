"""How fast calls are: `hq.Executor` with a server, a store and a worker with two cpus, compared with ProcessPoolExecutor(2).

usage: HQ_BINARY=target/release/hq PYTHONPATH=python python3 benchmarks/python/calls.py [CALLS]

Each figure is the median of five runs that alternate between the two; only the ratios carry over to another machine.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import hq

RUNS = 5
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
LATENCIES = 300


def work(number):
    return number + 1


def mapped(executor, count, chunksize):
    begin = time.perf_counter()
    total = sum(executor.map(work, range(count), chunksize=chunksize))
    assert total == count * (count + 1) // 2
    return count / (time.perf_counter() - begin)


def submitted(executor, count):
    begin = time.perf_counter()
    futures = [executor.submit(work, number) for number in range(count)]
    for future in futures:
        future.result()
    return count / (time.perf_counter() - begin)


def latency(executor, count):
    times = []
    for number in range(count):
        begin = time.perf_counter()
        executor.submit(work, number).result()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


FIGURES = [
    ("map, one by one, /s", lambda executor: mapped(executor, CALLS, 1)),
    ("map, chunks of 50, /s", lambda executor: mapped(executor, 10 * CALLS, 50)),
    ("single submits in flight, /s", lambda executor: submitted(executor, CALLS)),
    ("one at a time, median ms", lambda executor: latency(executor, LATENCIES)),
]


def wait_for(hq_command, *args):
    while subprocess.run([*hq_command, *args], capture_output=True).returncode:
        time.sleep(0.05)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        command = [os.environ.get("HQ_BINARY", "hq"), "--server-dir", folder]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen([*command, "server", "start"], **quiet)
        wait_for(command, "server", "info")
        worker = subprocess.Popen([*command, "worker", "start", "--cpus", "2"], **quiet)
        wait_for(command, "worker", "wait", "1")
        try:
            with ProcessPoolExecutor(2) as pool, hq.Executor(server_dir=folder) as ours:
                compare(pool, ours)
            with hq.Executor(2, local=True) as alone:
                for name, figure in FIGURES:
                    figure(alone)
                    print(f"{name:32} without a server: {statistics.median(figure(alone) for _ in range(RUNS)):9.1f}")
        finally:
            subprocess.run([*command, "server", "stop"], **quiet)
            worker.wait()
            server.wait()


def compare(pool, ours):
    for name, figure in FIGURES:
        figure(pool), figure(ours)
        theirs, found = [], []
        for _ in range(RUNS):
            theirs.append(figure(pool))
            found.append(figure(ours))
        ratio = statistics.median(mine / other for mine, other in zip(found, theirs))
        print(f"{name:32} hq {statistics.median(found):9.1f}   pool {statistics.median(theirs):9.1f}   ratio {ratio:5.2f}")


if __name__ == "__main__":
    main()

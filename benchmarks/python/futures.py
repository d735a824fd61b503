"""What a million futures cost: memory of the client and of the server, and whether the rate falls.

usage: HQ_BINARY=target/release/hq PYTHONPATH=python python3 benchmarks/python/futures.py [FUTURES]

Each tenth of the calls is timed as it ends, the first ones while others are submitted. The output shows its rate, and the CPU time
per call of the server, of the worker with its interpreters, and of this process, which also shows on a busy machine whether calls
become more expensive.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time

import hq

FUTURES = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
PARTS = 10


def work(number):
    return number + 1


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def cpu_time(root):
    """Returns the CPU time of a process and its descendants in seconds."""
    parents, times = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry)] = int(fields[1])
        times[int(entry)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def is_below(process):
        while process not in (0, root):
            process = parents.get(process, 0)
        return process == root

    return sum(seconds for process, seconds in times.items() if is_below(process))


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        command = [os.environ.get("HQ_BINARY", "hq"), "--server-dir", folder]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen([*command, "server", "start"], **quiet)
        while subprocess.run([*command, "server", "info"], **quiet).returncode:
            time.sleep(0.05)
        worker = subprocess.Popen([*command, "worker", "start", "--cpus", "2"], **quiet)
        subprocess.run([*command, "worker", "wait", "1"], **quiet)
        try:
            measure(folder, server, worker)
        finally:
            subprocess.run([*command, "server", "stop"], **quiet)
            worker.wait()
            server.wait()


def measure(folder, server, worker):
    part = FUTURES // PARTS
    ends = []

    def note(_):
        used = [cpu_time(server.pid), cpu_time(worker.pid), time.process_time()]
        ends.append((time.perf_counter(), used, resident(server.pid)))

    with hq.Executor(server_dir=folder, output=None) as executor:
        note(None)
        begin = time.perf_counter()
        futures = []
        for number in range(FUTURES):
            futures.append(executor.submit(work, number))
            if (number + 1) % part == 0:
                # Calls end approximately in submit order.
                futures[-1].add_done_callback(note)
        print(f"submitted in {time.perf_counter() - begin:.1f} s, server {resident(server.pid):.0f} MiB", flush=True)
        assert sum(future.result() for future in futures) == FUTURES * (FUTURES + 1) // 2
        print(f"all: {FUTURES / (time.perf_counter() - begin):.0f}/s")
    # Wait until the last one is noted as well.
    ends.sort()
    for number in range(1, len(ends)):
        (before, used_before, _), (now, used, memory) = ends[number - 1 : number + 1]
        server_us, worker_us, client_us = (1e6 * (after - ago) / part for ago, after in zip(used_before, used))
        print(
            f"part {number}: {part / (now - before):.0f}/s; CPU time of a call: server {server_us:.0f} us, "
            f"worker {worker_us:.0f} us, client {client_us:.0f} us; server {memory:.0f} MiB"
        )
    print(f"client: at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()

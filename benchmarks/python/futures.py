"""What a million futures take: memory of the client and of the server, and whether the rate falls.

usage: HQ_BINARY=target/release/hq PYTHONPATH=python python3 benchmarks/python/futures.py [FUTURES]

All calls are submitted first; then each tenth part is timed as it ends.
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
            measure(folder, server)
        finally:
            subprocess.run([*command, "server", "stop"], **quiet)
            worker.wait()
            server.wait()


def measure(folder, server):
    with hq.Executor(server_dir=folder, output=None) as executor:
        begin = time.perf_counter()
        futures = [executor.submit(work, number) for number in range(FUTURES)]
        print(f"submitted in {time.perf_counter() - begin:.1f} s, server {resident(server.pid):.0f} MiB", flush=True)
        part = FUTURES // PARTS
        before = time.perf_counter()
        for number in range(PARTS):
            for future in futures[number * part : (number + 1) * part]:
                assert future.result() is not None
            now = time.perf_counter()
            print(f"part {number + 1}: {part / (now - before):.0f}/s, server {resident(server.pid):.0f} MiB", flush=True)
            before = now
        took = time.perf_counter() - begin
        print(f"all: {FUTURES / took:.0f}/s")
        assert sum(future.result() for future in futures) == FUTURES * (FUTURES + 1) // 2
    print(f"client: at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()

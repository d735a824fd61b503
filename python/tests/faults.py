"""Kills bridge, server, worker and interpreters at random while calls run, and checks whether every future settles.

usage: HQ_BINARY=… python faults.py [--rounds 50] [--calls 10000] [--seed 1]

Each fiftieth value is long: it stays on its worker until it is requested, and may be lost with the worker. test_faults.py
runs a few rounds with few calls.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import BrokenExecutor, wait
from pathlib import Path

from conftest import Cluster

import hq

#: How long all futures may take to settle after any fault, in seconds.
PATIENCE = 300
#: One of this many values is long, and the size of a long value in bytes.
LONG_EACH = 50
LONG = 100_000


def work(number, path, size):
    """Records its interpreter, so that the interpreter can be killed."""
    import os
    import time

    with open(os.path.join(path, str(os.getpid())), "w"):
        pass
    time.sleep(0.002)
    return number if size is None else (number, bytes(size))


def size_of(number):
    return LONG if number % LONG_EACH == 0 else None


def came_to(number, future):
    """Returns the error of a call. Fails if the call has a value other than its own."""
    error = future.exception(0)
    if error is not None:
        return error
    try:
        found = future.result()
    except BrokenExecutor as gone:
        # The value was still with its worker.
        return gone
    size = size_of(number)
    assert found == (number if size is None else (number, bytes(size))), f"call {number} has another value"
    return None


class Round:
    """One cluster and one executor with a fault."""

    def __init__(self, path, seed, calls):
        self.random = random.Random(seed)
        self.path = path
        self.pids = path / "pids"
        self.pids.mkdir()
        self.cluster = Cluster(path)
        self.server = self.cluster.start_server()
        self.worker = self.cluster.start_worker()
        self.killed = {"interpreter": 0, "worker": 0, "server": 0, "bridge": 0}
        self.executor = hq.Executor(server_dir=self.cluster.dir, crash_limit=0, output=None)
        self.futures = [self.executor.submit(work, number, str(self.pids), size_of(number)) for number in range(calls)]

    def kill_interpreter(self):
        found = sorted(self.pids.iterdir())
        if not found:
            return
        victim = self.random.choice(found)
        victim.unlink()
        try:
            # The process may be long gone, and its number may belong to another process.
            if b"socket.socket(fileno=0)" not in Path(f"/proc/{victim.name}/cmdline").read_bytes():
                return
            os.kill(int(victim.name), signal.SIGKILL)
        except OSError:
            return
        self.killed["interpreter"] += 1

    def kill_worker(self):
        self.worker.kill()
        self.worker.wait()
        self.killed["worker"] += 1
        self.worker = self.cluster.start_worker()

    def kill_server(self):
        self.server.kill()
        self.server.wait()
        self.killed["server"] += 1
        self.server = self.cluster.start_server("--resume")

    def kill_bridge(self):
        os.kill(self.executor._bridge.pid, signal.SIGKILL)
        self.killed["bridge"] += 1

    def left(self):
        return sum(not future.done() for future in self.futures)

    def play(self, deeds):
        """Does one deed whenever another part of the calls has ended, the bridge last."""
        part = max(1, len(self.futures) // (len(deeds) + 1))
        until = time.monotonic() + PATIENCE
        for number, deed in enumerate(deeds, 1):
            while self.left() > len(self.futures) - number * part:
                assert time.monotonic() < until, f"{self.left()} futures are left ahead of {deed}, {self.killed}"
                time.sleep(0.005)
            getattr(self, f"kill_{deed}")()
        wait(self.futures, timeout=max(1, until - time.monotonic()))
        assert self.left() == 0, f"{self.left()} futures hang, {self.killed}"

    def check(self):
        """Checks the outcome of each call: its result, or an error caused by a kill."""
        died = broken = 0
        for number, future in enumerate(self.futures):
            error = came_to(number, future)
            if error is None:
                continue
            if isinstance(error, BrokenExecutor):
                broken += 1
            else:
                assert isinstance(error, hq.CallDied), repr(error)
                died += 1
        assert died <= self.killed["interpreter"], f"{died} calls died, {self.killed}"
        assert (broken > 0) <= (self.killed["bridge"] > 0), f"{broken} were broken, {self.killed}"
        if broken:
            self.check_again()
        return died, broken

    def check_again(self):
        """Checks that calls continue without the process that submitted them."""
        with hq.Executor.attach(self.executor.job, server_dir=self.cluster.dir) as other:
            wait(other.futures.values(), timeout=PATIENCE)
            for number, future in other.futures.items():
                error = came_to(number, future)
                assert error is None or isinstance(error, hq.CallDied), repr(error)

    def end(self):
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.cluster.end()


def play(path, seed, calls, deeds):
    one = Round(path, seed, calls)
    try:
        one.play(deeds)
        return one.killed, one.check()
    finally:
        one.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for seed in range(asked.seed, asked.seed + asked.rounds):
        chosen = random.Random(seed)
        deeds = chosen.choices(["interpreter", "worker", "server"], [6, 1, 1], k=10)
        if chosen.random() < 0.5:
            deeds.append("bridge")
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            killed, (died, broken) = play(Path(directory), seed, asked.calls, deeds)
            os.chdir("/")
        took = time.monotonic() - begin
        print(f"seed {seed}: {asked.calls} calls in {took:.0f} s, killed {killed}; {died} died, {broken} broken", flush=True)


if __name__ == "__main__":
    sys.exit(main())

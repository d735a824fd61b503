"""How long it takes to pass a 200 MB array from one call to ten calls on another worker, compared with a copy over loopback.

usage: HQ_BINARY=target/release/hq PYTHONPATH=python python3 benchmarks/python/values.py [MB]

Needs numpy, and root: each worker has a different host name, so that neither looks for the other's files. The figures are medians
of fifteen turns of each. The copy goes from a file through a socket on 127.0.0.1 to a file.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import numpy

import hq

TURNS = 15
READERS = 10
SIZE = (int(sys.argv[1]) if len(sys.argv) > 1 else 200) * 1_000_000


def make(size):
    import numpy

    return numpy.arange(size // 8)


def last(array):
    return int(array[-1])


def copy(folder):
    """Returns the seconds for the same bytes over loopback, from a file that was just written to a new one, as with calls.

    An overwritten file would reuse memory that was in use a moment ago, which on a virtual machine can be several times as
    fast as other memory.
    """
    source, target = Path(folder, "source"), Path(folder, "target")
    numpy.arange(SIZE // 8).tofile(source)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def give():
            other, _ = server.accept()
            with other, open(source, "rb") as file:
                other.sendfile(file)

        giver = threading.Thread(target=give)
        begin = time.perf_counter()
        giver.start()
        buffer = bytearray(1 << 20)
        with socket.create_connection(server.getsockname()) as ours, open(target, "xb") as file:
            while size := ours.recv_into(buffer):
                file.write(memoryview(buffer)[:size])
        giver.join()
        seconds = time.perf_counter() - begin
    source.unlink(), target.unlink()
    return seconds


def give_out(executor):
    """Returns the seconds from an existing array to ten results, and the files that the other worker has created."""
    made = executor.options(resources={"one": 1}).submit(make, SIZE)
    wait([made])
    begin = time.perf_counter()
    readers = [executor.options(resources={"other": 1}).submit(last, made) for _ in range(READERS)]
    assert all(reader.result() == SIZE // 8 - 1 for reader in readers)
    return time.perf_counter() - begin


def start_worker(command, folder, name):
    place = Path(folder, name)
    place.mkdir()
    start = [*command, "worker", "start", "--cpus", "1", "--resource", f"{name}=sum(100)", "--work-dir", str(place)]
    apart = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *start]
    return subprocess.Popen(apart, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), place


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        command = [os.environ.get("HQ_BINARY", "hq"), "--server-dir", folder]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen([*command, "server", "start"], **quiet)
        while subprocess.run([*command, "server", "info"], **quiet).returncode:
            time.sleep(0.05)
        workers = [start_worker(command, folder, name) for name in ("one", "other")]
        subprocess.run([*command, "worker", "wait", "2"], **quiet)
        try:
            with hq.Executor(server_dir=folder) as executor:
                give_out(executor), copy(folder)
                ours, plain = [], []
                for _ in range(TURNS):
                    plain.append(copy(folder))
                    ours.append(give_out(executor))
                moved = len(list(workers[1][1].rglob("copy-*")))
                print(f"{SIZE / 1e6:.0f} MB to {READERS} calls: {statistics.median(ours) * 1e3:.0f} ms")
                print(f"a copy over loopback: {statistics.median(plain) * 1e3:.0f} ms")
                print(f"ratio: {statistics.median(mine / other for mine, other in zip(ours, plain)):.2f}")
                print(f"files that the second worker has made of {TURNS + 1} arrays: {moved}")
        finally:
            subprocess.run([*command, "server", "stop"], **quiet)
            for worker, _ in workers:
                worker.wait()
            server.wait()


if __name__ == "__main__":
    main()

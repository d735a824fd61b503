"""Does a run heal itself with real files and real processes, and how long does it take to decide what has to run?

    python3 benchmarks/healing.py [--hq PATH] [--tasks N] [--failures N] [--seed N] [graph | failures]…

graph: a job file of N tasks in four layers, each of which reads one to three files of the previous layer and writes one. It is
submitted repeatedly with `--skip-done`: after inputs were touched, outputs deleted or commands changed, with times in the
future and long ago, with another server, and after a server that was killed half way. The benchmark computes from the graph
alone which tasks have to run, and compares them with the tasks that ran.

failures: an array of N tasks that all fail, for twelve causes that differ in numbers, addresses and paths, and
the time of `hq job failures`.
"""

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

LAYERS = [0.4, 0.3, 0.2, 0.1]
TOUCHED = 37
CAUSES = [
    ("ValueError: no index for chr$((N % 97))", 1),
    ("KeyError: 'sample-$N'", 1),
    ("OSError: [Errno 28] No space left on device: '/scratch/job$N/out.bam'", 1),
    ("terminate called after throwing an instance of 'std::bad_alloc'", 134),
    ("FATAL: cannot open /data/run$N/reads_$((N * 7)).fastq", 2),
    ("Segmentation fault at 0x7f$(printf %08x $N)", 139),
    ("RuntimeError: CUDA out of memory, tried to allocate $N MiB", 1),
    ("Error: line $((N % 1000)): expected 12 fields, found $((N % 11))", 3),
    ("connect to 10.0.$((N % 200)).7:$((1024 + N % 60000)): Connection timed out", 4),
    ("assertion failed: residual < 1e-$((N % 9 + 1))", 101),
    ("License checkout failed (token $(printf %08x%04x $N $((N % 65536))))", 5),
    ("", 6),
]


def cpu_of_commands():
    """Returns the CPU seconds of all commands that have ended. A loaded machine affects them less than wall-clock time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Cluster:
    def __init__(self, hq, directory):
        self.hq, self.directory = hq, directory
        self.env = dict(os.environ, HQ_SERVER_DIR=os.path.join(directory, "server"))
        self.log = open(os.path.join(directory, "log"), "w")
        self.processes = []

    def start(self, *args):
        process = subprocess.Popen([self.hq, *args], env=self.env, cwd=self.directory, stdout=self.log, stderr=self.log)
        self.processes.append(process)
        return process

    def start_server(self, *args):
        self.server = self.start("server", "start", *args)
        self.ask("server", "wait")

    def start_worker(self, cpus):
        self.worker = self.start("worker", "start", "--cpus", str(cpus), "--detect-resources=none")

    def ask(self, *args):
        """Returns the output of a command, its duration, and its CPU time."""
        begun, used = time.perf_counter(), cpu_of_commands()
        output = subprocess.run([self.hq, *args], env=self.env, cwd=self.directory, stdout=subprocess.PIPE,
                                stderr=self.log, check=True, text=True).stdout
        return output, (time.perf_counter() - begun, cpu_of_commands() - used)

    def kill_server(self):
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()

    def stop(self):
        subprocess.run([self.hq, "server", "stop"], env=self.env, stdout=self.log, stderr=self.log)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


class Graph:
    """The names of tasks, with the files that they read. Each task writes the file with its name."""

    def __init__(self, tasks, chance):
        self.reads, before = {}, []
        for number, share in enumerate(LAYERS):
            layer = [f"l{number}/{index}" for index in range(round(tasks * share))]
            for name in layer:
                if number == 0:
                    self.reads[name] = [f"src/{name.partition('/')[2]}"]
                else:
                    self.reads[name] = chance.sample(before, chance.randint(1, 3))
            before = layer
        self.sources = [read for name, reads in self.reads.items() for read in reads if name.startswith("l0/")]
        self.revision = dict.fromkeys(self.reads, 0)

    def text(self):
        tasks = []
        for name, reads in self.reads.items():
            inputs = ", ".join(f'"{read}"' for read in reads)
            script = f"cat {' '.join(reads)} > {name}; echo {name} >> ran; : {self.revision[name]}"
            tasks.append(f'[[task]]\ncommand = ["sh", "-ec", "{script}"]\ninputs = [{inputs}]\noutputs = ["{name}"]\n')
        return "\n".join(tasks)

    def affected(self, first):
        """Returns the tasks in `first` and all their dependents. Tasks come after the tasks whose output they read."""
        affected = set(first)
        for name, reads in self.reads.items():
            if not affected.isdisjoint(reads):
                affected.add(name)
        return affected & self.reads.keys()


def graph(cluster, options, chance):
    here = cluster.directory
    made = Graph(options.tasks, chance)
    for name in ["src"] + [f"l{number}" for number in range(len(LAYERS))]:
        os.makedirs(os.path.join(here, name))
    for source in made.sources:
        with open(os.path.join(here, source), "w") as file:
            file.write(source + "\n")

    def some(names, count=TOUCHED):
        return chance.sample(sorted(names), count)

    def touch(sources, by):
        for source in sources:
            path = os.path.join(here, source)
            at = os.stat(path).st_mtime_ns + int(by * 1e9)
            os.utime(path, ns=(at, at))
        return made.affected(sources)

    def stat_all():
        begun = time.perf_counter()
        for name, reads in made.reads.items():
            for path in [name, *reads]:
                os.stat(os.path.join(here, path))
        return time.perf_counter() - begun

    def pass_(what, expected, kill=False):
        with open(os.path.join(here, "graph.toml"), "w") as file:
            file.write(made.text())
        plan, (took, cpu) = cluster.ask("--output-mode=json", "job", "submit-file", "--dry-run", "--skip-done", "graph.toml")
        left_out = json.loads(plan)["left_out"]
        cluster.ask("job", "submit-file", "--skip-done", "graph.toml")
        if kill:
            while sum(1 for _ in ran()) < len(expected) / 2:
                time.sleep(0.02)
            cluster.kill_server()
            cluster.start_server("--resume")
        cluster.ask("job", "wait", "last")
        lines = list(ran())
        if os.path.exists(os.path.join(here, "ran")):
            os.remove(os.path.join(here, "ran"))
        is_right = set(lines) == expected and len(lines) == len(expected) and left_out == options.tasks - len(expected)
        print(f"{what:34} {len(expected):6} have to run, {len(lines):6} ran, decided in {took:.2f} s, {cpu:.2f} s of cpu   "
              f"{'right' if is_right else 'WRONG'}", flush=True)
        return is_right

    def ran():
        try:
            with open(os.path.join(here, "ran")) as file:
                return [line.strip() for line in file]
        except FileNotFoundError:
            return []

    everything = set(made.reads)
    right = [pass_("everything is new", everything), pass_("nothing has changed", set())]
    print(f"{'':34} a stat of each file, one by one: {stat_all():.2f} s")
    right.append(pass_(f"{TOUCHED} inputs touched", touch(some(made.sources), 1)))
    right.append(pass_("nothing has changed", set()))
    deleted = some(made.reads)
    for name in deleted:
        os.remove(os.path.join(here, name))
    right.append(pass_(f"{TOUCHED} outputs deleted", made.affected(deleted)))
    changed = some(made.reads)
    for name in changed:
        made.revision[name] += 1
    right.append(pass_(f"{TOUCHED} commands changed", made.affected(changed)))
    right.append(pass_(f"{TOUCHED} inputs of tomorrow", touch(some(made.sources), 86_400)))
    right.append(pass_(f"{TOUCHED} inputs of last year", touch(some(made.sources), -365 * 86_400)))
    right.append(pass_("nothing has changed", set()))
    cluster.kill_server()
    # The worker would look for the server that is gone.
    cluster.worker.terminate()
    cluster.worker.wait()
    cluster.start_server()
    cluster.start_worker(options.cpus)
    right.append(pass_("another server, nothing changed", set()))
    right.append(pass_(f"another server, {TOUCHED} inputs", touch(some(made.sources), 2)))
    half = touch(made.sources[::2], 3)
    right.append(pass_("server killed half way, resumed", half, kill=True))
    right.append(pass_("nothing has changed", set()))
    return all(right)


def failures(cluster, options, _chance):
    cases = "\n".join(f'{number}) echo "{words}" >&2; exit {code};;' for number, (words, code) in enumerate(CAUSES))
    script = f"N=$HQ_TASK_ID; case $((N * 7919 % {len(CAUSES)})) in\n{cases}\nesac"
    _, (took, _) = cluster.ask("submit", "--array", f"1-{options.failures}", "--stdout=none", "--stderr=err/%{TASK_ID}",
                          "--wait", "--", "sh", "-c", script)
    print(f"{options.failures} tasks failed in {took:.0f} s")
    right = []
    for read in [[], ["--read", "1000"]]:
        taken, used = [], []
        for _ in range(5):
            output, (took, cpu) = cluster.ask("--output-mode=json", "job", "failures", "last", *read)
            taken.append(took)
            used.append(cpu)
        found = json.loads(output)[0]
        groups = found["groups"]
        print(f"hq job failures {' '.join(read):12} {found['failed']} failures, {len(groups)} groups, "
              f"output of {found['read']} read, {min(taken):.2f} to {max(taken):.2f} s, {min(used):.2f} s of cpu")
        for group in groups:
            print(f"    {group['count']:7}  {group['error']}: {group['last_words']}")
        right.append(len(groups) <= 20 and min(taken) < 1)
    return all(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hq", default="target/release/hq")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--failures", type=int, default=100_000)
    parser.add_argument("--cpus", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("parts", nargs="*", help="graph, failures; both if none is named")
    options = parser.parse_args()
    is_right = True
    for part in options.parts or ["graph", "failures"]:
        with tempfile.TemporaryDirectory() as directory:
            cluster = Cluster(os.path.abspath(options.hq), directory)
            try:
                cluster.start_server()
                cluster.start_worker(options.cpus)
                is_right &= {"graph": graph, "failures": failures}[part](cluster, options, random.Random(options.seed))
            finally:
                cluster.stop()
    sys.exit(not is_right)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A stand-in for OpenPBS: qsub, qstat, qselect, qdel, pbsnodes and pbsdsh, by the name under which it is called.

It answers as OpenPBS 23.06 was recorded to answer, is as strict about arguments, and runs the jobs on this
machine: a cluster of four nodes with two cpus each. Everything is kept in the directory PBS_STANDIN.

The file `lies` in that directory makes it misbehave: each line `COMMAND HOW` is used up by one call.
  fail      says that the server cannot be reached, and does nothing
  empty     does nothing and prints nothing
  truncate  prints the first half of its answer
  lost      does its work, and says that the answer was lost
  silent    does its work and prints nothing
  unknown   knows no job
  hang      never answers

The file `modes` there says how it is set up, one word a line, for as long as it stands there:
  no-history     ended jobs are forgotten, and `qstat -x` shows none at all (the default of PBS)
  first-only     with several ids the JSON of qstat shows only the first (as the development branch does)
  no-scheduling  jobs wait
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time

ROOT = os.environ["PBS_STANDIN"]
STATE = os.path.join(ROOT, "state.json")
NODES = 4
CPUS = 2
FORMAT = "%a %b %d %H:%M:%S %Y"
# Environment variables of a submission that qstat prints.
TOLD = ["HOME", "LANG", "PATH", "SHELL"]


class Refused(Exception):
    """The exit status and text of a rejection."""


def mode(name):
    try:
        with open(os.path.join(ROOT, "modes")) as file:
            return name in file.read().split()
    except OSError:
        return False


class Server:
    """The state of the batch system, locked while it is used."""

    def __enter__(self):
        self.lock = open(os.path.join(ROOT, "lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.data = {"next": 1, "jobs": {}}
        if os.path.exists(STATE):
            with open(STATE) as file:
                self.data = json.load(file)
        self.refresh()
        return self

    def __exit__(self, *_):
        temporary = STATE + ".new"
        with open(temporary, "w") as file:
            json.dump(self.data, file)
        os.rename(temporary, STATE)
        self.lock.close()

    @property
    def jobs(self):
        return self.data["jobs"]

    def refresh(self):
        """Detects ended jobs, and starts jobs that can run."""
        now = time.time()
        for job in self.jobs.values():
            if job["state"] != "R":
                continue
            if os.path.exists(job["exit_file"]):
                with open(job["exit_file"]) as file:
                    text = file.read().strip()
                if text:
                    self.finish(job, int(text))
            elif now > job["started"] + job["walltime"]:
                kill(job)
                self.finish(job, -29)
            elif not alive(job["pid"]):
                self.finish(job, 271)
        used = sum(j["nodes"] * j["ncpus"] for j in self.jobs.values() if j["state"] == "R")
        for job in self.jobs.values():
            needed = job["nodes"] * job["ncpus"]
            if mode("no-scheduling"):
                break
            if job["state"] == "Q" and job["nodes"] <= NODES and used + needed <= NODES * CPUS:
                used += needed
                self.start(job)

    def start(self, job):
        nodefile = os.path.join(ROOT, "aux." + job["id"])
        with open(nodefile, "w") as file:
            file.writelines(f"node{n + 1}\n" for n in range(job["nodes"]))
        env = {name: job["env"].get(name, "") for name in ("HOME", "PATH", "LANG")}
        env = {name: value for name, value in env.items() if value}
        env.update(
            NCPUS=str(job["ncpus"]),
            OMP_NUM_THREADS=str(job["ncpus"]),
            PBS_ENVIRONMENT="PBS_BATCH",
            PBS_JOBID=job["id"],
            PBS_JOBNAME=job["name"],
            PBS_NODEFILE=nodefile,
            PBS_NODENUM="0",
            PBS_TASKNUM="1",
            PBS_QUEUE="workq",
            PBS_O_HOST="pbshost",
            PBS_O_WORKDIR=job["cwd"],
            PBS_STANDIN=ROOT,
        )
        for name, value in job["env"].items():
            env["PBS_O_" + name] = value
        # The job's output is written while it runs, because no process here waits for the job to end.
        runner = 'cd "$HOME" 2>/dev/null; bash "$1" >"$2" 2>"$3"; echo $? >"$4"'
        process = subprocess.Popen(
            ["bash", "-c", runner, "job", job["script"], job["stdout"], job["stderr"], job["exit_file"]],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        job.update(state="R", pid=process.pid, started=time.time(), changed=time.time())

    def finish(self, job, status):
        job.update(state="F", exit_status=status, changed=time.time())

    def find(self, job_id):
        """Finds a job by its id, with or without the name of the server."""
        full = job_id if "." in job_id else job_id + ".pbshost"
        job = self.jobs.get(full)
        if job and job["state"] == "F" and mode("no-history"):
            return None
        return job


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def session_of(pid):
    """Returns all processes of the job, which is a session and may contain programs that create further sessions."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    found, fresh = [], [pid]
    while fresh:
        found += fresh
        fresh = [child for child, parent in parents.items() if parent in fresh and child not in found]
    return found


def kill(job):
    """Sends SIGTERM to all processes of the job, then SIGKILL."""
    everything = session_of(job["pid"])
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in everything:
            try:
                os.kill(pid, number)
            except OSError:
                pass
        deadline = time.time() + 5
        while number == signal.SIGTERM and time.time() < deadline and any(map(alive, everything)):
            time.sleep(0.02)


def parse_walltime(text):
    if not re.fullmatch(r"(\d+:){0,2}\d+(\.\d+)?", text):
        raise Refused(166, "qsub: Illegal attribute or resource value Resource_List.walltime")
    seconds = 0
    for field in text.split(":"):
        seconds = seconds * 60 + float(field)
    return int(seconds)


def parse_resources(text, job):
    for item in text.split(","):
        name, _, value = item.partition("=")
        if name == "walltime":
            job["walltime"] = parse_walltime(value)
            job["walltime_text"] = value
        elif name in ("select", "nodes"):
            count, *chunk = value.split(":")
            if not count.isdigit() or int(count) == 0:
                raise Refused(168, f"qsub: Illegal attribute or resource value Resource_List.{name}")
            job["nodes"] = int(count)
            job["select"] = value
            for part in chunk:
                resource, _, amount = part.partition("=")
                if resource not in ("ncpus", "mem", "ppn", "mpiprocs"):
                    raise Refused(187, f"qsub: Unknown resource: {resource}")
                if resource in ("ncpus", "ppn"):
                    job["ncpus"] = int(amount)
        elif name not in ("place", "ncpus", "mem"):
            raise Refused(187, f"qsub: Unknown resource: {name}")


def parse_options(words, job):
    """Parses options of qsub from its command line and from `#PBS` lines. Returns the remaining words."""
    words = list(words)
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.pop(0)
        option, value = word[:2], word[2:]
        if option == "-h":
            job["hold"] = True
            continue
        if option not in ("-N", "-o", "-e", "-l", "-q", "-A", "-j", "-P"):
            raise Refused(2, f"qsub: invalid option -- '{option[1:]}'")
        if not value:
            if not words:
                raise Refused(2, f"qsub: option requires an argument -- '{option[1:]}'")
            value = words.pop(0)
        if option == "-l":
            parse_resources(value, job)
        elif option == "-N":
            if len(value) > 230 or not re.fullmatch(r"[A-Za-z0-9_+.-]+", value):
                raise Refused(2, f"qsub: illegal -N value")
            job["name"] = value
        elif option == "-q" and value not in ("workq", "qexp"):
            raise Refused(170, "qsub: Unknown queue")
        elif option == "-o":
            job["stdout"] = value
        elif option == "-e":
            job["stderr"] = value
    return words


def qsub(args):
    job = {"hold": False, "nodes": 1, "ncpus": 1, "select": "1", "walltime": 10**6, "walltime_text": ""}
    rest = parse_options(args, job)
    if len(rest) != 1:
        raise Refused(2, "usage: qsub [options] script")
    script = rest[0]
    try:
        with open(script) as file:
            text = file.read()
    except OSError:
        raise Refused(1, "qsub: script file:: No such file or directory")
    # Options on the command line override options in the script.
    from_script = dict(job)
    for line in text.splitlines()[1:]:
        if line.startswith("#PBS "):
            left = parse_options(line[5:].split(), from_script)
            if left:
                raise Refused(2, "qsub: directive error: " + line)
        elif line and not line.startswith("#"):
            break
    if not args[:-1]:
        job = from_script
    with Server() as server:
        number = server.data["next"]
        server.data["next"] += 1
        job_id = f"{number}.pbshost"
        cwd = os.getcwd()
        name = job.get("name", os.path.basename(script))
        spool = os.path.join(ROOT, f"script.{number}")
        with open(spool, "w") as file:
            file.write(text)
        job.setdefault("stdout", os.path.join(cwd, f"{name}.o{number}"))
        job.setdefault("stderr", os.path.join(cwd, f"{name}.e{number}"))
        job.update(
            id=job_id,
            name=name,
            cwd=cwd,
            script=spool,
            exit_file=os.path.join(ROOT, f"exit.{number}"),
            state="H" if job["hold"] else "Q",
            created=time.time(),
            changed=time.time(),
            env={name: os.environ[name] for name in TOLD if name in os.environ},
        )
        server.jobs[job_id] = job
        server.refresh()
    return job_id + "\n"


def told(seconds):
    return time.strftime(FORMAT, time.localtime(seconds))


def described(job):
    """Returns a job as `qstat -f -F json` prints it. Its attributes depend on the state."""
    shown = {
        "Job_Name": job["name"],
        "Job_Owner": "root@pbshost",
        "job_state": job["state"],
        "queue": "workq",
        "server": "pbshost",
        "Checkpoint": "u",
        "ctime": told(job["created"]),
        "Error_Path": "pbshost:" + job["stderr"],
        "Hold_Types": "u" if job["state"] == "H" else "n",
        "mtime": told(job["changed"]),
        "Output_Path": "pbshost:" + job["stdout"],
        "Priority": 0,
        "qtime": told(job["created"]),
        "Rerunable": "True",
        "Resource_List": {
            "ncpus": job["nodes"] * job["ncpus"],
            "nodect": job["nodes"],
            "place": "free",
            # The value becomes a number if possible.
            "select": int(job["select"]) if job["select"].isdigit() else job["select"],
            "walltime": job["walltime_text"],
        },
        "substate": {"Q": 10, "H": 20, "R": 42, "F": 92}[job["state"]],
        "Variable_List": {
            **{"PBS_O_" + name: value for name, value in job["env"].items()},
            "PBS_O_WORKDIR": job["cwd"],
            "PBS_O_QUEUE": "workq",
            "PBS_O_HOST": "pbshost",
        },
        "queue_rank": 1.79525290464789e15,
    }
    if job["state"] == "Q" and job["nodes"] > NODES:
        shown["comment"] = "Can Never Run: Insufficient amount of resource: ncpus"
    if "started" in job:
        shown["stime"] = told(job["started"])
        shown["run_count"] = 1
    if job["state"] == "F" and "exit_status" in job:
        shown["Exit_status"] = job["exit_status"]
    return shown


def plain(job_id, shown):
    """Returns a job as `qstat -f` prints it, with long lines broken in the same way."""
    lines = [f"Job Id: {job_id}"]
    for name, value in shown.items():
        if name == "Variable_List":
            value = ",".join(f"{variable}={text}" for variable, text in value.items())
        if isinstance(value, dict):
            lines += [f"    {name}.{key} = {item}" for key, item in value.items()]
        else:
            line = f"    {name} = {value}"
            lines.append(line[:78])
            lines += ["\t" + line[at : at + 70] for at in range(78, len(line), 70)]
    return "\n".join(lines) + "\n\n"


def qstat(args):
    """`qstat -f [-F json] [-x] [ID…]`, options in any order and repeated, as getopt takes them."""
    ids, full, json_wanted, history = [], False, False, False
    words = list(args)
    while words:
        word = words.pop(0)
        if word == "-f":
            full = True
        elif word == "-x":
            history = True
        elif word == "-F":
            if not words or words.pop(0) != "json":
                raise Refused(1, "qstat: unsupported format")
            json_wanted = True
        elif word.startswith("-"):
            raise Refused(2, f"qstat: invalid option -- '{word[1:]}'")
        else:
            ids.append(word)
    if not full:
        raise Refused(2, "qstat: the stand-in knows `-f` only")
    answer = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": "pbshost"}
    found, problems, status = {}, [], 0
    if history and mode("no-history"):
        # The exit status still reports success.
        text = "qstat: PBS is not configured to maintain job history"
        problems = [f"{text} {job_id}" for job_id in ids] or [text]
        return json.dumps(answer) + "\n", "".join(p + "\n" for p in problems), 0
    with Server() as server:
        for job_id in ids or list(server.jobs):
            job = server.find(job_id)
            if job is None and not ids:
                continue
            if job is None:
                problems.append(f"qstat: Unknown Job Id {job_id}")
                status = 153
            elif job["state"] == "F" and not history:
                if ids:
                    text = "Job has finished, use -x or -H to obtain historical job information"
                    problems.append(f"qstat: {job_id} {text}")
                    status = status or 35
            else:
                found[job["id"]] = described(job)
    if not json_wanted:
        text = "".join(plain(job_id, shown) for job_id, shown in found.items())
        return text, "".join(p + "\n" for p in problems), status
    if found and mode("first-only"):
        found = dict(list(found.items())[:1])
    if found:
        answer["Jobs"] = found
    return json.dumps(answer, indent=1) + "\n", "".join(p + "\n" for p in problems), status


def qselect(args):
    """`qselect [-x] -N NAME`. The exit status reports success also if there is no history."""
    history = "-x" in args
    words = [word for word in args if word != "-x"]
    if len(words) != 2 or words[0] != "-N":
        raise Refused(2, "usage: qselect [-x] -N name")
    if history and mode("no-history"):
        return "", "qselect: PBS is not configured to maintain job history\n", 0
    with Server() as server:
        jobs = [job for job in server.jobs.values() if history or job["state"] != "F"]
    found = [job["id"] for job in jobs if job["name"] == words[1]]
    return "".join(f"{job_id}\n" for job_id in found), "", 0


def qdel(args):
    if not args or any(word.startswith("-") for word in args):
        raise Refused(2, "usage: qdel job_identifier...")
    problems, status = [], 0
    for job_id in args:
        with Server() as server:
            job = server.find(job_id)
            was = job["state"] if job else None
            if was in ("Q", "H"):
                # A job that never ran has no exit status.
                job.update(state="F", changed=time.time())
        if was is None:
            problems.append(f"qdel: Unknown Job Id {job_id}")
            status = 153
        elif was == "F":
            problems.append(f"qdel: Job has finished {job_id}")
            status = 35
        elif was == "R":
            kill(job)
            with Server() as server:
                server.finish(server.find(job_id), 271)
    return "", "".join(p + "\n" for p in problems), status


def pbsnodes(args):
    if args != ["-a", "-F", "json"]:
        raise Refused(2, "pbsnodes: the stand-in knows `-a -F json` only")
    nodes = {
        f"node{n + 1}": {
            "Mom": f"node{n + 1}",
            "ntype": "PBS",
            "state": "free",
            "pcpus": CPUS,
            "resources_available": {"ncpus": CPUS, "vnode": f"node{n + 1}"},
        }
        for n in range(NODES)
    }
    answer = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": "pbshost"}
    return json.dumps({**answer, "nodes": nodes}, indent=1) + "\n"


def pbsdsh(args):
    """Runs a program on each node of the job, with an almost empty environment."""
    if args[:1] != ["--"] or len(args) < 2 or "PBS_JOBID" not in os.environ:
        raise Refused(1, "pbsdsh: usage: pbsdsh -- program [args] inside a job")
    with open(os.environ["PBS_NODEFILE"]) as file:
        nodes = file.read().split()
    # The login environment of the nodes.
    kept = ("HOME", "PATH", "PBS_JOBID", "PBS_ENVIRONMENT", "PBS_STANDIN", "NCPUS")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    children = [
        subprocess.Popen(args[1:], env={**env, "PBS_NODENUM": str(number)})
        for number in range(len(nodes))
    ]
    sys.exit(max([child.wait() for child in children]))


def next_lie(command):
    """Consumes the first line about this command."""
    path = os.path.join(ROOT, "lies")
    with open(os.path.join(ROOT, "lies.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            return ""
        with open(path) as file:
            lines = file.read().splitlines()
        for line in lines:
            name, _, how = line.partition(" ")
            if name == command:
                lines.remove(line)
                with open(path, "w") as file:
                    file.writelines(line + "\n" for line in lines)
                return how.strip()
    return ""


def main():
    command, args = os.path.basename(sys.argv[0]), sys.argv[1:]
    if command == "pbsdsh":
        pbsdsh(args)
    with open(os.path.join(ROOT, "calls"), "a") as file:
        file.write(" ".join([command, *args]) + "\n")
    lie = next_lie(command)
    if lie == "fail":
        sys.stderr.write(f"{command}: cannot connect to server pbshost (errno=15010)\n")
        sys.exit(1)
    if lie == "empty":
        sys.exit(0)
    if lie == "hang":
        time.sleep(100_000)
    if lie == "unknown":
        sys.stderr.write("".join(f"{command}: Unknown Job Id {a}\n" for a in args if a[0].isdigit()))
        print(json.dumps({"timestamp": 1, "pbs_version": "23.06.06", "pbs_server": "pbshost"}))
        sys.exit(153)
    try:
        answer = {"qsub": qsub, "qstat": qstat, "qselect": qselect, "qdel": qdel, "pbsnodes": pbsnodes}[command](args)
    except Refused as refused:
        status, text = refused.args
        sys.stderr.write(text + "\n")
        sys.exit(status)
    stdout, stderr, status = answer if isinstance(answer, tuple) else (answer, "", 0)
    if lie == "lost":
        sys.stderr.write(f"{command}: End of File\n")
        sys.exit(1)
    if lie == "silent":
        sys.exit(0)
    if lie == "truncate":
        stdout = stdout[: len(stdout) // 2]
    sys.stdout.write(stdout)
    sys.stderr.write(stderr)
    sys.exit(status)


main()

# mypy: ignore-errors
"""What runs on a worker: takes calls from a socket, one at a time, and answers each.

The worker sends this text to the interpreter that it has started, so that nothing needs to be installed there. It uses
the standard library only. See crates/worker/src/launcher/calls/packet.rs for the packets.
"""

import json
import mmap
import os
import pickle
import resource
import signal
import struct
import sys
import time

PACKET_MAX = 128 << 10
# A value that does not fit into a packet goes through a file.
INLINE_MAX = 60 << 10
MESSAGE_MAX = 2_000
PAGE = os.sysconf("SC_PAGE_SIZE")
FUNCTIONS_MAX = 256

# First byte of what a call came to.
VALUE, EXCEPTION, DESCRIBED, IN_FILE, UNPICKLABLE, INIT_FAILED, MISFIT = range(7)

CALL = struct.Struct("<BBQIII")
DONE = struct.Struct("<BBQQQQQQQI")

# A file with a value: length of the pickle and number of buffers, offset and length of each; see _held.py.
HEAD = struct.Struct("<QQ")
ALIGNMENT = 64


class Interpreter:
    def __init__(self, sock):
        # The socket came as standard input, which calls and their children must not read.
        self.sock = sock.dup()
        sock.detach()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        self.pid = os.getpid()
        self.buffer = bytearray(PACKET_MAX)
        self.view = memoryview(self.buffer)
        self.functions = {}
        self.spool = None
        self.refusal = None
        self.calls_left = None
        self.memory_max = None
        # Variables of `init`, which its calls are to see if they were sent by value: each pickle has its own.
        self.shared = {}
        self.ends = [0, 0]
        self.task = self.instance = self.job = None
        self.cpu = (0, 0)

    def receive(self):
        size = self.sock.recv_into(self.buffer)
        if not size:
            # The worker is gone.
            os._exit(0)
        return self.view[:size]

    def content(self, flags, data):
        if not flags & 2:
            return data
        path = os.fsdecode(bytes(data))
        with open(path, "rb") as file:
            content = file.read()
        os.unlink(path)
        return content

    def prepare(self):
        packet = self.receive()
        context = bytes(self.content(packet[1], packet[2:]))
        head, _, init = context.partition(b"\n")
        head = json.loads(head or b"{}")
        self.spool = head.get("spool")
        self.calls_left = head.get("max_calls")
        self.memory_max = head.get("max_memory")
        sys.path[:] = head.get("path") or sys.path
        if "argv" in head:
            sys.argv[:] = head["argv"]
        theirs, ours = head.get("python"), list(sys.version_info[:2])
        if theirs and theirs != ours:
            text = (
                f"The call was made by Python {theirs[0]}.{theirs[1]}, but the interpreter on the worker, {sys.executable}, "
                f"is Python {ours[0]}.{ours[1]}: name another one with python=..."
            )
            self.refusal = bytes([MISFIT]) + text.encode(), text
        elif init:
            try:
                function, args = pickle.loads(init)
                function(*args)
                if is_by_value(function):
                    self.shared = function.__globals__
            except BaseException as error:
                described = describe(error)
                self.refusal = bytes([INIT_FAILED]) + described[0], "init failed: " + described[1]
        self.sock.send(b"\0")

    def run(self):
        self.prepare()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu = (usage.ru_utime, usage.ru_stime)
        while True:
            packet = self.receive()
            _, flags, token, job, task, instance = CALL.unpack_from(packet)
            rest = packet[CALL.size :]
            begin = time.perf_counter_ns()
            try:
                if flags & 1:
                    (size,) = struct.unpack_from("<I", rest)
                    self.move(json.loads(bytes(rest[4 : 4 + size])))
                    rest = rest[4 + size :]
                self.name(job, task, instance)
                if self.refusal:
                    value, message = self.refusal
                else:
                    value, message = self.call(self.content(flags, rest))
            except KeyboardInterrupt:
                # The worker wants the call to end, and the interpreter with it.
                os._exit(130)
            except BaseException as error:
                value, message = describe(error)
                value = bytes([DESCRIBED]) + value
            del rest, packet
            if os.getpid() != self.pid:
                # A child of the call that went on as if it were its parent.
                os._exit(1 if message else 0)
            if len(value) > INLINE_MAX:
                value, message = self.put_aside(value, message)
            self.answer(token, begin, value, message)

    def move(self, place):
        cwd = place["cwd"].encode("latin-1")
        os.chdir(cwd)
        os.environ.update(place["env"])
        if place["cpus"]:
            os.sched_setaffinity(0, place["cpus"])

    def name(self, job, task, instance):
        if job != self.job:
            self.job = job
            os.environ["HQ_JOB_ID"] = str(job)
        if instance != self.instance:
            self.instance = instance
            os.environ["HQ_INSTANCE_ID"] = str(instance)
        os.environ["HQ_TASK_ID"] = str(task)

    def call(self, payload):
        if payload[0] == 2:
            # Too long for the server: the caller has put it into a file, which stays for another attempt.
            with open(bytes(payload[1:]), "rb") as file:
                payload = memoryview(file.read())
        is_chunk = payload[0]
        (size,) = struct.unpack_from("<I", payload, 1)
        name = bytes(payload[5 : 5 + size])
        try:
            function = self.functions.get(name)
            if function is None:
                if len(self.functions) >= FUNCTIONS_MAX:
                    self.functions.clear()
                function = self.functions[name] = pickle.loads(name)
                if self.shared and is_by_value(function):
                    names = function.__globals__
                    names.update({word: self.shared[word] for word in names if word in self.shared})
            arguments = pickle.loads(payload[5 + size :])
            if is_chunk:
                result = [function(*args) for args in arguments]
            else:
                args, kwargs = arguments
                result = function(*args, **kwargs)
            del arguments
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.failure(error)
        try:
            return VALUE_BYTE + dumps(result), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            kind = type(result).__qualname__
            text = f"the result, of type {kind}, cannot be pickled: {type(error).__name__}: {error}"
            return bytes([UNPICKLABLE]) + text.encode("utf-8", "backslashreplace"), text

    def failure(self, error):
        described, message = describe(error)
        try:
            # The frames hold what the call had; they cannot be pickled, and are in the text.
            text = json.loads(described)["traceback"]
            error.__traceback__ = None
            pickled = dumps((error, text))
            pickle.loads(pickled)
            return bytes([EXCEPTION]) + pickled, message
        except KeyboardInterrupt:
            raise
        except BaseException:
            return bytes([DESCRIBED]) + described, message

    def put_aside(self, value, message):
        try:
            if self.spool is None:
                raise OSError(f"a value of {len(value)} bytes needs a directory")
            os.makedirs(self.spool, 0o700, exist_ok=True)
            path = os.path.join(self.spool, f"value-{self.job}-{self.task_name()}-{os.urandom(6).hex()}")
            with open(path, "wb") as file:
                file.write(value)
            return bytes([IN_FILE]) + os.fsencode(path), message
        except OSError as error:
            text = f"the result has {len(value)} bytes and cannot be put into {self.spool}: {error}"
            return bytes([UNPICKLABLE]) + text.encode("utf-8", "backslashreplace"), text

    def task_name(self):
        return os.environ.get("HQ_TASK_ID", "")

    def answer(self, token, begin, value, message):
        for number, stream in ((0, sys.stdout), (1, sys.stderr)):
            try:
                stream.flush()
            except Exception:
                pass
            try:
                self.ends[number] = os.fstat(number + 1).st_size
            except OSError:
                # The call has closed it.
                pass
        usage = resource.getrusage(resource.RUSAGE_SELF)
        user, system = usage.ru_utime, usage.ru_stime
        text = b"" if message is None else message[:MESSAGE_MAX].encode("utf-8", "backslashreplace")
        head = DONE.pack(
            1,
            message is None,
            token,
            time.perf_counter_ns() - begin,
            max(0, int((user - self.cpu[0]) * 1e6)),
            max(0, int((system - self.cpu[1]) * 1e6)),
            usage.ru_maxrss,
            self.ends[0],
            self.ends[1],
            len(text),
        )
        self.cpu = (user, system)
        self.sock.send(b"".join((head, text, value)))
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                os._exit(0)
        if self.memory_max is not None and memory_used() > self.memory_max:
            os._exit(0)


VALUE_BYTE = bytes([VALUE])


def is_by_value(function):
    """Whether a function has variables of its own, not those of a module."""
    names = getattr(function, "__globals__", None)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    return names is not None and names is not getattr(module, "__dict__", None)


def memory_used():
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE


def dumps(value):
    try:
        return pickle.dumps(value, 5)
    except KeyboardInterrupt:
        raise
    except BaseException:
        cloudpickle = sys.modules.get("cloudpickle")
        if cloudpickle is None:
            raise
        return cloudpickle.dumps(value, 5)


def map_value(path):
    with open(path, "rb") as file:
        # What is changed in it is changed in memory only, and what nobody touches is not read.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def load_value(view):
    size, count = HEAD.unpack_from(view)
    begin = HEAD.size * (1 + count)
    places = [HEAD.unpack_from(view, HEAD.size * (1 + number)) for number in range(count)]
    return pickle.loads(view[begin : begin + size], buffers=[view[at : at + length] for at, length in places])


def describe(error):
    """Type, text and traceback of an exception as JSON, and the first line for people."""
    import traceback

    try:
        text = str(error)
    except BaseException:
        text = "(its text cannot be made)"
    try:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:
        lines = ""
    if len(lines) > 20_000:
        lines = lines[:10_000] + "\n...\n" + lines[-10_000:]
    name = type(error).__qualname__
    described = {"type": name, "module": type(error).__module__, "text": text[:10_000], "traceback": lines}
    message = f"{name}: {text}" if text else name
    return json.dumps(described).encode(), message


if "s" in globals():
    # The socket of the line that runs this text; the package on the other side reads values with what is above.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Interpreter(s).run()  # noqa: F821

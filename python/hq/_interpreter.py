# mypy: ignore-errors
"""Interpreter on a worker: receives calls from a socket, one at a time, and answers each.

The worker sends this text to each interpreter, so nothing needs to be installed there. It uses only the standard
library. See crates/worker/src/launcher/calls/packet.rs for the packets.
"""

import errno
import io
import json
import mmap
import os
import pickle
import resource
import signal
import socket
import stat
import struct
import sys
import time
import types

PACKET_MAX = 128 << 10
# A value longer than this is stored in a file, which the worker keeps.
INLINE_MAX = 60 << 10
# A buffer shorter than this, such as a small array, is pickled with the rest.
BUFFER_MIN = 4 << 10
# Maximum size of a value, unless the client sets another one.
VALUE_MAX = 16 << 30
MESSAGE_MAX = 2_000
PAGE = os.sysconf("SC_PAGE_SIZE")
FUNCTIONS_MAX = 256
# A call shorter than this cannot have run child processes, so their usage is not read.
CHILD_NS_MIN = 200_000
# The size of the key of a memoized call, and the mark behind it at the end of a result.
KEY_SIZE = 32
MEMO = b"\0hq memo"
# Seconds for threads that calls have left behind when the interpreter ends.
GRACE = 5
# If a call is shorter than this, a peak below `floor` is not read.
LOW_PEAK_NS_MIN = 10_000_000
# The kernel's memory peak is reset after a call raised it by more than this, in KiB.
PEAK_STEP = 1 << 10

# The first byte of an outcome.
VALUE, EXCEPTION, DESCRIBED, IN_FILE, UNPICKLABLE, INIT_FAILED, MISFIT, HELD, LOST, TOO_LARGE, DIED = range(11)

CALL = struct.Struct("<BBQIII")
SIZE = struct.Struct("<Q")
PASSED = struct.Struct("@i")
PASSED_SPACE = socket.CMSG_SPACE(PASSED.size)
READY = struct.Struct("<BQQ")
DONE = struct.Struct("<BBQQQQQQQI")
# A file with a value: length of the pickle and number of buffers, offset and length of each; see _held.py.
HEAD = struct.Struct("<QQ")
ALIGNMENT = 64


class Interpreter:
    def __init__(self, sock):
        # The socket arrived as standard input, which calls and their children must not read.
        self.sock = sock.dup()
        sock.detach()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        self.pid = os.getpid()
        self.buffer = bytearray(PACKET_MAX)
        self.view = memoryview(self.buffer)
        # Descriptor that came with the last packet.
        self.passed = None
        self.functions = {}
        self.spool = None
        self.values = None
        # The maximum size in bytes of the values that the worker keeps.
        self.values_limit = None
        self.value_max = VALUE_MAX
        self.is_forked = False
        # References to values that the call reads, and its values from files of the client.
        self.needs = []
        self.stored = {}
        # The result of a memoized call ends with its key and a mark.
        self.memo = b""
        # The client's script, if it was imported: module, path and time of change. Its own module must outlive that.
        self.script = None
        self.main = sys.modules["__main__"]
        self.refusal = None
        self.calls_left = None
        self.memory_max = None
        # Variables of `init`, including new ones, for calls that were sent by value: each pickle has its own.
        self.shared = {}
        self.ends = [0, 0]
        self.task = self.instance = self.job = None
        # CPU time of reaped children in µs; in a forked child also of its parent.
        self.user = self.system = 0
        self.before = (0, 0)
        # Memory of the largest reaped child, and the memory after the last reset of the peak, in KiB.
        self.child_peak = self.base = 0
        # The kernel's peak is at least the worker's memory at the start of this process; the smaller peak since then.
        self.floor = self.low_peak = 0

    def receive(self):
        size, control, _, _ = self.sock.recvmsg_into((self.buffer,), PASSED_SPACE, socket.MSG_CMSG_CLOEXEC)
        if self.passed is not None:
            # The last call was refused before its payload was read.
            os.close(self.passed)
            self.passed = None
        if control:
            (self.passed,) = PASSED.unpack(control[0][2])
        if not size:
            # The worker is gone.
            leave()
        return self.view[:size]

    def content(self, flags, data):
        if not flags & 2:
            return data
        passed, self.passed = self.passed, None
        with open(passed, "rb") as file:
            return file.read()

    def prepare(self):
        packet = self.receive()
        context = bytes(self.content(packet[1], packet[2:]))
        head, _, init = context.partition(b"\n")
        head = json.loads(head or b"{}")
        self.spool = head.get("values")
        self.value_max = head.get("max_value") or VALUE_MAX
        self.is_forked = head.get("mode") == "fork"
        # Pickled arguments refer to values by this name.
        module = types.ModuleType("_hq_values")

        def load(index):
            return self.load_need(index)

        load.__module__, load.__qualname__ = "_hq_values", "load"
        module.load, module.load_file, module.find = load, self.load_file, self.find
        sys.modules["_hq_values"] = module
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
                before = [(names, dict(names)) for names in variables_of(function)]
                function(*args)
                for names in variables_of(function):
                    old = next((copy for one, copy in before if one is names), {})
                    for word, value in names.items():
                        # A variable that init left unchanged may differ by now in the calling process.
                        is_left = word in old and old[word] is value and is_fixed(value)
                        if not is_left and not word.startswith("__"):
                            self.shared[word] = value
            except BaseException as error:
                described = describe(error)
                self.refusal = bytes([INIT_FAILED]) + described[0], "init failed: " + described[1]
        usage = self.look_at_children()
        self.low_peak = low_peak()
        if usage.ru_maxrss > self.low_peak:
            self.floor = usage.ru_maxrss
        self.sock.send(READY.pack(0, *self.used(usage)))
        self.set_peak_back(usage)

    def run(self):
        self.prepare()
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
                    payload = self.content(flags, rest)
                    if self.is_forked:
                        done = self.fork(token, begin, payload)
                        del rest, packet, payload
                        if done is not None:
                            self.answer(token, begin, *done)
                        self.end_if_spent()
                        continue
                    value, message = self.call(token, payload)
                    del payload
            except KeyboardInterrupt:
                # The worker ends the call together with the interpreter.
                os._exit(130)
            except BaseException as error:
                value, message = self.described(error)
            del rest, packet
            if os.getpid() != self.pid:
                # A child of the call that continued as if it were its parent.
                os._exit(1 if message else 0)
            self.answer(token, begin, value, message)
            self.end_if_spent()

    def fork(self, token, begin, payload):
        """Runs a call in a child process. Returns its end if the child has not reported it."""
        self.warm(payload)
        # Each child would print the buffered output of an import again.
        flush(sys.stdout)
        flush(sys.stderr)
        used = self.used(self.look_at_children())
        told, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = os.fork()
            if not pid:
                try:
                    self.pid = os.getpid()
                    # A child starts with the current memory of its parent and without CPU time.
                    self.user, self.system = used
                    self.before = used
                    self.child_peak = self.floor = 0
                    value, message = self.call(token, payload)
                    if os.getpid() == self.pid:
                        self.answer(token, begin, value, message)
                        os.write(tell, b"1")
                finally:
                    os._exit(0)
            _, status, usage = os.wait4(pid, 0)
            try:
                if os.read(told, 1):
                    return None
            except BlockingIOError:
                pass
        finally:
            os.close(told)
            os.close(tell)
        self.remove_value(token)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name if number in signal.Signals.__members__.values() else "unknown"
            text = f"The process of the call received signal {number} ({name})"
        else:
            text = f"The process of the call ended with exit code {os.WEXITSTATUS(status)} during the call"
        return bytes([DIED]) + text.encode(), text, usage.ru_maxrss

    def warm(self, payload):
        """Imports modules in the parent, for all children."""
        try:
            self.function(self.parts(payload)[0])
        except BaseException:
            # The error occurs again in the child, which reports it.
            pass
        finally:
            self.stored = {}

    def end_if_spent(self):
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                leave()
        if self.memory_max is not None and memory_used() > self.memory_max:
            leave()

    def move(self, place):
        cwd = place["cwd"].encode("latin-1")
        self.values = place.get("values", "").encode("latin-1")
        self.values_limit = place.get("values_limit")
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

    def parts(self, payload):
        """Returns the pickled function and arguments, and whether they belong to several calls."""
        self.needs = []
        self.stored = {}
        self.memo = b""
        if payload[0] == 3:
            (size,) = struct.unpack_from("<I", payload, 1)
            self.needs = [[reference] for reference in json.loads(bytes(payload[5 : 5 + size]))]
            payload = payload[5 + size :]
        if payload[0] == 5:
            self.memo = bytes(payload[1 : 1 + KEY_SIZE]) + MEMO
            payload = payload[1 + KEY_SIZE :]
        if payload[0] == 2:
            # From a client of an earlier release: everything is in a file.
            with own_file(bytes(payload[1:])) as file:
                payload = memoryview(file.read())
        (size,) = struct.unpack_from("<I", payload, 1)
        return bytes(payload[5 : 5 + size]), payload[5 + size :], payload[0]

    def function(self, name):
        function = self.functions.get(name)
        if function is None:
            if len(self.functions) >= FUNCTIONS_MAX:
                self.functions.clear()
            function = pickle.loads(name)
            if not self.stored:
                # Otherwise the function would keep a file of the client.
                self.functions[name] = function
            if self.shared:
                for names in variables_of(function):
                    names.update(self.shared)
        return function

    def call(self, token, payload):
        try:
            name, arguments, is_chunk = self.parts(payload)
            function = self.function(name)
            arguments = pickle.loads(arguments)
            self.needs = []
            self.stored = {}
            if is_chunk:
                result = [function(*args) for args in arguments]
            else:
                args, kwargs = arguments
                result = function(*args, **kwargs)
            del arguments
        except KeyboardInterrupt:
            raise
        except Lost as lost:
            return lost.args
        except BaseException as error:
            return self.failure(error)
        finally:
            self.needs = []
            self.stored = {}
        if type(result) in SIMPLE:
            return VALUE_BYTE + pickle.dumps(result, 5) + self.memo, None
        return self.result(token, result)

    def result(self, token, result):
        kind = type(result).__qualname__
        buffers = []
        try:
            pickled = dumps(result, buffers)
            size = len(pickled) + sum(len(buffer) for buffer in buffers)
            if size + len(self.memo) <= INLINE_MAX:
                return VALUE_BYTE + (dumps(result, None) if buffers else pickled) + self.memo, None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            text = f"the result, of type {kind}, cannot be pickled: {type(error).__name__}: {error}"
            return bytes([UNPICKLABLE]) + text.encode("utf-8", "backslashreplace")[:INLINE_MAX], text
        if size > self.value_max:
            text = f"the result, of type {kind}, has {size} bytes, and at most {self.value_max} are allowed (max_value)"
            return bytes([TOO_LARGE]) + text.encode(), text
        if self.spool is not None:
            return self.put_aside(result, kind)
        if self.values_limit is not None and size > self.values_limit:
            text = (
                f"the result, of type {kind}, has {size} bytes, and its worker keeps at most {self.values_limit} bytes of values "
                "(--values-limit)"
            )
            return bytes([TOO_LARGE]) + text.encode(), text
        return self.hold(token, (pickled, buffers), size, kind)

    def hold(self, token, parts, size, kind):
        """Writes a value to the file that the worker expects."""
        path = self.value_path(token)
        try:
            write_value(path, *parts)
        except OSError as error:
            self.remove_value(token)
            text = f"the result, of type {kind}, has {size} bytes and cannot be put into {os.fsdecode(self.values)}: {error}"
            return bytes([TOO_LARGE]) + text.encode("utf-8", "backslashreplace"), text
        # The worker turns it into a value.
        return os.stat(path).st_size, None

    def value_path(self, token):
        return os.path.join(self.values, b"value-%d" % token)

    def remove_value(self, token):
        try:
            os.unlink(self.value_path(token))
        except OSError:
            pass

    def load_need(self, index):
        """Loads a value that the call reads, while its arguments are unpickled."""
        need = self.needs[index]
        if len(need) == 1:
            reference = need[0]
            try:
                view = map_value(reference["path"].encode("latin-1"))
            except OSError as error:
                text = f"A value that the call needs is not there: {error}"
                described = {"ref": reference, "why": "gone", "text": text}
                raise Lost(bytes([LOST]) + json.dumps(described).encode(), text) from None
            need.append(load_value(view))
        return need[1]

    def load_file(self, path, number):
        """Loads a value from a file of the client. Within a call, a value is one object for each number."""
        key = path, number
        if key not in self.stored:
            self.stored[key] = load_value(map_value(path))
        return self.stored[key]

    def find(self, name, path, changed, what):
        """Returns a function or class of the client's script, which is imported without its main part, as `multiprocessing` does."""
        if self.script != (name, path, changed):
            import runpy

            self.script = None
            module = types.ModuleType("__mp_main__")
            sys.modules["__mp_main__"] = sys.modules["__main__"] = module
            values = sys.modules["_hq_values"]
            # `hq.Executor` refuses to start meanwhile.
            values.is_importing = True
            try:
                if name is None:
                    content = runpy.run_path(path, run_name="__mp_main__")
                else:
                    content = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
                module.__dict__.update(content)
            finally:
                values.is_importing = False
            self.script = name, path, changed
        found = sys.modules["__mp_main__"]
        for part in what.split("."):
            found = getattr(found, part)
        return found

    def described(self, error):
        described, message = describe(error)
        return bytes([DESCRIBED]) + described, message

    def failure(self, error):
        described, message = describe(error)
        try:
            # The frames hold objects of the call; they cannot be pickled, and are in the text.
            text = json.loads(described)["traceback"]
            error.__traceback__ = None
        except BaseException:
            return bytes([DESCRIBED]) + described, message
        # Classes whose `__init__` takes other arguments than `args` need a copy that does not call it.
        for sent in error, Rebuilt(error):
            try:
                pickled = dumps((sent, text), None)
                if len(pickled) <= INLINE_MAX:
                    pickle.loads(pickled)
                    return bytes([EXCEPTION]) + pickled, message
            except KeyboardInterrupt:
                raise
            except BaseException:
                pass
        return bytes([DESCRIBED]) + described, message

    def put_aside(self, result, kind):
        """Writes a value to the directory that client and workers share."""
        value = VALUE_BYTE + dumps(result, None) + self.memo
        try:
            own_dir(self.spool)
            path = os.path.join(self.spool, f"value-{self.job}-{self.task_name()}-{os.urandom(6).hex()}")
            with own_file(path, NEW) as file:
                file.write(value)
            return bytes([IN_FILE]) + os.fsencode(path), None
        except OSError as error:
            text = f"the result, of type {kind}, has {len(value)} bytes and cannot be put into {self.spool}: {error}"
            return bytes([TOO_LARGE]) + text.encode("utf-8", "backslashreplace"), text

    def task_name(self):
        return os.environ.get("HQ_TASK_ID", "")

    def look_at_children(self):
        """Records the usage of reaped children. Returns the usage of this process."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        user, system = self.before
        self.user = user + int(usage.ru_utime * 1e6)
        self.system = system + int(usage.ru_stime * 1e6)
        self.child_peak = max(self.child_peak, usage.ru_maxrss)
        return resource.getrusage(resource.RUSAGE_SELF)

    def used(self, usage):
        """Returns the CPU time since the start of the interpreter, user and system, in µs."""
        return self.user + int(usage.ru_utime * 1e6), self.system + int(usage.ru_stime * 1e6)

    def set_peak_back(self, usage):
        """Resets the memory peak for the next calls."""
        if usage.ru_maxrss <= max(self.base, self.floor) + PEAK_STEP or self.is_forked:
            return
        try:
            # Opened each time: a call may close open files.
            peak = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(peak, b"5")
            finally:
                os.close(peak)
            self.base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self.low_peak = low_peak()
        except OSError:
            # Not supported by this kernel: the peak stays that of the whole process.
            self.base = sys.maxsize

    def peak(self, usage, run):
        """Returns the peak resident memory since the last reset, in KiB."""
        if usage.ru_maxrss > self.floor:
            return usage.ru_maxrss
        if run >= LOW_PEAK_NS_MIN:
            self.low_peak = low_peak()
        return self.low_peak

    def answer(self, token, begin, value, message, peak=None):
        for number, stream in ((0, sys.stdout), (1, sys.stderr)):
            flush(stream)
            try:
                self.ends[number] = os.fstat(number + 1).st_size
            except OSError:
                # The call has closed it.
                pass
        run = time.perf_counter_ns() - begin
        if run >= CHILD_NS_MIN:
            largest = self.child_peak
            usage = self.look_at_children()
            # A child that was no larger than a child of an earlier call cannot be distinguished.
            own = max(self.peak(usage, run), self.child_peak if self.child_peak > largest else 0)
        else:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            own = self.peak(usage, run)
        user, system = self.used(usage)
        text = b"" if message is None else message[:MESSAGE_MAX].encode("utf-8", "backslashreplace")
        is_held = type(value) is int
        if is_held:
            value = SIZE.pack(value)
        head = DONE.pack(
            1,
            (message is None) | is_held << 1,
            token,
            run,
            user,
            system,
            own if peak is None else peak,
            self.ends[0],
            self.ends[1],
            len(text),
        )
        self.sock.send(b"".join((head, text, value)))
        self.set_peak_back(usage)


def leave():
    """Ends this process. Threads that calls have left behind get some time, as in a process of a pool."""
    threading = sys.modules.get("threading")
    if threading is not None:
        limit = threading.Timer(GRACE, os._exit, (0,))
        limit.daemon = True
        limit.start()
        threading._shutdown()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._run_finalizers()
    os._exit(0)


def flush(stream):
    try:
        stream.flush()
    except Exception:
        # The call has closed it, or replaced it.
        pass


VALUE_BYTE = bytes([VALUE])
SIMPLE = frozenset({int, float, bool, type(None)})


def is_by_value(function):
    """Returns whether a function has its own globals instead of a module's."""
    names = getattr(function, "__globals__", None)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    return names is not None and names is not getattr(module, "__dict__", None)


def variables_of(function):
    """Returns the variables of a function that was sent by value, and of the functions that it uses."""
    found = []
    functions = [function]
    while functions:
        function = functions.pop()
        if not is_by_value(function):
            continue
        names = function.__globals__
        cells = getattr(function, "__closure__", None) or ()
        if any(names is one for one in found):
            continue
        found.append(names)
        functions += [value for value in names.values() if isinstance(value, types.FunctionType)]
        functions += [cell.cell_contents for cell in cells if isinstance(content(cell), types.FunctionType)]
    return found


def is_fixed(value):
    """Returns whether a value is immutable, so that it can only have been replaced."""
    if isinstance(value, types.FunctionType):
        return not (value.__dict__ or value.__closure__ or value.__defaults__ or value.__kwdefaults__)
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def content(cell):
    try:
        return cell.cell_contents
    except ValueError:
        # The variable is still unset.
        return None


def low_peak():
    """Returns the peak memory of this program alone, from the kernel, in KiB."""
    try:
        with open("/proc/self/status", "rb") as file:
            return int(file.read().partition(b"VmHWM:")[2].split(None, 1)[0])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_used():
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE


def keep_in(buffers):
    """Returns a callback of picklers that appends long buffers, such as array data, to `buffers`, unless it is `None`."""

    def keep(buffer):
        try:
            raw = buffer.raw()
        except BufferError:
            return True
        if len(raw) < BUFFER_MIN:
            return True
        buffers.append(raw)
        return False

    return None if buffers is None else keep


def dumps(value, buffers):
    """Pickles an object. Appends long buffers to `buffers`."""
    callback = keep_in(buffers)
    try:
        return pickle.dumps(value, 5, buffer_callback=callback)
    except KeyboardInterrupt:
        raise
    except BaseException:
        cloudpickle = sys.modules.get("cloudpickle")
        if cloudpickle is None:
            raise
        if buffers:
            buffers.clear()
        return cloudpickle.dumps(value, 5, buffer_callback=callback)


def own_dir(path: str) -> None:
    """Creates a directory that only this user can enter, unless it exists; rejects one of another user."""
    os.makedirs(path, 0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise _not_ours(path, found)
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)


def own_file(path: "str | bytes", flags: int = os.O_RDONLY) -> "io.BufferedReader | io.BufferedWriter":
    """Opens a file that only this user can read. Others may be able to write to directories above it: no link is followed,
    and a file of another user is refused, because values in it are unpickled."""
    number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    file = open(number, "wb" if flags & os.O_WRONLY else "rb")
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        file.close()
        raise _not_ours(path, found)
    return file


def _not_ours(path, found):
    text = f"it belongs to user {found.st_uid} (mode {stat.S_IMODE(found.st_mode):04o}), or is of another kind than expected"
    return PermissionError(errno.EACCES, text, os.fsdecode(path))


#: For :func:`own_file`: a new file.
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Lost(BaseException):
    """A value that the call reads is gone; carries the message for its client."""


def write_value(path, pickled, buffers):
    places = []
    end = HEAD.size * (1 + len(buffers)) + len(pickled)
    for buffer in buffers:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        places.append((begin, len(buffer)))
        end = begin + len(buffer)
    with own_file(path, NEW) as file:
        file.write(HEAD.pack(len(pickled), len(buffers)))
        for place in places:
            file.write(HEAD.pack(*place))
        file.write(pickled)
        for (begin, _), buffer in zip(places, buffers):
            file.seek(begin)
            file.write(buffer)


def map_value(path):
    with own_file(path) as file:
        # Changes are made in memory only, and untouched pages are not read.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def parts_of(view):
    """Returns the pickle and the buffers of a value."""
    size, count = HEAD.unpack_from(view)
    begin = HEAD.size * (1 + count)
    places = [HEAD.unpack_from(view, HEAD.size * (1 + number)) for number in range(count)]
    return [view[begin : begin + size], *(view[at : at + length] for at, length in places)]


def load_value(view):
    pickled, *buffers = parts_of(view)
    return pickle.loads(pickled, buffers=buffers)


class Rebuilt:
    """Pickles as an exception with the same `args` and attributes."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        kind = type(self.error)
        return kind.__new__, (kind, *self.error.args), self.error.__dict__ or None


def describe(error):
    """Returns type, text and traceback of an exception as JSON, and its first line for display."""
    import traceback

    try:
        text = str(error)
    except BaseException:
        text = "(its text cannot be made)"
    try:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:
        lines = ""
    if len(lines) > 8_000:
        lines = lines[:4_000] + "\n...\n" + lines[-4_000:]
    name = type(error).__qualname__
    # Short enough for a packet, even if escaped.
    described = {"type": name, "module": type(error).__module__, "text": text[:4_000], "traceback": lines}
    message = f"{name}: {text}" if text else name
    return json.dumps(described, ensure_ascii=False).encode("utf-8", "backslashreplace"), message


if "s" in globals():
    # The socket of the line that runs this text; the package on the other side uses the functions above to read values.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Interpreter(s).run()  # noqa: F821

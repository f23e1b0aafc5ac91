"""Runs one command or payload, watches over its whole family, and reports how it ended.

The other end of a socket is the controller. It sends a request (one JSON line), then perhaps ``dump`` or ``kill``; the
end of the socket, for whatever reason, means kill everything. The supervisor is a subreaper, so that nothing that the
payload starts can leave the family. It answers with one JSON line when the family is gone. Standard library only.
"""

import base64
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time

import envelope
import family

PR_SET_CHILD_SUBREAPER = 36
HEAD_BYTES = 64 << 10
TAIL_BYTES = 192 << 10
LINGER_S = 0.1


class Tap:
    """Keeps the first and the last part of what a pipe delivers, so that a flood costs no memory and no disk."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.head = b""
        self.tail = b""
        self.total = 0
        self.open = True

    def drain(self):
        """Take what is there now."""
        try:
            chunk = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.open = False
            return
        self.total += len(chunk)
        room = HEAD_BYTES - len(self.head)
        if room > 0:
            self.head += chunk[:room]
            chunk = chunk[room:]
        self.tail = (self.tail + chunk)[-TAIL_BYTES:]

    def text(self):
        """What was kept; a gap is marked with its size."""
        if self.total == len(self.head) + len(self.tail):
            return self.head + self.tail
        head = envelope.first_part(self.head, HEAD_BYTES - 1)
        tail = envelope.last_part(self.tail, TAIL_BYTES - 1)
        return head + b"\n[... %d bytes left out ...]\n" % (self.total - len(head) - len(tail)) + tail


def _apply_limits(limits):
    for name, value in limits.items():
        number = getattr(resource, "RLIMIT_" + name.upper())
        resource.setrlimit(number, (value, value))


def _prepare_child(request, conn, out, err):
    """In the forked child: streams, session, limits, namespace. A refusal ends the child with its reason on stderr."""
    # A copy of the socket here would hide the supervisor's death from the controller.
    conn.close()
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if request.get("cwd"):
        os.chdir(request["cwd"])
    if request.get("shm_bytes"):
        import private_shm

        private_shm.enter(request["shm_bytes"])
    _apply_limits(request.get("limits") or {})


def _fork(request, conn, body):
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(out_write)
        os.close(err_write)
        return pid, Tap(out_read), Tap(err_read)
    status = 120
    try:
        _prepare_child(request, conn, out_write, err_write)
        status = body(request) or 0
    except BaseException as error:  # whatever it is, the child must not return into the supervisor's code
        refused = "gpucheck-refused: %s: %s\n" % (type(error).__name__, error)
        os.write(2, refused.encode(errors="replace"))
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


class Watch:
    """One supervised family."""

    def __init__(self, conn, request, body):
        self.conn = conn
        self.started = time.monotonic()
        self.killed = False
        self.orphaned = False
        self.hung = []
        self.status = None
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        self.wake = wake_read
        self.pid, self.out, self.err = _fork(request, conn, body)
        for number in request.get("close_fds") or ():
            os.close(number)
        for tap in (self.out, self.err):
            os.set_blocking(tap.descriptor, False)

    def family(self):
        return family.descendants(os.getpid())

    def reap(self):
        """Collect every dead child; remember how the main one ended."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    self.status = status
        except ChildProcessError:
            return

    def hear(self):
        """A word from the controller, or the end of it."""
        try:
            words = self.conn.recv(4096)
        except OSError:
            words = b""
        if b"dump" in words:
            self.hung = family.dump_stacks(self.family())
        if not words or b"kill" in words:
            self.killed = True
            self.orphaned = not words

    def step(self, timeout_s):
        watched = [self.conn, self.wake] + [tap.descriptor for tap in (self.out, self.err) if tap.open]
        ready = select.select(watched, [], [], timeout_s)[0]
        for tap in (self.out, self.err):
            if tap.descriptor in ready:
                tap.drain()
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.conn in ready:
            self.hear()
        self.reap()

    def finish(self):
        """Kill what is left, take the last words, report."""
        ended_s = time.monotonic() - self.started
        survivors = family.kill(self.family)
        self.reap()
        end = time.monotonic() + LINGER_S
        while (self.out.open or self.err.open) and time.monotonic() < end:
            ready = select.select([t.descriptor for t in (self.out, self.err) if t.open], [], [], 0.01)[0]
            if not ready:
                break
            for tap in (self.out, self.err):
                if tap.descriptor in ready:
                    tap.drain()
        report = {
            "status": self.status,
            "killed": self.killed,
            "hung": self.hung,
            "survivors": [family.describe(pid) for pid in survivors],
            "output": base64.b64encode(self.out.text()).decode(),
            "errors": base64.b64encode(self.err.text()).decode(),
            "duration_s": ended_s,
        }
        try:
            self.conn.sendall(json.dumps(report).encode() + b"\n")
        except OSError:
            pass


def supervise(conn, request, body):
    """Run ``body(request)`` in a child until it ends or the controller says so; then report on ``conn``."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A Ctrl-C reaches the whole terminal group; the order to stop comes through the socket.
        signal.signal(number, signal.SIG_IGN)
    watch = Watch(conn, request, body)
    while watch.status is None and not watch.killed:
        watch.step(5.0)
    watch.finish()
    if watch.orphaned and request.get("after"):
        _run_after(request)


def _run_after(request):
    """The controller is gone: run the command that it left for this case, and wait for it a bounded time."""
    pid = os.fork()
    if pid == 0:
        try:
            os.execvpe(request["after"][0], request["after"], request["env"])
        finally:
            os._exit(127)
    end = time.monotonic() + family.CLEAN_UP_S
    while time.monotonic() < end and os.waitpid(pid, os.WNOHANG)[0] == 0:
        time.sleep(0.05)
    family.kill(lambda: family.descendants(os.getpid()))


def read_request(conn):
    """The request: one JSON line. Nothing past its end is taken, because a later word may already be there."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = conn.recv(65536, socket.MSG_PEEK)
        if not chunk:
            raise EOFError("the controller closed before its request was whole")
        end = chunk.find(b"\n")
        line += conn.recv(end + 1 if end >= 0 else len(chunk))
    return json.loads(line.decode())


def execute(request):
    """Become the requested command."""
    os.execvpe(request["argv"][0], request["argv"], request["env"])


def main(argv):
    """``supervisor.py FD``: serve one request on that inherited socket."""
    conn = socket.socket(fileno=int(argv[0]))
    conn.set_inheritable(False)
    supervise(conn, read_request(conn), execute)
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)

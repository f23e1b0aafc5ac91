"""A server that has imported the heavy libraries once and runs each payload in a fork: isolation for milliseconds.

Between the controller and each payload stands a forked supervisor of its own. The server forks only while it has one
thread: a lock held by another thread would be held for ever in the child. Standard library plus what it preloads.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys

import envelope
import family
import supervisor


def _threads():
    return len(os.listdir("/proc/self/task"))


def _import(modules):
    """Import them without the garbage collector, which finds nothing meanwhile and takes a tenth of the time.

    Freezing what is there keeps it from touching, and so copying, every page of a fork.
    """
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


def _run(request):
    os.environ.update(request.get("env") or {})
    for name in request.get("unset") or ():
        os.environ.pop(name, None)
    envelope.run(request["payload"], request["args"], request["nonce"], request["answer"])
    return 0


def _serve(conn):
    request = supervisor.read_request(conn)
    threads = _threads()
    if threads != 1:
        conn.sendall(json.dumps({"refused": "%d threads" % threads}).encode() + b"\n")
        return
    supervisor.supervise(conn, request, _run)


def main(argv):
    """``warm.py FD MODULE...``: import the modules, say so on FD, then serve a connection a payload until FD ends."""
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import(argv[1:])
    # Preloaded modules must not know the name under which payloads import us twice.
    sys.modules["envelope"] = envelope
    control.sendall(b'{"ready": %d}\n' % _threads())
    while True:
        try:
            message, descriptors, _, _ = (
                socket.recv_fds(control, 16, 1) if hasattr(socket, "recv_fds") else _recv(control)
            )
        except InterruptedError:
            continue
        if not message:
            return 0
        conn = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if pid == 0:
            control.close()
            try:
                _serve(conn)
            finally:
                os._exit(0)
        conn.close()
        family.reap()


def _recv(control):
    """``socket.recv_fds`` for Python 3.8."""
    import array

    fds = array.array("i")
    message, ancillary, flags, address = control.recvmsg(16, socket.CMSG_LEN(fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), flags, address


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)

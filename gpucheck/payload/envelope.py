"""The protocol between gpucheck and a payload: one JSON document, written once, whole, to a file.

    {"gpucheck": NONCE, "value": ...}                          the payload returned
    {"gpucheck": NONCE, "failure": {"type", "text", "trace"}}  it raised

A payload is a file that defines ``main(args)``. What it prints goes to people; only the file is the answer, so a
payload that prints braces, dies in the middle or answers twice cannot be mistaken for one that answered. Standard
library only; runs on Python 3.8 and later.

By hand, and for facts, which have no folder to write to: ``python envelope.py PAYLOAD.py '{"arg": 1}'`` prints the
envelope on a standard output that nobody else can write to.
"""

import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import traceback

PROGRESS = "GPUCHECK_PROGRESS"
STACKS = "GPUCHECK_STACKS"
TEXT_SIZE = 20000


def progress(text):
    """Tell the operator how far a long payload is: one short line, shown as it happens."""
    path = os.environ.get(PROGRESS)
    if path:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text.replace("\n", " ") + "\n")


def first_part(text, size):
    """At most ``size`` of the start of a text or of bytes, up to a line's end, or a word's where there is one line.

    What leaves here is searched for secrets at the other side, which half of one would escape.
    """
    if len(text) <= size:
        return text
    lines = text[:size].splitlines(keepends=True)
    pieces = lines if len(lines) > 1 else re.findall(_words(text), text[:size])
    return text[:0].join(pieces[:-1])


def last_part(text, size):
    """The same of the end."""
    if len(text) <= size:
        return text
    lines = text[-size:].splitlines(keepends=True)
    pieces = lines if len(lines) > 1 else re.findall(_words(text), text[-size:])
    return text[:0].join(pieces[1:])


def _words(text):
    return r"\S+\s*" if isinstance(text, str) else rb"\S+\s*"


def load(path):
    """The payload's module, imported by its own name so that spawned workers can import it again."""
    folder, name = os.path.split(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # This file is __main__ here; payloads that say `import envelope` must get the same module.
    sys.modules.setdefault("envelope", sys.modules[__name__])
    return importlib.import_module(os.path.splitext(name)[0])


def arm_stack_dump():
    """On SIGUSR1 write the stack of every thread to ``$GPUCHECK_STACKS/<pid>``; how a hang says where it hung."""
    folder = os.environ.get(STACKS)
    if not folder:
        return
    stream = open(os.path.join(folder, str(os.getpid())), "w")  # noqa: SIM115 - must stay open for the handler
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True, chain=False)
    # The interpreter would close a stream that nobody holds, and the handler would write into somebody else's file.
    sys.modules[__name__].__dict__["_stacks_stream"] = stream


def answer(payload, args, nonce):
    """Run ``main(args)`` of the payload at that path and return the envelope as a dict."""
    try:
        value = load(payload).main(args)
        json.dumps(value, allow_nan=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a failure of any kind is data for the other side
        text, trace = first_part(str(error), TEXT_SIZE), last_part(traceback.format_exc(), TEXT_SIZE)
        return {"gpucheck": nonce, "failure": {"type": type(error).__name__, "text": text, "trace": trace}}
    return {"gpucheck": nonce, "value": value}


def deliver(envelope, path):
    """Write the envelope so that a reader sees all of it or nothing."""
    part = path + ".part"
    with open(part, "w", encoding="utf-8") as stream:
        json.dump(envelope, stream)
    os.replace(part, path)


def run(payload, args, nonce, path):
    """Run a payload and deliver its envelope to ``path``."""
    arm_stack_dump()
    deliver(answer(payload, args, nonce), path)


def show(payload, args):
    """Run a payload and print its envelope; what it prints itself goes to standard error: the output is ours alone."""
    own = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(answer(payload, args, ""), indent=1)
    with os.fdopen(own, "w") as stream:
        stream.write(text + "\n")


def main(argv):
    """``PAYLOAD ARGS`` prints the envelope; ``PAYLOAD ARGS NONCE PATH`` delivers it (``ARGS``: JSON, or ``@FILE``)."""
    payload, args, *delivery = argv
    if args.startswith("@"):
        with open(args[1:], encoding="utf-8") as stream:
            args = stream.read()
    if not delivery:
        show(payload, json.loads(args))
        return 0
    run(payload, json.loads(args), *delivery)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Leaving through the interpreter costs most of a second once torch is imported, and threads can hang it.
    os._exit(status)

"""Is the engine on this host? Reads back a file that was bound into the container under a name nobody could guess."""

import os


def main(args):
    """``path``: the file. Returns its text, and who we are inside."""
    with open(args["path"]) as stream:
        return {"text": stream.read(), "uid": os.getuid(), "pid": os.getpid()}

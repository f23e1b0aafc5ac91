"""Is the engine on this host? Reads back a file that was bound into the container under a name nobody could guess."""


def main(args):
    """``path``: the file. Returns its text."""
    with open(args["path"]) as stream:
        return {"text": stream.read()}

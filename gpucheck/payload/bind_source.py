"""The host's side of a bind: is it there? What killed runs left in it is removed. It may lie on a server that is gone.

``main({"path": PATH, "left": PATTERN or null, "older_s": SECONDS})`` returns {"error": null or the error's name}
(``ENOENT``). Files of that name in it are removed when they are older.
"""

import errno
import glob
import os
import time


def main(args):
    """See the module."""
    try:
        os.stat(args["path"])
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, str(error.errno))}
    if args["left"]:
        sweep(os.path.join(glob.escape(args["path"]), args["left"]), args["older_s"])
    return {"error": None}


def sweep(pattern, older_s):
    """Remove what is certainly nobody's any more."""
    for path in glob.glob(pattern):
        try:
            if time.time() - os.stat(path).st_mtime > older_s:
                os.unlink(path)
        except OSError:
            pass

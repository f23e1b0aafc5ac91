"""What the real libraries say on the machine that this process is on; run under a Python with a CUDA build of torch.

``libraries.py`` prints ``{"cudart": TEXT, "torch": TEXT, "pynvml": TEXT}``. Each library is asked in a process of its
own, which is ended when it hangs.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys

LOAD_S = 120.0
LIMIT_S = 8.0
CUDART = """
import ctypes, glob, site
path = glob.glob(site.getsitepackages()[0] + "/nvidia/cu13/lib/libcudart.so.13")[0]
cudart = ctypes.CDLL(path)
cudart.cudaGetErrorName.restype = cudart.cudaGetErrorString.restype = ctypes.c_char_p
print("loaded", flush=True)
count = ctypes.c_int()
code = cudart.cudaGetDeviceCount(ctypes.byref(count))
words = cudart.cudaGetErrorName(code).decode() + ": " + cudart.cudaGetErrorString(code).decode()
print(f"{count.value} device(s)" if code == 0 else f"{code} {words}")
"""
TORCH = """
import warnings
warnings.simplefilter("ignore")
import torch
print("loaded", flush=True)
claim = f"is_available() {torch.cuda.is_available()}"
try:
    torch.cuda.init()
    counted = torch.cuda.device_count()
    product = (torch.ones(4, 4).cuda() @ torch.ones(4, 4).cuda()).cpu() if counted else None
    print(f"{claim}; {counted} device(s), a product on the first: {product.sum().item():g}")
except Exception as error:
    text = str(error).strip().partition("\\n")[0]
    print(f"{claim}; {type(error).__name__}: {text.removeprefix(UNEXPECTED).strip()[:100]}")
""".replace(
    "UNEXPECTED",
    repr(
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? "
    ),
)
PYNVML = """
import pynvml
print("loaded", flush=True)
try:
    pynvml.nvmlInit()
    lost = 0
    count = pynvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError:
            lost += 1
    print(f"{count} device(s)" + (f", {lost} not reached" if lost else ""))
except pynvml.NVMLError as error:
    print(f"{error.value} {error}")
"""


def ask(script: str) -> str:
    """The last line that the script printed, or how it ended. Loading the library may take its time, answering not."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        select.select([process.stdout.fileno() if process.stdout else 0], [], [], LOAD_S)
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "does not return"
    lines = output.strip().splitlines()[1:]
    return lines[-1] if lines else f"exit {process.returncode}: {errors.strip().splitlines()[-1:]}"


if __name__ == "__main__":
    print(json.dumps({"cudart": ask(CUDART), "torch": ask(TORCH), "pynvml": ask(PYNVML)}))

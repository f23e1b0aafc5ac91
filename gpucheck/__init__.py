"""gpucheck: will a training or inference job run on this machine, and if not, why not, and what do I type?"""

__version__ = "0.1.0"

"""What the machines of ``gpucheck.fakes`` answer, and what gpucheck makes of it."""

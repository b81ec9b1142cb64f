"""How fast this machine multiplies float32 matrices, as a yardstick of what it can do at best."""

from __future__ import annotations

import os
import subprocess
import sys

SECONDS = 2.0
# A layer's product: tokens by hidden size, by feed-forward size, on one thread.
CODE = """
import sys, time, torch
torch.set_num_threads(1)
left, right = torch.randn(2048, 256), torch.randn(256, 768)
print("ready", flush=True)
sys.stdin.readline()
start, count = time.perf_counter(), 0
while time.perf_counter() - start < float(sys.argv[1]):
    left @ right
    count += 1
print(count * 2 * 2048 * 256 * 768 / (time.perf_counter() - start))
"""


def matrix_rate() -> float:
    """Floating-point operations a second of all cores together, a process on each."""
    command = [sys.executable, "-c", CODE, str(SECONDS)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in processes)

"""What multiplies in bfloat16 holds on a CPU without instructions for it, too.

Such a CPU takes other kernels, which sum in another order before they round. They are asked for
when torch is loaded, so that these tests run once more in a Python of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
PROGRAM = """
import sys, pytest, torch
assert not torch.ops.mkldnn._is_mkldnn_bf16_supported(), "oneDNN still has such instructions"
assert torch.backends.cpu.get_cpu_capability() == "AVX2", torch.backends.cpu.get_cpu_capability()
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_narrow_products_hold_with_avx2_alone() -> None:
    marked = [path for path in HERE.rglob("test_*.py") if "pytest.mark.narrow" in path.read_text()]
    files = sorted(str(path) for path in marked if path != Path(__file__))
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-m", "narrow", "-p", "no:xdist", *files],
        cwd=HERE.parents[1],
        env=environment | AVX2,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]

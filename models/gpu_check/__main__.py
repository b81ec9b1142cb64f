"""Run the parts: `python -m trimtab.models.gpu_check OUT`, where `trimtab gpu-check` has put
request.json."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trimtab.models.gpu_check.driver import check
from trimtab.models.gpu_check.parts import PARTS, with_needs

REQUEST = "request.json"
# Nothing is fetched, logs hold no progress bars, and libraries that ask whether there is a GPU do
# not start CUDA, which no fork could use then.
ENVIRONMENT = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(out: Path) -> int:
    """Run what OUT/request.json asks for; returns the exit status."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    request: dict[str, Any] = json.loads((out / REQUEST).read_text())
    os.environ.update(ENVIRONMENT)
    print("loading libraries ...", flush=True)
    importlib.import_module("trimtab.models.training.preload")
    with tempfile.TemporaryDirectory(prefix="trimtab-gpu-check-") as work:
        try:
            return check(with_needs(PARTS, request["parts"]), request, out, Path(work), started)
        except KeyboardInterrupt:
            print(f"stopped; what was measured until then is in {out}", file=sys.stderr)
            return 130


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

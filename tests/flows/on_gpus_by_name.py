"""An entry of the warm server: a job's ranks, over gloo, which only know the name of their GPU.

Each signs in under it, in the folder that all jobs share, and goes on once all GPUs are taken.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from trimtab.models.training import distributed

MEETING = "TRIMTAB_TEST_MEETING"  # the folder, in which a job's ranks are files
NUM_GPUS = 8


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    distributed.limit_visible_gpus(job["gpus"])
    distributed.start_group(job["num_ranks"])
    distributed.join_group()
    names = os.environ[distributed.VISIBLE].split(",")
    assert len(names) == distributed.world_size()
    meeting = Path(os.environ[MEETING])
    (meeting / names[distributed.rank()]).touch(exist_ok=False)
    deadline = time.monotonic() + 60
    while len(list(meeting.iterdir())) < NUM_GPUS:
        assert time.monotonic() < deadline, f"only {sorted(meeting.iterdir())} are taken"
        time.sleep(0.01)
    distributed.leave()
    (Path(job["workdir"]) / "output" / "summary.json").write_text("{}")

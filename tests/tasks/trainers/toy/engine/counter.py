"""Counts up from its input, a checkpoint a step.

`plan.json` beside the package makes it misbehave.
"""

import json
import os
import time
from pathlib import Path
from typing import Any


def run(job: dict[str, Any]) -> None:
    """Count `total` steps; "sleep", "die_at", "wait_at" and "summary" of the plan interfere."""
    plan_path = Path(__file__).parents[2] / "plan.json"
    plan = json.loads(plan_path.read_text()) if plan_path.exists() else {}
    workdir, config = Path(job["workdir"]), job["config"]
    start = 0
    if "start" in job["inputs"]:
        start = json.loads((Path(job["inputs"]["start"]) / "summary.json").read_text())["count"]
    folder = workdir / "checkpoints"
    folder.mkdir(exist_ok=True)
    steps = [int(p.name) for p in folder.iterdir() if p.name.isdecimal()]
    first = max(steps, default=0)
    metrics = (workdir / "metrics.jsonl").open("a")
    for step in range(first, config["total"]):
        if plan.get("die_at") == step:
            os.kill(os.getpid(), 9)
        while plan.get("wait_at") == step and not plan_path.with_name("go").exists():
            time.sleep(0.01)
        temp = folder / f".{step + 1}"
        temp.mkdir()
        (temp / "count").write_text(str(start + step + 1))
        temp.rename(folder / str(step + 1))
        for record in (
            {"step": step, "metrics": {"count": step + 1}},
            {"progress": [step + 1, config["total"]]},
        ):
            metrics.write(json.dumps({**record, "time": time.time()}) + "\n")
        metrics.flush()
        time.sleep(plan.get("sleep", 0))
    summary = plan.get("summary", json.dumps({"count": start + config["total"], "unit": "steps"}))
    if summary is not None:
        (workdir / "output" / "summary.json").write_text(summary)
    (workdir / "output" / "first").write_text("always the same")
    (workdir.parent / f"started-{workdir.name}").write_text(str(first))

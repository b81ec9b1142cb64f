"""Runs the toy trainer that the job file names."""

import importlib
import json
from pathlib import Path


def main(path: str) -> None:
    """Run a job."""
    job = json.loads(Path(path).read_text())
    importlib.import_module("toy.engine." + job["stage"]).run(job)

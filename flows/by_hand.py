"""What the command line hands over to a process of its own, without Prefect: a stage, GPU checks.

This process becomes that one, so that signals and the exit status are its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from trimtab.flows.errors import ConfigError, unknown_name
from trimtab.flows.explain import explain
from trimtab.models.gpu_check.parts import PARTS
from trimtab.models.specs import SPECS, InputError, Job

ENTRY, GPU_CHECK = "trimtab.models.training.entry", "trimtab.models.gpu_check"
REQUEST = "request.json"
# Stages of recipe smoke, and where its configuration has theirs.
SMOKE = {
    **{name: name for name in ("world", "sft", "comparisons", "reward_model", "advantage_model")},
    **{name: name for name in ("rehearsal", "dpo", "evaluate")},
    "ppo_max": "ppo",
    "meta_rm": "rounds.meta_rm",
}


def run_stage(job: Path) -> NoReturn:
    """Run the stage of a job file; ConfigError for what is wrong in it, all before it starts."""
    if not job.is_file():
        raise ConfigError(f"{job}: no such file; docs/adding-a-stage.md shows a job")
    try:
        found = Job.model_validate_json(job.read_bytes())
    except ValidationError as error:
        raise _wrong(job, explain(error, Job)) from error
    spec = SPECS[found.stage]
    try:
        spec.check(found.inputs)
        spec.config.model_validate(found.config)
    except InputError as error:
        raise _wrong(job, str(error)) from error
    except ValidationError as error:
        raise _wrong(job, explain(error, spec.config), "config: ") from error
    missing = [f"nothing is at {path}" for path in found.inputs.values() if not Path(path).exists()]
    if missing:
        raise _wrong(job, "\n".join(missing), "inputs: ")
    output = Path(found.workdir) / "output"
    output.mkdir(parents=True, exist_ok=True)
    place = f"GPU {', '.join(found.gpus)}" if found.gpus else "the CPU"
    print(f"stage {spec.name} on {place}; output: {output}", flush=True)
    _become(ENTRY, [str(job)])


def _wrong(job: Path, mistakes: str, where: str = "") -> ConfigError:
    return ConfigError("\n".join(f"{job}: {where}{line}" for line in mistakes.splitlines()))


def check_gpu(
    minutes: float,
    out: Path,
    pairs: str | None,
    parts: Sequence[str],
    rehearse: bool,
    peers: Path | None,
) -> NoReturn:
    """Run the parts of the GPU check; ConfigError for unknown parts and files that are not here."""
    from trimtab.flows.recipes import recipe_named

    names = [part.name for part in PARTS]
    for name in parts:
        if name not in names:
            raise ConfigError(f"--part: {unknown_name('part', name, names)}")
    for option, path in (("--pairs", pairs and Path(pairs)), ("--peers", peers)):
        if path and not path.exists():
            raise ConfigError(f"{option}: nothing is at {path}")
    smoke = recipe_named("smoke").model_dump(mode="json")
    stages = {}
    for stage, place in SMOKE.items():
        section = smoke
        for name in place.split("."):
            section = section[name]
        stages[stage] = section
    out.mkdir(parents=True, exist_ok=True)
    request = {
        "minutes": minutes,
        "pairs": pairs,
        "parts": list(parts),
        "rehearse": rehearse,
        "peers": None if peers is None else str(peers),
        "smoke": stages,
    }
    (out / REQUEST).write_text(json.dumps(request, indent=1) + "\n")
    _become(GPU_CHECK, [str(out)])


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])

"""A stage, a GPU check or a reward server in another process, without Prefect.

This process becomes that one, which then gets its signals and decides the exit status.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from trimtab.flows.config.errors import ConfigError, unknown_name
from trimtab.flows.config.paths import explain, value_at
from trimtab.infra.processes.gpus import gpus_of_host
from trimtab.models.config.training import trainer_of
from trimtab.models.gpu_check.parts import PARTS
from trimtab.models.specs import SPECS, InputError, Job

ENTRY, GPU_CHECK = "trimtab.models.training.entry", "trimtab.models.gpu_check"
REWARD_SERVER = "trimtab.models.reward_server"
REQUEST = "request.json"
STARTED = "started.json"  # in a job's work folder: whose checkpoints are there
# Stages of recipe smoke, and the sections that configure them.
SMOKE = {
    "world": "world",
    "sft": "sft",
    "comparisons": "comparisons",
    "reward_model": "reward_model",
    "advantage_model": "advantage_model",
    "rehearsal": "rehearsal",
    "dpo": "dpo",
    "evaluate": "evaluate",
    "ppo_max": "ppo",
    "meta_rm": "rounds.meta_rm",
}


def run_stage(job: Path) -> NoReturn:
    """Run the stage of a job file; ConfigError for what is wrong in it, all before it starts."""
    if not job.is_file():
        raise ConfigError(f"{job}: is no file; docs/adding.md shows a job")
    try:
        request = Job.model_validate_json(job.read_bytes())
    except ValidationError as error:
        raise _wrong(job, explain(error, Job)) from error
    spec = SPECS[request.stage]
    try:
        spec.check(request.inputs)
        config = spec.config.model_validate(request.config)
    except InputError as error:
        raise _wrong(job, str(error)) from error
    except ValidationError as error:
        raise _wrong(job, explain(error, spec.config), "config: ") from error
    missing = [
        f"nothing is at {path}" for path in request.inputs.values() if not Path(path).exists()
    ]
    if missing:
        raise _wrong(job, "\n".join(missing), "inputs: ")
    has_ranks = spec.device == "gpu" and hasattr(trainer_of(config) or config, "num_ranks")
    _check_resources(job, request, has_ranks)
    output = Path(request.workdir) / "output"
    started = {
        "stage": spec.name,
        "config": config.model_dump(mode="json"),
        "inputs": {name: str(Path(path).resolve()) for name, path in request.inputs.items()},
    }
    _check_checkpoints(job, output.parent, started)
    _make(output, f"{job}: workdir")
    (output.parent / STARTED).write_text(json.dumps(started, indent=1) + "\n")
    place = f"GPU {', '.join(request.gpus)}" if request.gpus else "the CPU"
    print(f"stage {spec.name} on {place}; output: {output}", flush=True)
    _become(ENTRY, [str(job)])


def _check_resources(job: Path, request: Job, has_ranks: bool) -> None:
    """Ranks of a stage without ranks would all write its output; GPUs must be of this host."""
    count, gpus = request.num_ranks, request.gpus
    if count > 1 and not has_ranks:
        raise _wrong(job, f"num_ranks: found {count}; allowed for stage {request.stage}: 1")
    if gpus and len(gpus) < count:
        raise _wrong(job, f"gpus: found {len(gpus)} for num_ranks = {count}; allowed: one a rank")
    names = gpus_of_host(os.environ)
    if missing := sorted(set(gpus) - set(names)):
        allowed = ", ".join(names) or "none: this host has no GPU"
        raise _wrong(job, f"gpus: found {', '.join(missing)}; allowed: {allowed}")


def _check_checkpoints(job: Path, workdir: Path, started: dict[str, Any]) -> None:
    """A trainer goes on from whatever checkpoint it finds: it must be of this job."""
    record = workdir / STARTED
    if not record.is_file() or not any((workdir / "checkpoints").glob("[0-9]*")):
        return
    before = json.loads(record.read_text())
    if other := [name for name, value in started.items() if before.get(name) != value]:
        raise _wrong(
            job,
            f"workdir: found checkpoints of a job with another {' and '.join(other)} in "
            f"{workdir}; allowed: another workdir, or this one without its checkpoints",
        )


def _make(folder: Path, place: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{place}: {folder} cannot be made: {error.strerror}") from error


def _wrong(job: Path, mistakes: str, place: str = "") -> ConfigError:
    return ConfigError("\n".join(f"{job}: {place}{line}" for line in mistakes.splitlines()))


def check_gpu(
    minutes: float,
    out: Path,
    pairs: str | None,
    parts: Sequence[str],
    rehearse: bool,
    peers: Path | None,
) -> NoReturn:
    """Run the parts of the GPU check; ConfigError for unknown parts and files that are not here."""
    from trimtab.flows.config.recipes import recipe_named

    names = [part.name for part in PARTS]
    for name in parts:
        if name not in names:
            raise ConfigError(f"--part: {unknown_name('part', name, names)}")
    for option, path in (("--pairs", pairs and Path(pairs)), ("--peers", peers)):
        if path and not path.exists():
            raise ConfigError(f"{option}: nothing is at {path}")
    smoke = recipe_named("smoke").model_dump(mode="json")
    stages = {stage: value_at(smoke, section)[1] for stage, section in SMOKE.items()}
    _make(out, "--out")
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


def serve_rewards(request: dict[str, Any]) -> NoReturn:
    """Serve reward models; ConfigError for files that are not here, and limits at odds.

    request: the fields of `ServeRequest` of the server's program.
    """
    for option in ("key_file", "answers"):
        path = request[option]
        if path is not None and not path.is_file():
            raise ConfigError(f"--{option.replace('_', '-')}: found no file at {path}")
    for folder in request["folders"]:
        if folder.startswith((".", "/", "~")) and not Path(folder).expanduser().is_dir():
            raise ConfigError(
                f"found no folder at {folder}; allowed: a reward model's, or a hub id"
            )
    texts, most = request["request_texts"], request["queue_texts"]
    if texts > most:
        raise ConfigError(f"--request-texts: found {texts}; allowed: --queue-texts {most} or fewer")
    _become(REWARD_SERVER, [json.dumps(request, default=str)])


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])

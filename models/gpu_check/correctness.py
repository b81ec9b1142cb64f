"""Whether a GPU computes what the CPU does: stages of recipe smoke, ZeRO, a stop and its resume."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file

from trimtab.models.config.training import Precision, ZeroConfig
from trimtab.models.gpu_check.driver import Bench, LeftOutError, WrongError, forked, status_of
from trimtab.models.gpu_check.material import make_encoder
from trimtab.models.gpu_check.stage_runs import make_job, run_stage, smoke_config, start_job
from trimtab.models.training.entry import DETERMINISTIC
from trimtab.models.training.signals import EXIT_STOPPED

# Stages of recipe smoke with their inputs, by the stage that made them.
STAGES: dict[str, dict[str, str]] = {
    "world": {},
    "sft": {"data": "world"},
    "comparisons": {"data": "world", "policy": "sft"},
    "reward_model": {"policy": "sft", "preferences": "comparisons"},
    "advantage_model": {"policy": "sft", "preferences": "comparisons"},
    "rehearsal": {"data": "world", "policy": "sft", "scorer": "advantage_model"},
    "ppo_max": {
        "policy": "sft",
        "reference": "sft",
        "data": "world",
        "scorer": "advantage_model",
        "rehearsal": "rehearsal",
    },
    "meta_rm": {
        "scorer": "advantage_model",
        "policy": "sft",
        "data": "world",
        "preferences": "comparisons",
    },
    "dpo": {"policy": "sft", "reference": "sft", "preferences": "comparisons"},
    "evaluate": {
        "policy": "ppo_max",
        "reference": "sft",
        "data": "world",
        "scorer": "advantage_model",
        "judge_0": "reward_model",
    },
}
REFERENCE = "cpu float32"
# Relative, of norms. In bfloat16 twice what it makes on the CPU, where that is more.
MOST_FLOAT32, LEAST_BFLOAT16 = 1e-3, 1e-2
# One token that is drawn otherwise changes all that is learned behind it: their weights are judged
# in float32 only.
SAMPLING = ("ppo_max", "meta_rm")


def stages_on_all_devices(bench: Bench) -> None:
    """Each stage on the CPU; then on the same inputs in bfloat16, and on the GPU in both."""
    _run_all(bench, REFERENCE, True, "float32")
    arms: dict[str, tuple[bool, Precision]] = {
        "cpu bfloat16": (True, "bfloat16"),
        "card float32": (False, "float32"),
        "card bfloat16": (False, "bfloat16"),
    }
    children = {arm: forked(partial(_run_all, bench, arm, *how)) for arm, how in arms.items()}
    ended = {arm: status_of(child) for arm, child in children.items()}
    wrong = [f"{arm}: a stage failed" for arm, status in ended.items() if status != 0]
    gaps = {arm: _gaps(bench.work / arm, bench.work / REFERENCE) for arm in arms}
    for arm, stages in gaps.items():
        for kind in ("weights", "scores", "first metrics"):
            of_stages = {stage: kinds[kind] for stage, kinds in stages.items() if kind in kinds}
            stage, most = max(of_stages.items(), key=lambda item: item[1], default=("none", 0.0))
            beside = f"most in {stage}" if most else ""
            bench.note(f"{arm}: {kind} differ by", most, beside=beside, by_stage=of_stages)
    for stage in STAGES:
        exact, narrow, of_cpu = (
            gaps[arm].get(stage, {}).get("weights", 0.0)
            for arm in ("card float32", "card bfloat16", "cpu bfloat16")
        )
        if exact > MOST_FLOAT32:
            wrong.append(f"{stage} in float32: weights {exact:.1e}, at most {MOST_FLOAT32:.1e}")
        limit = max(LEAST_BFLOAT16, 2 * of_cpu)
        if stage not in SAMPLING and narrow > limit:
            wrong.append(f"{stage} in bfloat16: weights {narrow:.1e}, at most {limit:.1e}")
    if wrong:
        raise WrongError("; ".join(wrong))


def _run_all(bench: Bench, arm: str, on_cpu: bool, precision: Precision) -> None:
    """All stages in one place and precision; inputs are those of the reference."""
    if importlib.util.find_spec("bitsandbytes") is None:  # peft loads it, and it starts CUDA
        importlib.import_module("sentence_transformers")  # takes seconds: once, for all forks
    for stage in STAGES:
        if stage == "world" and arm != REFERENCE:
            continue
        config = smoke_config(bench, stage, precision)
        if hasattr(config, "encoder"):
            config = config.model_copy(update={"encoder": str(bench.work / "encoder")})
            if arm == REFERENCE:
                policy = bench.work / REFERENCE / "sft" / "output"
                status_of(forked(partial(make_encoder, policy, bench.work / "encoder")))
        folders = _inputs_of(stage, bench)
        run_stage(make_job(bench, bench.work / arm / stage, stage, config, folders, on_cpu))


def _gaps(arm: Path, reference: Path) -> dict[str, dict[str, float]]:
    """Of each stage the relative difference of its weights, of its scores, of its first metrics."""
    readers = {"weights": _weights, "scores": _scores, "first metrics": _first_metrics}
    return {
        stage: {
            kind: gap(read(arm / stage), read(reference / stage))
            for kind, read in readers.items()
            if read(reference / stage)
        }
        for stage in STAGES
        if (arm / stage / "output").exists()
    }


def gap(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The norm of all differences over that of all that is compared; 1 where names differ."""
    if mine.keys() != other.keys() or any(mine[n].shape != other[n].shape for n in other):
        return 1.0
    differences = [(mine[name] - other[name]).double().norm() for name in other]
    norms = [other[name].double().norm() for name in other]
    return float(torch.stack(differences).norm() / torch.stack(norms).norm().clamp(min=1e-30))


def _weights(work: Path) -> dict[str, torch.Tensor]:
    paths = sorted((work / "output").glob("*/*.safetensors"))
    return {
        f"{path.parent.name}/{name}": value.float()
        for path in paths
        for name, value in load_file(path).items()
    }


def _scores(work: Path) -> dict[str, torch.Tensor]:
    scores = [[r["chosen_score"], r["rejected_score"]] for r in _rows(work / "output/scores.jsonl")]
    return {"scores": torch.tensor(scores)} if scores else {}


def _first_metrics(work: Path) -> dict[str, torch.Tensor]:
    metrics = (row["metrics"] for row in _rows(work / "metrics.jsonl") if "metrics" in row)
    return {name: torch.tensor(value) for name, value in next(metrics, {}).items()}


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def zero(bench: Bench) -> None:
    """A reward model under ZeRO 2 and 3 on one rank has the weights of one without."""
    if importlib.util.find_spec("deepspeed") is None:
        raise LeftOutError("it needs DeepSpeed")
    plain = bench.work / "card float32" / "reward_model"
    config = smoke_config(bench, "reward_model", "float32")
    wrong = []
    stages: tuple[Literal[2, 3], ...] = (2, 3)
    for stage in stages:
        work = bench.work / f"zero {stage}"
        changes = {"zero": ZeroConfig(stage=stage), "num_ranks": 1}
        changed = config.model_copy(update={"train": config.train.model_copy(update=changes)})
        run_stage(make_job(bench, work, "reward_model", changed, _inputs_of("reward_model", bench)))
        difference = gap(_weights(work), _weights(plain))
        bench.note(f"ZeRO {stage}: weights from those without", difference)
        if difference > MOST_FLOAT32:
            wrong.append(f"ZeRO {stage}: weights {difference:.1e} from those without")
    if wrong:
        raise WrongError("; ".join(wrong))


def stop_and_resume(bench: Bench) -> None:
    """With TRIMTAB_DETERMINISTIC=1: twice the same bytes, and so after SIGTERM and a resume."""
    config = smoke_config(bench, "sft", "float32")
    changes = {"num_epochs": 20, "checkpoint_every": 10**6}
    config = config.model_copy(update={"train": config.train.model_copy(update=changes)})
    jobs = [
        make_job(bench, bench.work / f"sft {name}", "sft", config, _inputs_of("sft", bench))
        for name in ("once", "twice", "stopped")
    ]
    strict = {DETERMINISTIC: "1"}
    once, twice = (_digest(run_stage(job, environment=strict)) for job in jobs[:2])
    bench.note("run twice", "the same bytes" if once == twice else "other bytes")
    child = start_job(jobs[2], environment=strict)
    metrics = jobs[2].parent / "metrics.jsonl"
    while not metrics.exists() and child.is_alive():
        time.sleep(0.002)
    child.terminate()
    status = status_of(child)
    steps = len(metrics.read_text().splitlines())
    bench.note("stopped by SIGTERM", f"exit status {status}", beside=f"{steps} lines of metrics")
    resumed = _digest(run_stage(jobs[2], environment=strict))
    bench.note("resumed", "the same bytes" if resumed == once else "other bytes")
    if status != EXIT_STOPPED:
        raise WrongError(f"SIGTERM: exit status {status}, not {EXIT_STOPPED}")
    if not once == twice == resumed:
        raise WrongError("weights are not the same bytes")


def _inputs_of(stage: str, bench: Bench) -> dict[str, Path]:
    inputs = STAGES[stage].items()
    return {name: bench.work / REFERENCE / source / "output" for name, source in inputs}


def _digest(output: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(output.glob("model/*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()

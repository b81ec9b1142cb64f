"""Run one stage in this process.

    python -m trimtab.models.training.entry JOB_JSON

`trimtab stage JOB_JSON` does the same, and says in words what is wrong in it.
The job file: {"stage": "ppo_max", "config": {...}, "inputs": {"policy": "/path"},
"workdir": "/path", "num_threads": 1, "num_ranks": 1, "gpus": ["0"]}. The stage is the module
`trimtab.models.stages.<stage>`, which has `run(config, stage)`; `trimtab.models.specs`
has the class of its configuration and the names of its inputs. Without `gpus` it runs on the CPU.
The process forks its ranks.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from trimtab.models.nets.device import current_device
from trimtab.models.specs import SPECS, Job
from trimtab.models.training import checkpoint, distributed, signals

# An environment variable; 1: the same bits each time on a GPU of one kind, as on a CPU.
DETERMINISTIC = "TRIMTAB_DETERMINISTIC"


def main(job_path: str) -> None:
    """Run the job; returns when its outputs are written.

    Raises pydantic.ValidationError for a bad job or config, trimtab.models.specs.InputError for
    missing or unknown inputs, SystemExit(75) when stopped by SIGTERM, and whatever the stage
    raises.
    """
    signals.install()
    job = Job.model_validate_json(Path(job_path).read_bytes())
    _become_ranks(job)
    _make_deterministic(job.num_threads, bool(job.gpus))
    spec = SPECS[job.stage]
    trainer = importlib.import_module(f"trimtab.models.stages.{spec.name}")
    config = spec.config.model_validate(job.config)
    spec.check(job.inputs)
    _choose_precision(config)
    from trimtab.models.training.stage import Stage  # loads transformers, as all trainers do

    inputs = {name: Path(path) for name, path in job.inputs.items()}
    try:
        trainer.run(config, Stage(inputs, Path(job.workdir)))
    finally:
        checkpoint.finish_saving()
        _say_memory()


def _become_ranks(job: Job) -> None:
    """Go on as one of the job's ranks, on its device."""
    count, gpus = job.num_ranks, job.gpus
    trainer = job.config.get("train") or job.config
    uses_zero = trainer.get("zero") is not None
    is_group = uses_zero or (bool(gpus) and count > 1)
    distributed.limit_visible_gpus(gpus)
    if uses_zero:
        _prepare_deepspeed(bool(gpus))
    if is_group:
        distributed.start_group(count)
    else:
        distributed.start(count)
    if gpus:
        distributed.use_gpu()
    if is_group:
        distributed.join_group()


def _prepare_deepspeed(has_gpus: bool) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        raise ValueError("ZeRO needs DeepSpeed: pip install 'trimtab[deepspeed]'")
    os.environ["DS_ACCELERATOR"] = "cuda" if has_gpus else "cpu"  # or it guesses
    if not has_gpus:  # where it would look for GPUs, which no process may before it forks
        importlib.import_module("deepspeed")  # once for all ranks


def _choose_precision(config: Any) -> None:
    from trimtab.models.config.training import precision_of
    from trimtab.models.nets.precision import set_product_precision

    set_product_precision(precision_of(config))


def _make_deterministic(num_threads: int, has_gpu: bool) -> None:
    """On a CPU an operation without a deterministic form is an error; on a GPU where that is asked.

    Elsewhere a GPU takes its fastest forms: only to be warned of others it would still sort indices
    to add up at them in order.
    """
    is_strict = _is_asked_for(DETERMINISTIC) or not has_gpu
    if has_gpu and is_strict:
        # Read when cuBLAS makes its first handle; without it deterministic products are refused.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(is_strict)
    # It would write NaN to all memory before its first use (3 % of a step); nothing reads it so.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _say_memory() -> None:
    """A line in the trainer's log: what the stage took of its GPU's memory at the most."""
    import torch

    device = current_device()
    if device.type != "cuda":
        return
    used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    name = torch.cuda.get_device_name()
    print(
        f"{name}: {used / 2**30:.2f} GiB in tensors at the most, {held / 2**30:.2f} reserved",
        flush=True,  # before a traceback, which ends with the error
    )


def _is_asked_for(variable: str) -> bool:
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{variable} is {value!r}; allowed are 1, and 0 or unset")
    return value == "1"


def _run_and_exit(job_path: str) -> NoReturn:
    """Run the job as a process's own, and skip the interpreter's teardown.

    There a thread of torch.distributed that was still running once ended a rank with SIGABRT.
    """
    code = 0
    try:
        main(job_path)
    except SystemExit as end:
        code = int(end.code or 0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _run_and_exit(sys.argv[1])

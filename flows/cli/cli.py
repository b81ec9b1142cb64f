"""The `trimtab` command line.

A command imports its code when it is called: help, completion and most mistakes load no more than
Typer.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
import webbrowser
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version as installed_version
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from trimtab.flows import FLOWS
from trimtab.flows.cli.environment import load_settings
from trimtab.flows.config.errors import CommandError, ConfigError, unknown_name
from trimtab.flows.runs.exit_handling import exit_on_closed_output, exit_on_signals
from trimtab.infra.settings import SettingsError

# Headings of the help.
RUN, PREPARE, READ, OPERATE = "Run", "Before a run", "Read results", "Operate"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2: the command or configuration is wrong)."""
    if "_TRIMTAB_COMPLETE" in os.environ:  # the shell asks how a command line may go on
        app(prog_name="trimtab")
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(app)
    with exit_on_signals(), exit_on_closed_output():
        try:
            with command.make_context("trimtab", words or ["--help"]) as context:
                return int(command.invoke(context) or 0)
        except typer.Exit as end:
            return end.exit_code
        except (ConfigError, SettingsError) as error:
            for line in str(error).splitlines():
                print(f"trimtab: {line}", file=sys.stderr)
            return 2
        except typer.TyperException as error:
            print(f"trimtab: {_usage_mistake(error)}", file=sys.stderr)
            return 2
        except CommandError as error:
            print(f"trimtab: {error}", file=sys.stderr)
            return 1


def _usage_mistake(error: typer.TyperException) -> str:
    """One line: the mistake, and the command whose help to read."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "trimtab"
    return f"{message}. See {command} --help"


class Commands(TyperGroup):
    """Help with commands under headings; an unknown command's error names the nearest one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Typer's method, with another message."""
        if args[0] not in self.commands:
            ctx.fail(unknown_name("command", args[0], self.commands))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each heading."""
        commands: Any = self.commands.values()
        for heading, section in groupby(commands, key=lambda command: command.rich_help_panel):
            with formatter.section(heading):
                formatter.write_dl([(c.name, c.get_short_help_str(80)) for c in section])


class ListOptionCommand(TyperCommand):
    """A command whose options that are lists take several values each.

    `--seeds 0 1 2`, `--seeds 0,1,2` and `--seeds 0 --seeds 1 --seeds 2` are the same.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer's method, which takes an option once a value."""
        lists = {name for option in self.params if option.multiple for name in option.opts}
        return super().parse_args(ctx, list(_repeat_option_for_each_value(args, lists)))


def _repeat_option_for_each_value(arguments: Sequence[str], lists: Container[str]) -> Iterator[str]:
    """The command line with `--seeds=0 --seeds=1` in place of `--seeds 0 1` or `--seeds 0,1`."""
    rest = list(arguments)
    while rest:
        name, is_joined, value = rest.pop(0).partition("=")
        if name not in lists:
            yield f"{name}{is_joined}{value}"
            continue
        values = [value] if is_joined else list(takewhile(_is_value, rest))
        del rest[: 0 if is_joined else len(values)]
        items = [item for value in values for item in value.split(",")]
        yield from [f"{name}={item}" for item in items] or [name]


def _is_value(text: str) -> bool:
    """Whether it may be one of an option's several values: neither option nor override."""
    return not text.startswith("-") and "=" not in text


app = typer.Typer(
    cls=Commands,
    help="Stable RLHF as a workflow: noisy human preferences in, a steadier policy out.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich" if sys.stdout.isatty() else None,  # boxes and colours for people only
    pretty_exceptions_enable=False,  # they show local variables, which may hold secrets
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"trimtab {installed_version('trimtab')}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version, and stop.",
    ),
) -> None:
    """Options of `trimtab` itself."""


def _recipes() -> list[str]:
    from trimtab.flows.config.recipes import RECIPES

    return list(RECIPES)


def _fields() -> list[tuple[str, str]]:
    from trimtab.flows.config.config import RunConfig
    from trimtab.flows.config.paths import fields_of

    return [(f"{path}=", field.description or "") for path, field in fields_of(RunConfig)]


def _arms() -> list[str]:
    from trimtab.models.config.arms import ARMS

    return list(ARMS)


def _known_flow(name: str) -> str:
    if name not in FLOWS:
        raise ConfigError(f"--flow: {unknown_name('flow', name, FLOWS)}")
    return name


def _require_above_zero(value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value:g} is not above 0.")
    return value


RECIPE_OR_MODEL = Argument(
    ..., autocompletion=_recipes, help="Recipe or registered model whose champion to use."
)
OVERRIDES = Argument(
    None,
    metavar="field=value",
    autocompletion=_fields,
    help="Settings to change, e.g. ppo.kl_coef=0.1.",
)
RECIPE = Argument(
    None,
    metavar="recipe",
    autocompletion=_recipes,
    help="smoke, default, papers, rlaif, constitutional; on your data audit, reward, hh-smollm2, "
    "ukp-smollm2, and on GPUs hh-qwen-0.5b, hh-qwen-1.5b-lora, hh-7b-lora or hh-7b. With "
    "--config the file may name it.",
)
FLOW = Option(
    "rlhf",
    callback=_known_flow,
    autocompletion=lambda: list(FLOWS),
    help=f"Part of the experiment: {', '.join(FLOWS)}.",
)
ARMS = Option(
    None,
    metavar="ARM",
    autocompletion=_arms,
    help="With --flow compare: arms to compare, e.g. dpo rest or dpo,rest.",
)
# Of an audit.
COLUMNS = Option(
    None,
    metavar="chosen=A,rejected=B",
    help="What the files call the columns, where they have no form that is known: prompt, "
    "chosen, rejected, and others.",
)
VOTES = Option(
    None,
    metavar="FILE",
    help="Votes that you have already, one more voter each: id, chosen_score and "
    "rejected_score, or id and vote. May be given several times.",
)
REWARD_MODELS = Option(
    None,
    metavar="MODEL",
    help="A reward model that you have, one more voter each: a folder or hub id with one "
    "label, in safetensors. May be given several times.",
)
JUDGES = Option(
    None,
    metavar="MODEL@URL",
    help="A language model that compares the answers, one more voter each: an "
    "OpenAI-compatible address, with the key in $OPENAI_API_KEY; or a packaged model, folder "
    "or hub id. May be given several times.",
)
ENCODER = Option(
    None,
    metavar="MODEL",
    help="Sentence encoder of the voters on embeddings: a folder or hub id, for instance a "
    "multilingual one; by default MiniLM, which reads English.",
)
BUDGET = Option(
    None,
    metavar="TIME",
    help="2m, 20m, 1h30m: more than the usual 2m adds the voters on a language model that are "
    "estimated to fit.",
)
REVIEW = Option(
    None,
    "--apply",
    metavar="REVIEW",
    help="A person's verdicts, as the page downloads them: kept, flipped and dropped.",
)
FAIL_OVER = Option(
    None,
    min=0,
    max=1,
    metavar="SHARE",
    help="Exit with status 3 if more than this share of the labels is estimated to be wrong "
    "(with --baseline: of those that are not in it), with 4 if the audit cannot tell.",
)
MAX_REFUSED = Option(
    None,
    min=0,
    max=1,
    metavar="SHARE",
    help="Exit with status 3 if more than this share of the rows is refused; by default .05 "
    "with --fail-over, else any share passes.",
)
BASELINE = Option(
    None,
    metavar="AUDITED",
    help="audited.parquet or audited.jsonl.gz of an earlier audit, to compare with.",
)
# Of a reward server.
SCORERS = Argument(
    ...,
    metavar="FOLDER...",
    help="A reward model that `trimtab export` wrote, or any of one label: a folder or hub id. "
    "Several are an ensemble.",
)
KEY_FILE = Option(
    None,
    metavar="FILE",
    help="File with the key that clients must have; by default $TRIMTAB_REWARD_KEY, if set.",
)
ANSWERS = Option(
    None,
    metavar="FILE",
    help="Ensemble: JSON lines of known answers that the members are measured on, where they "
    "were not exported from one run.",
)
STRIP = Option(
    None,
    metavar="TEXT",
    help="What a trainer leaves behind a text, such as its policy's end token; the scorer's "
    "own are taken off anyway.",
)
seeds_option = partial(Option, metavar="N")
days_option = partial(Option, callback=_require_above_zero, metavar="DAYS")
port_option = partial(Option, min=1, max=65535)


@app.command(cls=ListOptionCommand, rich_help_panel=RUN)
def run(
    recipe: str | None = RECIPE,
    overrides: list[str] | None = OVERRIDES,
    config: Path | None = Option(
        None,
        metavar="FILE",
        help="YAML or JSON with settings to change, or all, as --print-config prints them.",
    ),
    flow: str = FLOW,
    arms: list[str] | None = ARMS,
    seeds: list[int] | None = seeds_option(
        None, help="With --flow compare: seeds, e.g. 0 1 or 0,1; by default 2 3 4."
    ),
    name: str | None = Option(
        None, help="Name of the run; by default made of recipe, seed, data and changes."
    ),
    dry_run: bool = Option(
        False, "--dry-run", help="Print stages, tokens, steps and memory, and stop."
    ),
    print_config: bool = Option(
        False, "--print-config", help="Print the configuration as JSON, and stop."
    ),
    as_json: bool = Option(False, "--json", help="With --dry-run: the plan as JSON."),
    gpus: int | None = Option(None, min=1, help="With --dry-run: GPUs to plan for."),
    gpu_memory: float | None = Option(
        None, callback=_require_above_zero, help="With --gpus: memory of each, in GiB."
    ),
) -> None:
    """Run a recipe, or print its plan or its configuration."""
    from trimtab.flows.cli import commands

    settings = load_settings(makes_home=not (dry_run or print_config))
    if dry_run and print_config:
        raise ConfigError("found --dry-run and --print-config; allowed: one of them")
    if as_json and not dry_run:
        raise ConfigError("found --json without --dry-run; allowed: together")
    if (gpus, gpu_memory) != (None, None) and (not dry_run or None in (gpus, gpu_memory)):
        raise ConfigError(
            f"found --gpus {gpus}, --gpu-memory {gpu_memory}, --dry-run {dry_run}; allowed: "
            "--gpus and --gpu-memory together, and only with --dry-run"
        )
    recipe, changes = commands.recipe_and_changes(recipe, config, overrides or ())
    request = commands.parse_request(recipe, changes, flow, arms, seeds, name, settings)
    if print_config:
        print(request.config.model_dump_json(indent=1))
    elif dry_run:
        machine = commands.machine_of_plan(recipe, gpus, gpu_memory, settings)
        commands.print_plan(request, machine, as_json=as_json)
    else:
        commands.run_recipe(request, settings)


@app.command(rich_help_panel=RUN)
def audit(
    files: list[str] = Argument(
        ...,
        metavar="FILE...",
        help="Preference pairs: files, folders, hub ids or s3:// addresses; and settings to "
        "change, e.g. preferences.max_pairs=5000.",
    ),
    columns: str | None = COLUMNS,
    votes: list[str] | None = VOTES,
    reward_model: list[str] | None = REWARD_MODELS,
    judge: list[str] | None = JUDGES,
    judge_pairs: int | None = Option(
        None, min=1, metavar="N", help="Let judges compare only N of the pairs."
    ),
    encoder: str | None = ENCODER,
    budget: str | None = BUDGET,
    name: str | None = Option(
        None, help="Name of the run; by default made of the files and the changes."
    ),
    review: str | None = REVIEW,
    fail_over: float | None = FAIL_OVER,
    max_refused: float | None = MAX_REFUSED,
    baseline: str | None = BASELINE,
    as_json: bool = Option(
        False, "--json", help="Print the numbers as one JSON object, and nothing else."
    ),
) -> int:
    """Find the labels that look wrong in files of preference pairs; no model has to be named."""
    from trimtab.flows.audit.audit_gate import gate_of_audit
    from trimtab.flows.cli.pair_files import AuditOptions, audit_files, files_and_overrides

    settings = load_settings()
    options = AuditOptions(
        columns=columns,
        votes=votes or (),
        reward_models=reward_model or (),
        judges=judge or (),
        judge_pairs=judge_pairs,
        encoder=encoder,
        budget=budget,
        name=name,
        review=review,
        baseline=baseline,
    )
    numbers = audit_files(*files_and_overrides(files), options, settings, is_quiet=as_json)
    gate = gate_of_audit(numbers, fail_over, max_refused)
    if as_json:
        has_gate = (fail_over, max_refused) != (None, None)
        print(json.dumps(numbers | ({"gate": asdict(gate)} if has_gate else {}), indent=1))
    for reason in gate.reasons:
        print(f"trimtab: {reason}", file=sys.stderr)
    return gate.status


@app.command(rich_help_panel=RUN)
def reward(
    files: list[str] = Argument(
        ...,
        metavar="FILE...",
        help="Preference pairs: files, folders, hub ids or s3:// addresses; and settings to "
        "change, e.g. reward_model.train.learning_rate=1e-5.",
    ),
    base: str | None = Option(
        None,
        metavar="MODEL",
        help="Language model that it starts from: a packaged model, folder or hub id; by default "
        "smollm2-135m-instruct.",
    ),
    to: Path | None = Option(
        None,
        metavar="DIR",
        help="Folder to write; a new one. By default one below exports in the home folder, which "
        "is written anew.",
    ),
    columns: str | None = COLUMNS,
    name: str | None = Option(
        None, help="Name of the run; by default made of the files and the changes."
    ),
    as_json: bool = Option(
        False, "--json", help="Print the numbers as one JSON object, and nothing else."
    ),
) -> None:
    """Train a reward model on files of preference pairs, as a folder that others read."""
    from trimtab.flows.cli.pair_files import RewardOptions, files_and_overrides, train_reward

    options = RewardOptions(base, columns, to, name)
    words, settings = files_and_overrides(files), load_settings()
    numbers = train_reward(*words, options, settings, is_quiet=as_json)
    if as_json:
        print(json.dumps(numbers, indent=1))


@app.command(cls=ListOptionCommand, rich_help_panel=RUN)
def study(
    paper: str = Argument(
        ...,
        help="A paper: part-1, part-2 or advantage-model. Or a study of our own: methods, "
        "rlaif, human-votes or constants.",
    ),
    exhibit: str = Argument(..., help="A table or figure, e.g. figure-3, or all."),
    overrides: list[str] | None = OVERRIDES,
    scale: str = Option("default", autocompletion=_recipes, help="Recipe of the runs."),
    seeds: list[int] | None = seeds_option(
        None, help="Seeds to run, e.g. 0 1 or 0,1; by default 2 3 4."
    ),
) -> None:
    """Reproduce a table or figure of the papers over several seeds."""
    from trimtab.flows.cli import commands

    load_settings()
    commands.run_study(paper, exhibit, scale, seeds, overrides or ())


@app.command(rich_help_panel=RUN)
def rounds(recipe: str = RECIPE_OR_MODEL, overrides: list[str] | None = OVERRIDES) -> None:
    """Run one more MetaRM round from a recipe's champion."""
    from trimtab.flows.cli import commands

    load_settings()
    commands.next_round(recipe, overrides or ())


@app.command(rich_help_panel=RUN)
def stage(
    job: Path = Argument(
        ..., metavar="JOB", help="A job file: stage, config, inputs, workdir, and gpus."
    ),
) -> None:
    """Run one stage by hand, without Prefect.

    Stopped and run again, it goes on from its checkpoint.
    """
    from trimtab.flows.cli.by_hand import run_stage

    run_stage(job)


@app.command(rich_help_panel=PREPARE)
def recipes() -> None:
    """List the recipes: what each is, its memory, how long it takes."""
    from trimtab.flows.cli.doctor import recipes_text

    print(recipes_text(load_settings(makes_home=False)))


@app.command(rich_help_panel=PREPARE)
def fields(
    words: list[str] | None = Argument(
        None, metavar="WORD", help="Section, setting, or words of its description."
    ),
    recipe: str = Option("default", autocompletion=_recipes, help="Recipe whose values to print."),
) -> None:
    """List settings: what each does, its value in a recipe, and what is allowed."""
    from trimtab.flows.cli.fields import fields_text
    from trimtab.flows.config.recipes import recipe_named

    print(fields_text(words or [], recipe_named(recipe)))


@app.command(rich_help_panel=PREPARE)
def doctor() -> int:
    """Say what this machine can run, and what is missing.

    The exit status is 1 if something that runs would need is missing.
    """
    # Prefect warns if our home folder, which this command does not make, does not exist.
    warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")
    from trimtab.flows.cli.doctor import diagnose, doctor_text

    findings = diagnose(load_settings(makes_home=False))
    print(doctor_text(findings))
    return int(any(line.mark == "missing" for lines in findings.values() for line in lines))


@app.command(rich_help_panel=PREPARE)
def look(
    files: list[str] = Argument(
        ...,
        metavar="FILE...",
        help="Preference pairs: files, folders, hub ids or s3:// addresses; and settings of "
        "preferences to change.",
    ),
    columns: str | None = COLUMNS,
    form: str | None = Option(
        None, "--format", metavar="NAME", help="The form of the rows, in place of telling it."
    ),
    is_all: bool = Option(
        False, "--all", help="Read all rows; by default the first 5,000 of each source."
    ),
    as_json: bool = Option(False, "--json", help="Print it as one JSON object, with whole texts."),
) -> int:
    """Say which form files of preference pairs have, how their rows are read, what is missing.

    The exit status is 2 if one cannot be read.
    """
    from trimtab.flows.audit.look import MAX_ROWS, look_at, look_text
    from trimtab.flows.cli.pair_files import preferences_of

    load_settings(makes_home=False)
    preferences = preferences_of(files, columns, form)
    sources = look_at(preferences, max_rows=None if is_all else MAX_ROWS)
    is_readable = all(source["is_readable"] for source in sources)
    if as_json:
        print(json.dumps({"is_readable": is_readable, "files": sources}, indent=1))
    else:
        print(look_text(sources))
    return 0 if is_readable else 2


@app.command("gpu-check", cls=ListOptionCommand, rich_help_panel=PREPARE)
def gpu_check(
    minutes: float = Option(
        10, callback=_require_above_zero, help="Time for all parts; what does not fit is left out."
    ),
    out: Path = Option(
        Path("gpu-check"), metavar="DIR", help="Folder for results.json, log.txt and two timelines."
    ),
    pairs: str | None = Option(
        None,
        metavar="FILE",
        help="Preference pairs to train on; by default made up, as long as HH's.",
    ),
    part: list[str] | None = Option(None, metavar="NAME", help="Only this part and what it needs."),
    rehearse: bool = Option(
        False, "--rehearse", help="On the CPU with tiny models, as where there is no GPU."
    ),
    peers: Path | None = Option(
        None,
        metavar="DIR",
        help="Wheels of TRL to compare with, 1.10 for PPO; by default what is installed.",
    ),
) -> None:
    """Check a GPU: right numbers, speed, memory; and TRL beside it.

    Part by part, in ten minutes. The exit status is 1 if a part failed, 3 if nothing failed in a
    rehearsal.
    """
    from trimtab.flows.cli.by_hand import check_gpu

    check_gpu(minutes, out, pairs, part or (), rehearse, peers)


@app.command(rich_help_panel=READ)
def report(
    run: str | None = Argument(
        None, help="Bring this run's report here, if an MLflow server has it."
    ),
    is_opened: bool = Option(
        False, "--open", help="Open the report in a browser: the run's, or the newest."
    ),
) -> None:
    """List the reports, the newest last: of this home folder, and of an MLflow server."""
    from trimtab.flows.cli.reports import report_lines, report_page

    settings = load_settings(makes_home=False)
    if run is None:
        for line in report_lines(settings):
            print(line)
    page = report_page(settings, run) if run is not None or is_opened else None
    if run is not None:
        print(page)
    if is_opened and page:
        webbrowser.open(page.as_uri())


@app.command(rich_help_panel=READ)
def compare(
    runs: list[str] = Argument(..., help="Names of runs, e.g. default-seed0 default-seed1."),
) -> None:
    """Print finished runs side by side as Markdown.

    Shows the settings in which they differ. Runs that differ only in their seed are averaged.
    """
    from trimtab.infra.reports import read_run
    from trimtab.models.reporting.run_tables import comparison

    reports = load_settings(makes_home=False).home / "reports"
    cards, summaries, settings = [], [], []
    for name in runs:
        if not (reports / name / "scorecard.json").is_file():
            raise ConfigError(f"no scorecard in {reports / name}; `trimtab report` lists runs")
        cards.append(json.loads((reports / name / "scorecard.json").read_text()))
        if "claims" not in cards[-1]:
            raise ConfigError(f"{name} is the page of a comparison or study, not of a single run")
        summaries.append(json.loads((reports / name / "summary.json").read_text()))
        written = read_run(reports / name)
        if not written:
            raise ConfigError(f"no settings in {reports / name}; `trimtab run` writes them anew")
        settings.append({"flow": written["flow"], **written["settings"]})
    print(comparison(runs, cards, summaries, settings))


@app.command(rich_help_panel=READ)
def export(
    run: str = Argument(..., help="Name of a finished run: `trimtab report` lists them."),
    role: str = Argument(
        ..., help="policy, reward_model, advantage_model, ensemble, pairs, or another role."
    ),
    to: Path = Option(..., "--to", metavar="DIR", help="Folder to write; a new one."),
    push: str | None = Option(
        None, metavar="REPO", help="Also upload it to this repository of the Hub, private."
    ),
) -> None:
    """Write a run's policy, scorers or cleaned pairs to a folder, with a card."""
    from trimtab.flows.cli import export as exporting

    print(exporting.export(run, role, to, push, load_settings(makes_home=False)))


@app.command(rich_help_panel=READ)
def papers(
    into: Path | None = Option(
        None, help="Write papers.md there, and a page for each paper to papers/."
    ),
) -> None:
    """Print all finished studies in Markdown, a table for each paper."""
    from trimtab.models.studies.papers import all_tables, cards_below, write_pages

    reports = load_settings(makes_home=False).home / "reports"
    if into is None:
        print(all_tables(cards_below(reports)), end="")
    else:
        print(write_pages(reports, into))


@app.command(rich_help_panel=READ)
def ui(
    host: str = Option("127.0.0.1", help="Address to bind."),
    port: int = port_option(4200, help="Prefect's port."),
    mlflow_port: int = port_option(5000, help="MLflow's port."),
) -> None:
    """Serve the web pages of Prefect and MLflow for runs of this machine, until Ctrl-C."""
    from trimtab.flows.cli.ui import serve_pages

    serve_pages(load_settings(), host, port, mlflow_port)


@app.command("serve-reward", cls=ListOptionCommand, rich_help_panel=OPERATE)
def serve_reward(
    folders: list[str] = SCORERS,
    host: str = Option("127.0.0.1", help="Address to bind; any but loopback's needs a key."),
    port: int = Option(8100, min=0, max=65535, help="Port; 0: one that is free."),
    key_file: Path | None = KEY_FILE,
    std_coef: float = Option(
        1.0, min=0, help="Ensemble: spreads of the members that are taken off their mean."
    ),
    answers: Path | None = ANSWERS,
    strip: list[str] | None = STRIP,
    precision: Literal["auto", "float32", "bfloat16"] = Option(
        "auto", help="Of products; auto: bfloat16 on GPUs from Ampere on."
    ),
    batch_tokens: int = Option(8192, min=1, help="Most tokens that are scored at once."),
    wait_ms: float = Option(
        5.0, min=0, max=10_000, help="Milliseconds that a text waits for others."
    ),
    queue_texts: int = Option(16_384, min=1, help="Most texts that wait; beyond: 503."),
    queue_tokens: int = Option(4_000_000, min=1, help="Most tokens that wait; beyond: 503."),
    request_texts: int = Option(1024, min=1, help="Most texts of a request."),
    body_mib: float = Option(16.0, min=0.001, max=1024, help="Most MiB of a request."),
) -> None:
    """Serve a reward model to other trainers: OpenRLHF, slime, miles, verl, vLLM's clients."""
    from trimtab.flows.cli.by_hand import serve_rewards

    serve_rewards(
        {
            "folders": folders,
            "host": host,
            "port": port,
            "key_file": key_file,
            "std_coef": std_coef,
            "answers": answers,
            "strip": strip or (),
            "precision": precision,
            "batch_tokens": batch_tokens,
            "wait_ms": wait_ms,
            "queue_texts": queue_texts,
            "queue_tokens": queue_tokens,
            "request_texts": request_texts,
            "body_mib": body_mib,
        }
    )


@app.command(rich_help_panel=OPERATE)
def deploy(
    gpus: int = Option(1, min=1, help="GPU slots: GPUs that all stages may hold at once."),
    pool_type: Literal["process", "kubernetes"] = Option("process", help="Type of the work pool."),
    notify: str | None = Option(
        None,
        metavar="TYPE/NAME",
        help="Prefect block to notify of failures, collapses and new champions, "
        "e.g. slack-webhook/alerts.",
    ),
    image: str | None = Option(
        None, metavar="NAME:TAG", help="Image of flow runs on Kubernetes; the pool's if unset."
    ),
) -> None:
    """Make or update deployments, GPU slots and notices on a Prefect server."""
    from trimtab.flows.cli import commands

    load_settings()
    commands.deploy_flows(gpus, pool_type, notify, image)


@app.command(rich_help_panel=OPERATE)
def rollback(
    recipe: str = RECIPE_OR_MODEL,
    version: str | None = Argument(
        None, help="Version number; by default the champion before the current one."
    ),
) -> None:
    """Make an earlier version champion again."""
    from trimtab.flows.cli import commands

    load_settings()
    commands.roll_back_champion(recipe, version)


@app.command(rich_help_panel=OPERATE)
def clean(
    delete: bool = Option(False, "--delete", help="Remove what is listed."),
    reports_days: float = days_option(
        90.0, help="Keep what reports of the last DAYS days were made of."
    ),
    idle_days: float = days_option(
        7.0, help="Keep what was written in the last DAYS days, as a run may be using it."
    ),
) -> None:
    """List artifacts and checkpoints that no report needs; with --delete, remove them."""
    from trimtab.flows.cli import commands

    load_settings()
    commands.clean_store(reports_days, idle_days, is_deleted=delete)

"""Export a run's report and audit page to a folder, MLflow, a Prefect artifact, the console."""

from __future__ import annotations

import json
import shlex
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact

from trimtab.infra.processes.locks import file_lock
from trimtab.infra.reports import AUDIT_FILES, PLOTS, REPORT_FILES, REPORT_TAG, write_run
from trimtab.infra.store.store import Store
from trimtab.infra.tracking.runs import TrackedRun
from trimtab.models.config.reporting import LineageEntry
from trimtab.models.data.row_account import RowAccount
from trimtab.models.reporting.kit.html import stamp
from trimtab.tasks.context import FLOW_RUN_URL, base_context, flow_run_tags
from trimtab.tasks.execution import StageResult, manifest_of

REQUESTS_AT_ONCE = 8
LINE = 100  # characters of a line in the terminal


def lineage_of(results: Mapping[str, StageResult]) -> tuple[LineageEntry, ...]:
    """The origin of each artifact, by its manifest; stable, so that a rerun finds its report."""
    store = base_context().store

    def entry(role: str) -> LineageEntry:
        manifest = manifest_of(store, results[role].ref)
        return LineageEntry(
            role=role,
            stage=manifest.stage,
            key=manifest.key,
            digest=manifest.digest,
            seconds=manifest.seconds,
            versions=dict(manifest.versions),
            parents=dict(manifest.parents),
        )

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return tuple(pool.map(entry, results))


def export_report(
    tracked: TrackedRun,
    result: StageResult,
    results: Mapping[str, StageResult],
    name: str,
    run: Mapping[str, Any],
) -> dict[str, Any]:
    """Export report and audit page to a folder, MLflow, a Prefect artifact and the console.

    `run` says whose report it is (`trimtab.infra.reports.write_run`, and what that raises),
    and under `made` how it was made (`trimtab.models.reporting.kit.html.stamp`).
    """
    context = base_context()
    folder = context.settings.home / "reports" / name
    pages = {"report": folder / "report.html"}
    with file_lock(folder.with_name(f".{name}.lock")):  # another run may write the same report
        write_run(folder, run)
        _lay_out(context.store, result, folder, (*REPORT_FILES, PLOTS))
        if "audit" in results:
            _lay_out(context.store, results["audit"], folder, AUDIT_FILES)
            pages["audit"] = folder / "audit.html"
        if (folder / "quarantine.jsonl").exists():
            pages["quarantine"] = folder / "quarantine.jsonl"
        _stamp(pages, tracked, run)
        card = _read_card(folder / "scorecard.json")
        account, warnings = _account_of(card), card.get("warnings", [])
        tracked.log_artifacts(folder)
    _track(tracked, name, card, result.summary)
    cached = sum(done.cached for done in results.values())
    counted = f"{cached} of {len(results)} stages before the report were found in the store"
    links = _link(tracked, name, pages)
    lines = [f"{card['verdict']['sentence']}\n"] if "verdict" in card else []
    for page, path in pages.items():
        link = f"[in MLflow]({links[page]}), on the worker " if page in links else ""
        lines.append(f"{page.capitalize()}: {link}`{path}`\n")
    lines += [f"**Warning:** {warning}\n" for warning in warnings]
    lines += [f"MLflow run: {tracked.link}. {counted}.", *(f"\n{line}" for line in account)]
    lines += ["", "| measure | value |", "|---|---|"]
    lines += [f"| {key} | {_shown(value)} |" for key, value in result.summary.items()]
    create_markdown_artifact(
        key="trimtab-report", description="Summary and numbers", markdown="\n".join(lines)
    )
    print(_answer(card) or _all_of(result.summary), end="\n\n")
    for line in (counted, *account, *(f"warning: {warning}" for warning in warnings)):
        print(line)
    for page, path in {**pages, "scorecard": folder / "scorecard.json"}.items():
        print(f"{page}: {path}")
    shown = {page: str(path) for page, path in pages.items()}
    shown |= {f"{page}_link": address for page, address in links.items()}
    return shown | json.loads(json.dumps(result.summary))


def verdict_of(exported: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict in the scorecard beside a report, as `export_report` returned it."""
    card = _read_card(Path(exported["report"]).with_name("scorecard.json"))
    return dict(card.get("verdict", {}))


def export_audit(
    tracked: TrackedRun, result: StageResult, name: str, run: Mapping[str, Any]
) -> str:
    """Export a run's audit page before its report, as `export_report` does; its address or path."""
    context = base_context()
    folder = context.settings.home / "reports" / name
    pages = {"audit": folder / "audit.html"}
    with file_lock(folder.with_name(f".{name}.lock")):
        write_run(folder, run)
        _lay_out(context.store, result, folder, AUDIT_FILES)
        _stamp(pages, tracked, run)
        tracked.log_artifacts(folder, "audit*")
    return _link(tracked, name, pages).get("audit", str(pages["audit"]))


def _stamp(pages: Mapping[str, Path], tracked: TrackedRun, run: Mapping[str, Any]) -> None:
    """Say on the pages how they were made, and lead to each other and to the run's own pages."""
    if origin := run.get("made"):
        runs = {"Prefect flow run": flow_run_tags().get(FLOW_RUN_URL), "MLflow run": tracked.page()}
        known = {words: address for words, address in runs.items() if address}
        for page, path in pages.items():
            if path.suffix == ".html":
                others = {words: other.name for words, other in pages.items() if words != page}
                stamp(path, origin, others | known)


def _link(tracked: TrackedRun, name: str, pages: Mapping[str, Path]) -> dict[str, str]:
    """Links to the pages as Prefect artifacts, where MLflow is a server; their addresses.

    MLflow shows what lies in S3, too, to who may log in there and nowhere else.
    """
    links = {}
    for page, description in {
        "report": "The report, opens in MLflow",
        "audit": "The labels, to look through",
    }.items():
        address = tracked.page(pages[page].name) if page in pages else None
        if address:
            links[page] = address
            create_link_artifact(
                key=f"trimtab-{page}-page",
                link=address,
                link_text=f"{page.capitalize()} of {name}",
                description=description,
            )
    return links


def grouped(summary: Mapping[str, Any], groups: Sequence[str]) -> dict[str, float]:
    """A report's numbers as `group/name`, which MLflow shows together; else the group is `run`.

    groups: of policies and scorers, with whose name a number's begins.
    """
    longest_first = sorted(groups, key=len, reverse=True)
    numbers = {}
    for key, value in summary.items():
        if isinstance(value, int | float):
            group = next((group for group in longest_first if key.startswith(f"{group}_")), None)
            name = key.removeprefix(f"{group}_") if group else key
            numbers[f"{group or 'run'}/{name}"] = float(value)
    return numbers


def _track(
    tracked: TrackedRun, name: str, card: Mapping[str, Any], summary: Mapping[str, Any]
) -> None:
    """Numbers as metrics; the report's name, verdict and claims as tags."""
    policies = [policy["name"] for policy in card.get("policies", ())]
    claims = {key: str(value) for key, value in summary.items() if key.startswith("claim_")}
    tags = {f"trimtab.{key.replace('_', '.', 1)}": value for key, value in claims.items()}
    tags[REPORT_TAG] = name
    if "verdict" in card:
        tags["trimtab.verdict"] = str(card["verdict"]["answer"])
        tags["mlflow.note.content"] = str(card["verdict"]["sentence"])
        if address := flow_run_tags().get(FLOW_RUN_URL):
            tags["mlflow.note.content"] += f"\n\n[Flow run in Prefect]({address})"
    tracked.log(metrics=grouped(summary, [*policies, *card.get("scorers", {})]), tags=tags)


def _lay_out(store: Store, result: StageResult, folder: Path, names: Sequence[str]) -> None:
    """Replace files and folders of an artifact in `folder`: a page that is open can be reloaded."""
    scratch = folder.with_name(f".{folder.name}")
    store.materialise(manifest_of(store, result.ref), scratch)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        if (scratch / name).exists():
            (scratch / name).replace(folder / name)
        else:  # of an earlier run
            (folder / name).unlink(missing_ok=True)
    shutil.rmtree(scratch)


def _read_card(scorecard: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads(scorecard.read_text()) if scorecard.exists() else {}
    return card


def _account_of(card: Mapping[str, Any]) -> list[str]:
    """The account of the rows that a run has read, by its scorecard; empty for other pages."""
    rows = card.get("data", {}).get("rows")
    account = RowAccount.from_json(rows) if rows else None
    return [account.sentence(), *account.details()] if account else []


def _answer(card: Mapping[str, Any]) -> str:
    """A run's verdict, and each claim with how it stands; nothing of another page."""
    if "verdict" not in card:
        return ""
    verdict = card["verdict"]
    paragraphs = [_wrapped(verdict["sentence"]), *map(_wrapped, verdict["details"])]
    if card.get("claims"):
        paragraphs += ["", "The papers' claims in this run:"]
    for claim in card.get("claims", []):
        paragraphs.append(_wrapped(claim["statement"], f"  {claim['status']:9}"))
    return "\n".join(["", *paragraphs])


def _wrapped(text: str, before: str = "") -> str:
    return textwrap.fill(text, LINE, initial_indent=before, subsequent_indent=" " * len(before))


def next_steps(exported: Mapping[str, Any], name: str, roles: Collection[str]) -> str:
    """The commands that lead on from a finished run with these roles; empty without a verdict."""
    verdict = verdict_of(exported)
    run = shlex.quote(name)
    steps = [
        (f"trimtab report {run} --open", "open the report in a browser"),
        ("trimtab ui", "pages of Prefect and MLflow, for this and other runs"),
    ]
    if verdict.get("policy") or "reward_model" in roles:
        model = "policy" if verdict.get("policy") else "reward_model"
        steps.append((f"trimtab export {run} {model} --to DIR", "copy the model out"))
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:<{width}}  # {purpose}" for command, purpose in steps]
    return "\n".join(["Next:", *lines]) if verdict else ""


def _all_of(summary: Mapping[str, Any]) -> str:
    width = max(map(len, summary), default=0)
    return "\n".join(f"{key:<{width}}  {_shown(value)}" for key, value in summary.items())


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)

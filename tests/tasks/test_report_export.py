"""Where a run's report is put."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.infra.reports import AUDIT_FILES, REPORT_FILES, RUN_FILE, NameTakenError
from trimtab.infra.store.store import open_store
from trimtab.models.data.records import ArtifactRef
from trimtab.models.data.row_account import RowAccount, RowCounts
from trimtab.models.reporting import templates
from trimtab.models.reporting.kit.html import MADE, read_text
from trimtab.tasks import report_export as report_module
from trimtab.tasks.execution import StageResult
from trimtab.tasks.report_export import export_report

# Of every file, the scorecard among them.
TEXT = '{"warnings": ["look here first"]}'


class _Tracked:
    """An MLflow run that reads what it is given."""

    run_id, link = "1", ""

    def __init__(self, server: str = "") -> None:
        self.server = server
        self.metrics: dict[str, float] = {}
        self.tags: dict[str, str] = {}

    def page(self, artifact: str) -> str | None:
        return f"{self.server}/{artifact}" if self.server else None

    def log_artifacts(self, folder: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) == len(REPORT_FILES) + 2 + len(AUDIT_FILES) + 1
        for file in files:
            assert file.read_text() == TEXT or file.name == RUN_FILE

    def log(self, *, metrics: dict[str, float], tags: dict[str, str]) -> None:
        self.metrics, self.tags = metrics, tags


def test_metrics_are_grouped_by_policy_and_scorer_and_the_verdict_is_a_tag() -> None:
    tracked: Any = _Tracked()
    card = {
        "policies": [{"name": "full"}, {"name": "round_2"}, {"name": "full_at_equal_kl"}],
        "scorers": {"relabelled": {}, "advantage_model": {}},
        "verdict": {"answer": "better", "sentence": "Better: by far."},
    }
    summary = {
        "verdict": "better",
        "claim_beats_sft": "holds",
        "num_pairs": 9,
        "full_main_net": 0.5,
        "full_at_equal_kl_main_net": 0.25,
        "advantage_model_label_ece": 0.1,
    }
    report_module._track(tracked, "smoke-seed0", card, summary)
    assert tracked.metrics == {
        "run/num_pairs": 9.0,
        "full/main_net": 0.5,
        "full_at_equal_kl/main_net": 0.25,
        "advantage_model/label_ece": 0.1,
    }
    assert tracked.tags == {
        "trimtab.claim.beats_sft": "holds",
        "trimtab.verdict": "better",
        "trimtab.report": "smoke-seed0",
        "mlflow.note.content": "Better: by far.",
    }


def test_runs_that_end_at_once_may_write_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path / "store"))

    def published(stage: str, *names: str) -> StageResult:
        output = tmp_path / stage
        for name in names:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_text(TEXT)
        manifest = store.publish(stage, "k", output)
        return StageResult(ArtifactRef(stage, "k", manifest.digest), {"score": 1.0}, False, 1.0)

    result = published("report", *REPORT_FILES, "plots/a.png", "plots/b.png")
    results = {"audit": published("audit", *AUDIT_FILES, "trainer.log")}
    context = SimpleNamespace(store=store, settings=SimpleNamespace(home=tmp_path))
    monkeypatch.setattr(report_module, "base_context", lambda: context)
    artifacts: list[str] = []
    monkeypatch.setattr(
        report_module, "create_markdown_artifact", lambda **given: artifacts.append(str(given))
    )
    run = {"name": "smoke-seed0", "configuration": "smoke-seed0"}
    told: list[dict[str, object]] = []
    tracked: Any = _Tracked()

    def tell() -> None:
        for _ in range(20):
            told.append(export_report(tracked, result, results, "smoke-seed0", run))

    threads = [threading.Thread(target=tell) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = tmp_path / "reports" / "smoke-seed0"
    pages = {name: str(folder / f"{name}.html") for name in ("report", "audit")}
    pages["quarantine"] = str(folder / "quarantine.jsonl")
    assert told == [{**pages, "score": 1.0}] * 60
    assert all("**Warning:** look here first" in artifact for artifact in artifacts)
    assert capsys.readouterr().out.count("warning: look here first") == 60
    assert all(f"Audit: `{folder / 'audit.html'}`" in artifact for artifact in artifacts)
    names = [*REPORT_FILES, *AUDIT_FILES, "plots", RUN_FILE]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert len(list((folder / "plots").iterdir())) == 2
    other = {"name": "smoke-seed0", "configuration": "smoke-seed0-ppo.kl_coef=0.05"}
    with pytest.raises(NameTakenError, match="is taken: .* has the report of smoke-seed0, and"):
        export_report(tracked, result, results, "smoke-seed0", other)


def test_pages_say_how_they_were_made_and_lead_to_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    context = SimpleNamespace(store=store, settings=SimpleNamespace(home=tmp_path))
    monkeypatch.setattr(report_module, "base_context", lambda: context)
    monkeypatch.setattr(report_module, "create_markdown_artifact", lambda **_: None)

    def published(stage: str, name: str) -> StageResult:
        (tmp_path / stage).mkdir()
        (tmp_path / stage / name).write_text(f"<header>{MADE}</header>")
        manifest = store.publish(stage, "k", tmp_path / stage)
        return StageResult(ArtifactRef(stage, "k", manifest.digest), {}, False, 1.0)

    results = {"audit": published("audit", "audit.html")}
    made = {"at": "2026-01-02 03:04 UTC", "version": "1.2", "host": "<host>", "commit": "a" * 40}
    run = {
        "name": "mine-seed0", "configuration": "mine-seed0",
        "made": {**made, "command": "trimtab run mine 'a=\"b\"'"},
    }  # fmt: skip
    tracked: Any = SimpleNamespace(
        run_id="2", link="", log=lambda **_: None, log_artifacts=lambda _: None,
        page=lambda artifact="": None if artifact else "http://mlflow/#/runs/2",
    )  # fmt: skip
    back = {report_module.FLOW_RUN_URL: "http://prefect/runs/1"}
    monkeypatch.setattr(report_module, "flow_run_tags", lambda: back)
    export_report(tracked, published("report", "report.html"), results, "mine-seed0", run)
    folder = tmp_path / "reports" / "mine-seed0"
    told = (folder / "report.html").read_text()
    assert told.startswith(
        '<header><div class="meta made">Made 2026-01-02 03:04 UTC by Trimtab 1.2 (commit '
        "<code>aaaaaaaaaaaa</code>) on &lt;host&gt;: <code>trimtab run mine "
    )
    shown = re.findall(r'<a href="([^"]+)">([^<]+)</a>', told)
    pages = [
        ("http://prefect/runs/1", "Prefect flow run"),
        ("http://mlflow/#/runs/2", "MLflow run"),
    ]
    assert shown == [("audit.html", "audit"), *pages]
    assert ("report.html", "report") in re.findall(
        r'<a href="([^"]+)">([^<]+)</a>', (folder / "audit.html").read_text()
    )
    assert store.find("report", "k") and store.find("audit", "k")  # the store's files are as before
    for template in ("report", "audit", "compare", "study"):
        assert MADE in read_text(templates, f"{template}.html.j2")


def test_a_browser_reaches_report_and_audit_page_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where MLflow is a server; without one there is no address to link to."""
    made: list[dict[str, str]] = []
    monkeypatch.setattr(report_module, "create_link_artifact", lambda **given: made.append(given))
    card = {"verdict": {"answer": "better", "sentence": "Better: by far."}}
    pages = {page: tmp_path / f"{page}.html" for page in ("report", "audit")}
    pages["quarantine"] = tmp_path / "quarantine.jsonl"
    tracked: Any = _Tracked("http://mlflow/#/runs/1/artifacts")
    links = report_module._link(tracked, "smoke-seed0", pages)
    assert links == {
        "report": "http://mlflow/#/runs/1/artifacts/report.html",
        "audit": "http://mlflow/#/runs/1/artifacts/audit.html",
    }
    assert [each["key"] for each in made] == ["trimtab-report-page", "trimtab-audit-page"]
    assert [each["link"] for each in made] == list(links.values())
    assert made[0]["description"] == "The report, opens in MLflow"
    assert report_module._link(_Tracked(), "smoke-seed0", pages) == {}  # type: ignore[arg-type]
    assert len(made) == 2
    back = {report_module.FLOW_RUN_URL: "http://prefect/runs/flow-run/7"}
    monkeypatch.setattr(report_module, "flow_run_tags", lambda: back)
    report_module._track(tracked, "smoke-seed0", card, {})
    assert "(http://prefect/runs/flow-run/7)" in tracked.tags["mlflow.note.content"]


def test_rows_and_where_the_refused_ones_lie_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run under the same name has refused nothing: no file of the first one stays."""
    store = open_store(str(tmp_path / "store"))
    context = SimpleNamespace(store=store, settings=SimpleNamespace(home=tmp_path))
    monkeypatch.setattr(report_module, "base_context", lambda: context)
    monkeypatch.setattr(report_module, "create_markdown_artifact", lambda **_: None)

    def run(refused: int) -> dict[str, object]:
        rows = RowCounts(
            read=10 + refused, used=9, quarantined=refused, ties_dropped=0, over_limit=1
        )
        reasons = {"too_long": refused} if refused else {}
        account = RowAccount(rows, {"mine.jsonl": rows}, reasons, 9, 10, 9, 0, 2, 0, 0)
        card = {"data": {"rows": dataclasses.asdict(account)}, "warnings": account.warnings()}
        output = tmp_path / f"output-{refused}"
        output.mkdir()
        (output / "scorecard.json").write_text(json.dumps(card))
        if refused:
            (output / "quarantine.jsonl").write_text("{}\n" * refused)
        manifest = store.publish("report", f"k{refused}", output)
        ref = ArtifactRef("report", f"k{refused}", manifest.digest)
        tracked: Any = SimpleNamespace(
            run_id="1",
            link="",
            page=lambda _: None,
            log_artifacts=lambda _: None,
            log=lambda **_: None,
        )
        about = {"name": "mine-seed0", "configuration": "mine-seed0"}
        return export_report(tracked, StageResult(ref, {}, False, 1.0), {}, "mine-seed0", about)

    path = tmp_path / "reports" / "mine-seed0" / "quarantine.jsonl"
    assert run(3)["quarantine"] == str(path)
    printed = capsys.readouterr().out.splitlines()
    told = "13 rows read = 9 used + 3 quarantined (3 too_long) + 1 left out by max_pairs=9"
    assert told in printed
    assert "warning: preferences.max_pairs=9 left out 1 of 10 good pairs" in "\n".join(printed)
    assert f"quarantine: {path}" in printed
    assert path.read_text() == "{}\n" * 3
    assert "quarantine" not in run(0)
    assert not path.exists()
    assert "10 rows read = 9 used + 1 left out by max_pairs=9" in capsys.readouterr().out


def test_the_end_is_an_answer_the_claims_and_where_everything_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures by the hundred are in the scorecard."""
    store = open_store(str(tmp_path / "store"))
    context = SimpleNamespace(store=store, settings=SimpleNamespace(home=tmp_path))
    monkeypatch.setattr(report_module, "base_context", lambda: context)
    artifacts: list[str] = []
    monkeypatch.setattr(
        report_module, "create_markdown_artifact", lambda **given: artifacts.append(str(given))
    )

    def published(stage: str, files: dict[str, str]) -> StageResult:
        output = tmp_path / stage
        for name, text in files.items():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_text(text)
        manifest = store.publish(stage, "key", output)
        return StageResult(ArtifactRef(stage, "key", manifest.digest), {"a": 1.0}, True, 1.0)

    claim = {"statement": "words " * 40, "status": "unclear"}
    verdict = {
        "answer": "better",
        "sentence": "Better: by far.",
        "details": ["On the rest it is not."],
    }
    card = {"verdict": {**verdict, "policy": "full"}, "claims": [claim]}
    report = published("report", {"scorecard.json": json.dumps(card), "report.html": ""})
    model = {"model/model.safetensors": "weights", "summary.json": "{}"}
    results = {"policy_full": published("ppo_max", model), "sft": published("sft", model)}
    tracked: Any = SimpleNamespace(
        run_id="1",
        link="",
        page=lambda _: None,
        log_artifacts=lambda _: None,
        log=lambda **_: None,
    )
    about = {"name": "smoke-seed0", "configuration": "smoke-seed0"}
    exported = export_report(tracked, report, results, "smoke-seed0", about)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[:2] == ["Better: by far.", "On the rest it is not."]
    assert max(len(line) for line in lines if "words" in line) <= 100
    assert lines[4].startswith("  unclear  words") and lines[5].startswith("           words")
    assert "2 of 2 stages before the report were found in the store" in lines
    steps = report_module.next_steps(exported, "smoke-seed0", results).splitlines()
    assert [step.partition("  #")[0].strip() for step in steps] == [
        "Next:",
        "trimtab report smoke-seed0 --open",
        "trimtab ui",
        "trimtab export smoke-seed0 policy --to DIR",
    ]
    assert "a  1.000" not in lines
    assert "Better: by far." in artifacts[0]

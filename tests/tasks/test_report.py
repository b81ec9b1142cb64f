"""Where a run's report is put."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.report_folders import RUN_FILE, NameTakenError
from infra.storage import open_store
from models.records import ArtifactRef
from tasks import report as report_module
from tasks.report import AUDIT_FILES, REPORT_FILES, announce
from tasks.stage import StageResult


class _Tracked:
    """An MLflow run that reads what it is given."""

    run_id, link = "1", ""

    def log_artifacts(self, folder: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) == len(REPORT_FILES) + 2 + len(AUDIT_FILES) + 1
        for file in files:
            assert file.read_text() == "text" or file.name == RUN_FILE

    def log(self, *, metrics: object) -> None:
        pass


def test_runs_that_end_at_once_may_write_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))

    def published(stage: str, *names: str) -> StageResult:
        output = tmp_path / stage
        for name in names:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_text("text")
        manifest = store.publish(
            *(stage, "k", output), config={}, parents={}, versions={}, seconds=1.0, summary={}
        )
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
            told.append(announce(tracked, result, results, "smoke-seed0", run))

    threads = [threading.Thread(target=tell) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = tmp_path / "reports" / "smoke-seed0"
    pages = {name: str(folder / f"{name}.html") for name in ("report", "audit")}
    assert told == [{**pages, "score": 1.0}] * 60
    assert all(f"Audit: `{folder / 'audit.html'}`" in artifact for artifact in artifacts)
    names = [*REPORT_FILES, *AUDIT_FILES, "plots", RUN_FILE]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert len(list((folder / "plots").iterdir())) == 2
    other = {"name": "smoke-seed0", "configuration": "smoke-seed0-ppo.kl_coef=0.05"}
    with pytest.raises(NameTakenError, match="is taken: .* has the report of smoke-seed0, and"):
        announce(tracked, result, results, "smoke-seed0", other)

"""The GPU check's driver: whatever a part does, results.json is whole and the next one runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.gpu_check import driver, parts
from trimtab.models.gpu_check.driver import check, untested_versions
from trimtab.models.gpu_check.parts import PARTS, Part, with_needs
from trimtab.models.gpu_check.table import table

FAKES = "tests.models.gpu_check.fake_parts"
REQUEST: dict[str, Any] = {"minutes": 1, "parts": [], "rehearse": True, "pairs": None}


def part(name: str, least: float = 0.0, most: float = 0.5, needs: tuple[str, ...] = ()) -> Part:
    return Part(name, f"{FAKES}:{name}", least, most, needs)


def run(tmp_path: Path, *chosen: Part, minutes: float = 1) -> tuple[int, dict[str, Any]]:
    (tmp_path / "work").mkdir(parents=True)
    request = REQUEST | {"minutes": minutes}
    status = check(chosen, request, tmp_path, tmp_path / "work", time.monotonic())
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert list(tmp_path.glob("*.partial")) == []
    return status, results


def is_gone(pid: int) -> bool:
    """Whether a process has ended; it may still be a child that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_part_finds_all_before_it_in_a_whole_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, results = run(tmp_path, part("measures"), part("reads_what_was_found"))
    assert status == driver.REHEARSED
    assert [row["ok"] for row in results["parts"]] == [True, True]
    found = {v["name"]: v["value"] for v in results["parts"][1]["values"]}
    assert found == {"found before": 1234.5, "parts in the file": 1}
    assert results["card"] == "pretended card"
    assert results["is_rehearsal"]
    assert "share: 24.0 %" in (tmp_path / "log.txt").read_text()
    assert "REHEARSAL" in capsys.readouterr().out


def test_a_part_that_raises_keeps_its_values_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, results = run(tmp_path, part("raises"), part("kills_itself"), part("measures"))
    assert status == 1
    first, second, third = results["parts"]
    assert first["ok"] is False and second["ok"] is False and third["ok"] is True
    assert first["why"] == "ValueError: weights differ by 0.2"
    assert first["values"] == [{"name": "before it failed", "value": 1.0, "unit": ""}]
    assert any("in raises" in line for line in first["last"])
    assert second["why"] == "killed by SIGKILL"
    said = capsys.readouterr().out
    assert "first failure: raises: ValueError: weights differ by 0.2" in said


@pytest.mark.parametrize("name", ["hangs_with_a_child", "leaves_a_child"])
def test_nothing_outlives_a_part(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PATIENCE", 1)
    for most in (0.01, 0.1, 1.0):  # on a busy machine the child is there after its time only
        status, results = run(tmp_path / str(most), part(name, most=most), part("measures"))
        hung, then = results["parts"]
        if hung["values"]:
            break
    assert hung["values"]
    assert hung["ok"] is (name == "leaves_a_child")
    assert status == (driver.REHEARSED if hung["ok"] else 1)
    if not hung["ok"]:
        assert hung["why"].startswith("it took longer than ")
    (child,) = [v["value"] for v in hung["values"]]
    deadline = time.monotonic() + 20
    while not is_gone(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_gone(child)
    assert then["ok"] is True


def test_a_part_ends_though_a_thread_or_a_fork_of_it_does_not(tmp_path: Path) -> None:
    _, results = run(tmp_path, part("leaves_a_thread"), part("fails_beside_a_fork"))
    left, failed = results["parts"]
    assert left["ok"] is True
    assert (failed["ok"], failed["why"]) == (False, "ValueError: the real reason")


def test_what_does_not_fit_or_cannot_run_is_left_out_and_says_so(tmp_path: Path) -> None:
    status, results = run(
        tmp_path,
        part("cannot_run_here"),
        part("measures", least=2.0),
        part("reads_what_was_found", needs=("cannot_run_here",)),
        minutes=1,
    )
    assert status == driver.REHEARSED
    assert [row["ok"] for row in results["parts"]] == [None, None, None]
    reasons = [row["why"] for row in results["parts"]]
    assert reasons[0] == "it needs a library"
    assert reasons[1].startswith("it takes 120 s, and ")
    assert reasons[2] == "it needs cannot_run_here"


def test_the_command_dies_with_its_part_and_leaves_a_whole_file(tmp_path: Path) -> None:
    """SIGTERM to the command, as a scheduler sends it."""
    (tmp_path / "work").mkdir(parents=True)
    code = f"""
import signal, sys, time
from pathlib import Path
from trimtab.models.gpu_check.driver import check
from trimtab.models.gpu_check.parts import Part
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
parts = [Part(n, "{FAKES}:" + n, 0, 5) for n in ("measures", "stops_the_command")]
out = Path(sys.argv[1])
check(parts, {REQUEST!r}, out, out / "work", time.monotonic())
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 143, done.stderr
    (row,) = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert row["part"] == "measures"


def test_a_part_brings_what_it_needs() -> None:
    chosen = [each.name for each in with_needs(PARTS, ["ppo-trl"])]
    assert chosen == ["card", "material", "ppo", "ppo-trl"]
    assert with_needs(PARTS, []) == list(PARTS)


def test_parts_fit_into_ten_minutes() -> None:
    """By what each takes at least; every one stands behind what it needs."""
    assert sum(each.least for each in parts.PARTS) < 10
    seen: set[str] = set()
    for each in parts.PARTS:
        assert set(each.needs) <= seen
        seen.add(each.name)


def test_untested_versions_are_said() -> None:
    (line,) = untested_versions({"transformers": "5.17.0", "torch": "2.11.0"})
    assert line.startswith("transformers 5.17.0: tested is ")


def test_the_table_is_for_eighty_columns(tmp_path: Path) -> None:
    _, results = run(tmp_path, part("measures"), part("raises"), part("cannot_run_here"))
    results["is_rehearsal"] = False
    results["parts"][0]["values"].append(
        {
            "name": "update: kernels",
            "value": 2,
            "unit": "kinds",
            "groups": [["sm90_" + "x" * 200, 0.1234, 0.7], ["other", 1e5, 0.3]],
        }
    )
    results["parts"][0]["values"].append(
        {"name": "x", "value": 1, "unit": "", "beside": "a long remark " * 20}
    )
    results["parts"][0]["values"].append(
        {"name": "speed", "value": 2.5, "unit": "times", "target": "at least 2", "met": True}
    )
    text = table(results)
    assert max(map(len, text.splitlines())) < 80
    assert "REHEARSAL" not in text
    lines = text.splitlines()
    assert any("1,234 tokens/s" in line and "1,200 to 1,300" in line for line in lines)
    assert any("2.5 times" in line and "met: at least 2" in line for line in lines)
    assert "1 ok, 1 FAILED, 1 left out" in text
    assert os.linesep not in lines[0]

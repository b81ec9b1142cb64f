"""The section of the performance page on GPUs is made from kept results, and never by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.gpu_page import BEGIN, END, PAGE, main, with_section

RESULTS: dict[str, Any] = {
    "card": "NVIDIA H200",
    "is_rehearsal": False,
    "date": "2030-01-02",
    "versions": {"torch": "2.11.0", "transformers": "5.17.0"},
    "seconds": 571.2,
    "parts": [
        {
            "part": "reward-model",
            "ok": True,
            "seconds": 41.0,
            "values": [
                {"name": "update", "value": 204.4, "unit": "ms", "least": 203, "most": 206},
                {
                    "name": "share",
                    "value": 24,
                    "unit": "%",
                    "target": "at least 45 %",
                    "met": False,
                },
            ],
        },
        {"part": "zero", "ok": None, "seconds": 0, "values": [], "why": "it needs DeepSpeed"},
    ],
}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text(f"before\n{BEGIN}old\n{END}after\n")
    return tmp_path / "page.md"


def keep(page: Path, **changes: Any) -> None:
    results = page.parent / "results.json"
    results.write_text(json.dumps(RESULTS | changes))
    main(page, results)


def test_each_card_and_day_has_tables_of_its_own(page: Path) -> None:
    keep(page)
    keep(page, card="NVIDIA H100 80GB HBM3", date="2030-01-03")
    names = ["2030-01-02-nvidia-h200.json", "2030-01-03-nvidia-h100-80gb-hbm3.json"]
    assert sorted(path.name for path in (page.parent / "gpu").iterdir()) == names
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}### NVIDIA H100 80GB HBM3, 2030-01-03\n")
    assert text.endswith(f"{END}after\n") and "old" not in text
    first, second = text.split("### ")[1:]
    assert "H200" not in first and second.startswith("NVIDIA H200, 2030-01-02")
    assert "| update | 204 ms | 203 to 206 |" in second
    assert "| share | 24 % | MISSED: at least 45 % |" in second
    assert "**zero**: left out, as it needs DeepSpeed" in second
    before = page.read_text()
    main(page, None)
    assert page.read_text() == before


@pytest.mark.parametrize("change", [{"is_rehearsal": True}, {"card": None}])
def test_a_rehearsal_is_refused(page: Path, change: dict[str, Any]) -> None:
    before = page.read_text()
    with pytest.raises(SystemExit, match="found a rehearsal"):
        keep(page, **change)
    assert page.read_text() == before and not (page.parent / "gpu").exists()


def test_the_page_is_what_the_kept_results_make() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_section(text, PAGE.parent / "gpu") == text

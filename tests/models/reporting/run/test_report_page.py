"""The page: safe, self-contained, complete where artifacts are there and quiet where not."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pydantic import ValidationError

from trimtab.models.config.reporting import LineageEntry, ReportConfig
from trimtab.models.reporting.kit.charts import POLICY_STYLES, policy_style, smooth
from trimtab.models.reporting.kit.html import counted, percent, points, share_of, tidy
from trimtab.models.reporting.kit.names import POLICY_NAMES
from trimtab.models.reporting.run.charts import cost_chart, label_charts
from trimtab.models.reporting.run.page import MAX_CHARACTERS, clip
from trimtab.models.reporting.run.scorecard import stage_costs
from trimtab.models.stages import report
from trimtab.models.statistics.measured import Estimate
from trimtab.models.training.stage import Stage

Inputs = dict[str, Path]
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
FULL = ReportConfig(
    title=f"Run {HOSTILE}",
    recipe="smoke",
    seed=3,
    config={"seed": 3, "ppo": {"seed": 4, "note": HOSTILE}},
    lineage=(
        {
            "role": "sft",
            "stage": "sft",
            "key": "k1",
            "digest": "d1",
            "seconds": 12.5,
            "versions": {"torch": "2.13.0"},
            "parents": {"data": {"stage": "world", "key": "k0", "digest": "d0"}},
            "cached": True,
        },
        {"role": "policy_full", "stage": "ppo_max", "key": "k2", "digest": "d2", "seconds": 30.0},
    ),
    arms=("vanilla", "full"),
    rounds=(1, 2),
    has_gold=True,
)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page does not depend on how exact its intervals are."""
    for name in ("NUM_RESAMPLES", "NUM_ERROR_RESAMPLES"):
        monkeypatch.setattr(f"trimtab.models.statistics.estimates.{name}", 20)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def build(config: ReportConfig, inputs: Inputs, workdir: Path) -> tuple[str, dict[str, object]]:
    report.run(config, Stage(inputs, workdir))
    output = workdir / "output"
    json.loads((output / "summary.json").read_text())
    html = (output / "report.html").read_text(encoding="utf-8")
    return html, json.loads((output / "scorecard.json").read_text())


@pytest.mark.slow
def test_whole_page(full_inputs: Inputs, tmp_path: Path) -> None:
    """Safe and self-contained; its sections are listed; a policy has one look in all plots."""
    html, card = build(FULL, full_inputs, tmp_path)
    plots = list((tmp_path / "output" / "plots").glob("*.svg"))
    _is_safe_and_self_contained(html, plots)
    _lists_its_sections(html)
    _shows_a_policy_alike({plot.stem: plot.read_text() for plot in plots})
    assert card["seeds"] == {"seed": 3, "ppo.seed": 4, "run": 3}
    assert card["total_seconds"] == 42.5
    assert card["seconds_per_stage"] == {"sft": 12.5, "ppo_max": 30.0}


def test_an_artifact_of_several_roles_costs_its_seconds_once() -> None:
    """Vectors that three voters read; another artifact of the same stage is work of its own."""
    made = (
        ("vectors_linear", "embeddings", "k1", 83.7), ("vectors_style", "embeddings", "k1", 83.7),
        ("vectors_nearest", "embeddings", "k1", 83.7), ("states", "embeddings", "k2", 10.0),
        ("audit", "audit", "k3", 1.0),
    )  # fmt: skip
    lineage = [
        LineageEntry(role=role, stage=stage, key=key, digest="d", seconds=seconds)
        for role, stage, key, seconds in made
    ]
    costs = stage_costs(lineage)
    assert [(cost.role, cost.seconds) for cost in costs] == [
        ("vectors_linear", 83.7), ("states", 10.0), ("audit", 1.0)
    ]  # fmt: skip
    chart = cost_chart(costs)
    assert chart is not None and "95 s of work" in chart.title and "94 s" in chart.title


@pytest.mark.parametrize(
    ("mode", "unit"), [("calibrated", "log-odds"), ("in_sample", "mean score difference")]
)
def test_the_axis_of_strength_names_its_unit(mode: str, unit: str) -> None:
    rows = [{"strength_mean": at, "strength_std": 1.0, "truth": None} for at in (-1.0, 0.5, 2.0)]
    assert all(unit in chart.alt for chart in label_charts(rows, mode))


def _is_safe_and_self_contained(html: str, plots: list[Path]) -> None:
    tags = _Tags()
    tags.feed(html)
    names = {tag for tag, _ in tags.found}
    forbidden = {"script", "iframe", "link", "object", "embed", "form", "base", "img", "image"}
    assert not names & forbidden
    for tag, attributes in tags.found:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")
    identifiers = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    targets = [str(attributes["href"])[1:] for _, attributes in tags.found if "href" in attributes]
    assert set(targets) <= set(identifiers)
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert not re.search(r"https?:|@import|url\((?!#)", html)
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
    drawings = [attributes for tag, attributes in tags.found if tag == "svg"]
    assert len(plots) == len(drawings) > 10
    assert all(str(each["aria-label"]).count(" ") > 3 for each in drawings)
    for heading in (
        "What came in", "What was wrong with the labels", "What came out", "Better or not",
        "Label audit", "Training, step by step", "Win, tie, lose", "Rounds, and what promotes them",
        "Before and after", "What it cost", "Lineage",
    ):  # fmt: skip
        assert heading in html, heading


def _lists_its_sections(html: str) -> None:
    contents = html.partition('<nav id="contents"')[2].partition("</nav>")[0]
    listed = re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', contents)
    assert listed == re.findall(r'<h2 id="([\w-]+)">([^<]+) <a', html)
    assert ("ppo", "Training, step by step") in listed and len(listed) > 6
    assert html.count('<a class="up" href="#contents"') == len(listed)


def _shows_a_policy_alike(drawings: dict[str, str]) -> None:
    """Also where the run has other policies: the look is the name's, not the place's."""
    for section in ("policies_1", "rounds_1"):
        assert policy_style("full")[0].lower() in drawings[section], section
    assert len({style[:2] for style in POLICY_STYLES.values()}) == len(POLICY_STYLES)
    assert set(POLICY_NAMES) <= set(POLICY_STYLES)


@pytest.mark.slow
def test_warnings_stand_on_the_first_screen(label_inputs: Inputs, tmp_path: Path) -> None:
    path = label_inputs["relabelled"] / "train.jsonl"
    path.write_text(path.read_text().replace('"is_flipped": false', '"is_flipped": true'))
    html, card = build(ReportConfig(), label_inputs, tmp_path)
    (warning,) = card["warnings"]
    first_screen = html.partition("What came in")[0]
    assert f'<p class="warning"><b>⚠</b> {warning}</p>' in first_screen


@pytest.mark.slow
def test_what_was_read_adds_up_on_the_first_screen(label_inputs: Inputs, tmp_path: Path) -> None:
    """And the refused rows lie beside the page."""
    counts = {"read": 141, "used": 10, "quarantined": 14, "ties_dropped": 6, "over_limit": 110}
    counts["unpaired"] = 1
    account = {
        "rows": counts,
        "by_source": {
            f"{HOSTILE}.jsonl": dict.fromkeys(counts, 0),
            "b.jsonl": counts,
        },
        "quarantined_by_reason": {"not_json": 2, "too_long": 12},
        "max_pairs": 11,
        "pairs_found": 121,
        "pairs_used": 11,
        "repeated": 3,
        "contradicting": 1,
        "with_votes": 5,
        "against_votes": 2,
        "with_scores": 4,
        "against_scores": 3,
        "ignored_fields": {HOSTILE: 7},
        "ignored_files": [],
        "demonstrations": {"read": 5, "learned": 3, "held_out": 1, "quarantined": 1},
    }
    (label_inputs["preferences"] / "rows.json").write_text(json.dumps(account))
    refused = label_inputs["preferences"] / "quarantine.jsonl"
    refused.write_text('{"file": "b.jsonl", "line": 3}\n' * 15)
    html, card = build(ReportConfig(), label_inputs, tmp_path)
    first_screen = re.sub(r"\s+", " ", html.partition("<h3>Label audit")[0])
    cells = re.findall(r'<td>([^<]*).*?</td> ?<td class="n">([\d,]+)</td>', first_screen)
    assert [number for _, number in cells[:5]] == ["10", "14", "6", "110", "1"]
    for told in (
        "What was read",
        "quarantined: 12 too_long, 2 not_json",
        '<a href="quarantine.jsonl">quarantine.jsonl</a>',
        "used pairs that repeat an earlier one: 3",
        "(the same answers the other way round): 1",
        "used pairs with a label against most of people&#39;s votes: 2 of 5",
        "used pairs with a label against their own scores or margin: 3 of 4",
        "<b>⚠</b> 3 of 4 labels are against the scores of their own rows",
        "5 demonstrations read = 3 learned + 1 held out + 1 quarantined",
        "<b>⚠</b> preferences.max_pairs=11 left out 110 of 121 good pairs",
        "<b>⚠</b> 15 of 146 rows were refused",
    ):
        assert told in first_screen, told
    assert HOSTILE not in html
    assert card["data"]["rows"] == account
    summary = json.loads((tmp_path / "output" / "summary.json").read_text())
    assert summary["pairs_against_scores"] == 3
    parts = [summary[f"rows_{name}"] for name in counts]
    assert parts[0] == sum(parts[1:]) == 141
    assert (tmp_path / "output" / "quarantine.jsonl").read_text() == refused.read_text()


@pytest.mark.slow
def test_same_inputs_give_the_same_bytes(label_inputs: Inputs, tmp_path: Path) -> None:
    inputs = {role: label_inputs[role] for role in ("preferences", "member_0")}
    first, _ = build(ReportConfig(), inputs, tmp_path / "first")
    second, _ = build(ReportConfig(), inputs, tmp_path / "second")
    assert "<svg" in first
    assert first == second


@pytest.mark.slow
def test_label_audit_alone(label_inputs: Inputs, tmp_path: Path) -> None:
    """Its own page is linked; without refused rows there is no quarantine."""
    (label_inputs["preferences"] / "quarantine.jsonl").write_text("")
    html, card = build(ReportConfig(), label_inputs | {"audit": tmp_path}, tmp_path / "work")
    assert not (tmp_path / "work" / "output" / "quarantine.jsonl").exists()
    tags = _Tags()
    tags.feed(html)
    links = [str(found["href"]) for tag, found in tags.found if tag == "a"]
    assert [link for link in links if not link.startswith("#")] == ["audit.html"]
    assert card["verdict"]["answer"] == "labels only"  # type: ignore[index]
    for absent in (
        "Training, step by step", "Win, tie, lose", "Before and after", "What it cost",
        "Better or not",
    ):  # fmt: skip
        assert absent not in html


@pytest.mark.slow
def test_without_truth_nothing_is_invented(full_inputs: Inputs, tmp_path: Path) -> None:
    (full_inputs["preferences"] / "truth.jsonl").unlink()
    for role in ("eval_sft", "eval_full", "eval_round_2"):
        path = full_inputs[role] / "responses.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(r | {"gold": None}) + "\n" for r in rows))
        kept = [{k: v for k, v in row.items() if k != "gold"} for row in rows]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    for role in ("judge_full", "judge_round_2", "judge_round_2_sft"):
        path = full_inputs[role] / "judgement.json"
        verdicts = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in verdicts.items() if not k.endswith("_gold")}))
    config = FULL.model_copy(update={"has_gold": False})
    html, card = build(config, full_inputs, tmp_path)
    noise = card["label_noise"]["in_sample"]  # type: ignore[index]
    assert noise["auroc_flipped"] is None
    assert card["relabelling"]["flip_precision"] is None  # type: ignore[index]
    assert card["scorers"]["baseline"]["clean_accuracy"] is None  # type: ignore[index]
    assert card["scorers"]["baseline"]["label_accuracy"]["value"] == 0.5  # type: ignore[index]
    assert card["verdict"]["judged_by"] == "judge_score"  # type: ignore[index]
    assert "AUROC" not in html
    assert "gold" not in html.replace("gold is shown, never used", "")
    assert "nobody knows which of them are wrong" in html


@pytest.mark.slow
def test_where_all_test_pairs_are_near_ties_there_is_no_chart_of_right_labels(
    full_inputs: Inputs, tmp_path: Path
) -> None:
    """As a policy that has hardly learned makes them: its answers differ little."""
    path = full_inputs["preferences"] / "truth.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["kind"] = "ambiguous" if row["split"] == "test" else row["kind"]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    html, card = build(FULL, full_inputs, tmp_path)
    assert "Calibration error on annotators&#39; labels" in html
    assert "Calibration error on right labels" not in html
    assert card["scorers"]["relabelled"]["clean_ece_width"] is None


def test_preferences_alone(label_inputs: Inputs, tmp_path: Path) -> None:
    inputs = {"preferences": label_inputs["preferences"]}
    html, card = build(ReportConfig(), inputs, tmp_path)
    assert card["label_noise"] == {}
    assert card["scorers"] == {}
    assert "no vote was taken" in html


def test_words_and_numbers() -> None:
    assert percent(Estimate(0.5, 0.25, 0.75, 4)) == "50.0\u00a0% [25.0,\u00a075.0]"
    assert points(Estimate(-0.125, -0.25, 0.0, 8)) == "−12.5 points [−25.0,\u00a0+0.0]"
    assert percent(None) == counted(None) == "–"
    assert counted(Estimate(0.5, 0.25, 0.75, 49)) == "24.5 of 49"
    assert share_of(Estimate(0.5, 0.25, 0.75, 4)) == "2 of 4"
    assert share_of(Estimate(0.5, 0.25, 0.75, 50)) == "50.0\u00a0% [25.0,\u00a075.0] of"
    assert tidy("PPO-max, -3 to 2024-01") == "PPO-max, −3 to 2024-01"
    long = "a" * MAX_CHARACTERS + "b" * 100
    assert "[… 100 characters left out …]" in clip(long)
    assert clip("short") == "short"
    assert smooth([0.0, 3.0, 6.0], 3) == [1.5, 3.0, 4.5]


def test_config_refuses_unknown_keys() -> None:
    with pytest.raises(ValidationError, match="titel"):
        ReportConfig.model_validate({"titel": "x"})
    with pytest.raises(ValidationError, match="secondz"):
        ReportConfig.model_validate({"lineage": [{"role": "a", "secondz": 1}]})

"""Studies: what exhibits share is made once, and what no paper has is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from trimtab.flows.config.config import ConfigError, with_changes
from trimtab.flows.config.over_seeds import find_exhibits
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline.run import Run, SharedRun
from trimtab.flows.studies.steps import add_strength
from trimtab.flows.study import read_all, submit_arms
from trimtab.models.specs import StageSpec
from trimtab.models.studies.registry import EXHIBITS, Exhibit, exhibits_of

ALL = {each.slug: each for each in EXHIBITS}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the stages handed to Prefect, which makes nothing of them."""
    names: list[str] = []

    def note(_run: Run, spec: StageSpec, *_given: object, **_named: object) -> object:
        names.append(spec.name)
        return object()

    def waited(_run: Run, role: str) -> NoReturn:
        pytest.fail(f"{role} is waited for, and other seeds' runs with it")

    monkeypatch.setattr(Run, "submit", note)
    monkeypatch.setattr(Run, "result", waited)
    return names


def test_exhibits_share_their_stages(submitted: list[str]) -> None:
    config, made = recipe_named("smoke"), {}
    for slug in ("part-2-figure-1", "part-2-figure-7", "part-2-figure-9"):
        submit_arms(ALL[slug], SharedRun(config, submitted=made))
    # Two members and, for figure 7, baseline and margin; figure 9 adds the three denoised ones, and
    # the scorer that SFT's answers are measured with is the baseline again.
    assert submitted.count("strength") == 1
    assert submitted.count("reward_model") == 2 + 2 + 3
    assert submitted.count("ppo_max") == 5


def test_seeds_share_nothing(submitted: list[str]) -> None:
    config, made = recipe_named("smoke"), {}
    for seed in (2, 3):
        run = SharedRun(config.model_copy(update={"seed": seed}), submitted=made)
        submit_arms(ALL["part-2-figure-1"], run)
    assert submitted.count("strength") == 2
    assert submitted.count("reward_model") == 4


def test_a_frontier_shares_all_but_what_is_swept(submitted: list[str]) -> None:
    submit_arms(ALL["methods-frontier"], SharedRun(recipe_named("smoke")))
    for stage in ("comparisons", "strength", "advantage_model", "rehearsal"):
        assert submitted.count(stage) == 1
    # Four strengths an arm; five of PPO, three of them without a critic; ReST samples once for all
    # of its thresholds, rejection sampling twice for every K.
    counts = {
        "ppo_max": 5 * 4,
        "dpo": 4,
        "cpl": 4,
        "rest": 4,
        "rejection_sampling": 8,
        "sample_responses": 9,
    }
    assert {stage: submitted.count(stage) for stage in counts} == counts
    assert submitted.count("evaluate") == 1 + 4 * 10


def test_noise_is_told_by_the_calibrated_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run and in its exhibit: flips of the recipe are by its own vote, as ever."""
    votes: dict[str, str] = {}

    def note(_run: Run, spec: StageSpec, *_given: object, **named: Any) -> str:
        label = str(named.get("label") or spec.name)
        if spec.name == "relabel":
            votes[label] = named["strength"]
        return label

    monkeypatch.setattr(Run, "submit", note)
    config = with_changes(
        recipe_named("smoke"),
        {
            "ensemble": {"votes": ("cross_fitted",)},
            "relabel": {"noise": "posterior", "flip_below": None},
        },
    )
    add_strength(SharedRun(config))
    assert votes == {"relabel": "strength calibrated"}
    for changes in ({"ensemble": {"votes": ("cross_fitted",)}}, {}):
        add_strength(SharedRun(with_changes(recipe_named("smoke"), changes)))
        assert votes["relabel"] in ("strength cross_fitted", "strength in_sample")


def test_an_exhibit_without_a_page_leaves_the_others_theirs() -> None:
    pages = []

    def read(exhibit: Exhibit, _: object) -> str:
        if exhibit.name in ("figure-6", "figure-8"):
            raise ValueError(f"{exhibit.name} cannot be read")
        pages.append(exhibit.name)
        return "held"

    wanted: dict[Exhibit, dict[int, Run]] = {each: {} for each in exhibits_of("part-1", "all")}
    with pytest.raises(ValueError, match="figure-6 cannot be read"):
        read_all(wanted, read)
    assert pages == [each.name for each in wanted if each.name not in ("figure-6", "figure-8")]
    kept = {each: runs for each, runs in wanted.items() if each.name in pages}
    assert read_all(kept, read) == {each.slug: "held" for each in kept}


@pytest.mark.parametrize("slug", ALL)
def test_every_exhibit_can_be_submitted(submitted: list[str], slug: str) -> None:
    run = SharedRun(recipe_named("smoke"))
    submit_arms(ALL[slug], run)
    assert len(submitted) == len(set(run.submitted.values()))
    assert submitted.count("sft") <= 2  # a second one where a policy starts without SFT


def test_arms_that_need_the_synthetic_world_are_refused_elsewhere() -> None:
    run = SharedRun(recipe_named("hh-smollm2"))
    with pytest.raises(ConfigError) as error:
        submit_arms(ALL["part-1-figure-3"], run)
    assert str(error.value) == (
        "part-1-figure-3 needs the synthetic world, found the recipe hh-smollm2; allowed: smoke, "
        "default, papers"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("part-3", "figure-1", [2]),
            "unknown paper 'part-3' (did you mean 'part-2'?); known: part-1, part-2, ",
        ),
        (("part-1", "table-2", [2]), "unknown exhibit of part-1 'table-2'; known: all, figure-3, "),
        (("part-2", "figure-3", [2, 3, 2]), "seeds must differ, found 2, 3, 2"),
    ],
)
def test_mistakes_are_named(given: tuple[str, str, list[int]], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_exhibits(*given)
    assert str(error.value).startswith(message)

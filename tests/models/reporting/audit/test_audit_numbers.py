"""What the audit knows of each pair and says on its first screen, against conftest's table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.config.reporting import AuditConfig
from trimtab.models.data.words import UNKNOWN_TOKENS
from trimtab.models.reporting.audit.page import write_page
from trimtab.models.reporting.audit.pairs import AuditedPair, audited_pairs
from trimtab.models.reporting.audit.summary import Group, summarise, unseen_by
from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.reporting.kit.audit_words import (
    really_wrong,
    reliability,
    voters_warnings,
)

Inputs = dict[str, Path]


def test_every_pair_with_its_votes(pairs: list[AuditedPair]) -> None:
    assert [pair.id for pair in pairs] == ["t0", "t1", "t2", "t3", "v0", "e0"]
    assert [pair.strength_mean for pair in pairs] == [-2.0, -0.5, 3.0, 1.0, -0.5, 0.0]
    assert [pair.differences for pair in pairs[:2]] == [(-1.0, -3.0), (1.0, -2.0)]
    assert [pair.looks_wrong for pair in pairs] == [True, True, False, False, True, False]
    # A vote of 0 is on neither side.
    assert [pair.is_disputed for pair in pairs] == [False, True, False, True, False, False]
    assert [pair.is_flipped for pair in pairs] == [True, False, False, False, False, False]
    assert [pair.is_smoothed for pair in pairs] == [False, True, False, False, False, False]
    held_out = pairs[4]
    assert (held_out.label, held_out.margin, held_out.weight) == (1.0, 0.0, 1.0)


def test_a_label_that_came_soft_was_not_smoothed_by_relabelling(
    inputs: Inputs, edit: Callable[..., None]
) -> None:
    """A judge's labels of .8: t2's left alone, t3's smoothed by .1 to .9 * .8 + .1 * .2."""
    edit(inputs["preferences"] / "train.jsonl", t2={"label": 0.8}, t3={"label": 0.8})
    edit(inputs["relabelled"] / "train.jsonl", t2={"label": 0.8}, t3={"label": 0.74})
    pairs = audited_pairs(Artifacts(inputs))
    assert [pair.label_given for pair in pairs] == [1.0, 1.0, 0.8, 0.8, 1.0, 1.0]
    assert [pair.is_smoothed for pair in pairs] == [False, True, False, True, False, False]


def test_first_screen_by_hand(pairs: list[AuditedPair]) -> None:
    summary = summarise(pairs)
    overall = summary.overall
    assert (overall.num_pairs, overall.num_looks_wrong) == (6, 3)
    assert (overall.num_disputed, overall.num_flipped) == (2, 1)
    # Look wrong: t0, t1, v0, of which t0 and v0 are. Wrong: t0, t3, v0, of which t0 and v0 look so.
    assert overall.precision is not None and overall.recall is not None
    assert overall.precision.value == pytest.approx(2 / 3)
    assert overall.recall.value == pytest.approx(2 / 3)
    assert (summary.num_members, summary.has_truth, summary.is_in_sample) == (2, True, True)

    def counts(groups: list[Group]) -> list[tuple[str, int, int]]:
        return [(group.name, group.num_pairs, group.num_looks_wrong) for group in groups]

    assert counts(summary.by_split) == [("train", 4, 2), ("validation", 1, 1), ("test", 1, 0)]
    # Two of three, one of two, none of one.
    assert counts(summary.by_category) == [("a", 3, 2), ("b", 2, 1), ("no category", 1, 0)]
    assert summary.by_category[2].precision is None  # nothing of it looks wrong
    assert summary.numbers() == {
        "num_pairs": 6,
        "num_looks_wrong": 3,
        "num_disputed": 2,
        "num_flipped": 1,
        "num_unsupported_flips": 0,
        "num_reviewed": 0,
        "num_dropped": 0,
        "num_weighted": 0,
        "num_smoothed": 1,
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
    }


def test_a_flip_that_no_member_supports_is_counted(pairs: list[AuditedPair]) -> None:
    """t2's members say +2 and +4, e0's say 0 and 0; of t1's two members one is for the flip."""
    flips = [replace(pair, is_flipped=True) for pair in pairs]
    assert [pair.id for pair in flips if pair.is_flip_unsupported] == ["t2", "e0"]
    assert not any(pair.is_flip_unsupported for pair in pairs)
    # Who has no vote supports nothing, and who asked for a flip needs nobody's.
    assert replace(flips[0], differences=(None, 1.0)).is_flip_unsupported
    assert not replace(flips[2], review="flip").is_flip_unsupported
    assert replace(flips[2], review="unsure").is_flip_unsupported
    numbers = summarise(flips).numbers()
    assert (numbers["num_flipped"], numbers["num_unsupported_flips"]) == (6, 2)


def test_without_truth_no_precision_is_claimed(inputs: Inputs) -> None:
    (inputs["preferences"] / "truth.jsonl").unlink()
    summary = summarise(audited_pairs(Artifacts(inputs)))
    assert not summary.has_truth
    for group in (summary.overall, *summary.by_split, *summary.by_category):
        assert group.precision is None and group.recall is None
    assert "precision" not in summary.numbers()


def test_members_have_no_vote_on_what_they_were_trained_on(
    inputs: Inputs, edit: Callable[..., None]
) -> None:
    """Cross-fitted on t0 and t1 against t2 and t3: each has one vote, held-out pairs have two."""
    for member, unseen in ((0, ("t2", "t3")), (1, ("t0", "t1"))):
        seen = {name: {"was_trained_on": False} for name in unseen}
        edit(inputs[f"member_{member}"] / "scores.jsonl", **seen)
    means = {"t0": -3.0, "t1": -2.0, "t2": 2.0, "t3": -1.0}
    votes = {
        name: {"strength_mean": mean, "strength_std": 0.0, "num_members": 1}
        for name, mean in means.items()
    }
    edit(inputs["strength"] / "strength.jsonl", **votes)
    pairs = audited_pairs(Artifacts(inputs))
    assert [pair.differences for pair in pairs] == [
        (None, -3.0), (None, -2.0), (2.0, None), (-1.0, None), (-0.5, -0.5), (0.0, 0.0),
    ]  # fmt: skip
    assert not any(pair.is_disputed for pair in pairs)
    assert not summarise(pairs).is_in_sample


def test_one_pair(pairs: list[AuditedPair]) -> None:
    summary = summarise(pairs[:1])
    assert [group.name for group in summary.by_split] == ["train"]
    assert summary.overall.precision is not None
    assert summary.overall.precision.value == 1.0
    nothing_wrong = summarise([replace(pairs[2], truth=None)])
    assert (nothing_wrong.overall.num_looks_wrong, nothing_wrong.overall.precision) == (0, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_strength_that_is_no_number_is_refused(
    inputs: Inputs, edit: Callable[..., None], value: float
) -> None:
    edit(inputs["strength"] / "strength.jsonl", t2={"strength_mean": value})
    with pytest.raises(ReportInputError, match="strength: pair 't2' has mean .*, allowed: finite"):
        audited_pairs(Artifacts(inputs))


@pytest.mark.parametrize(
    ("role", "name"), [("member_1", "scores"), ("strength", "strength"), ("relabelled", "train")]
)
def test_artifacts_of_other_pairs_are_refused(
    inputs: Inputs, edit: Callable[..., None], role: str, name: str
) -> None:
    edit(inputs[role] / f"{name}.jsonl", t1={"id": "other"})
    with pytest.raises(ReportInputError, match=f"{role} has . pairs, others or in another order"):
        audited_pairs(Artifacts(inputs))


def test_self_test_by_hand(pairs: list[AuditedPair]) -> None:
    """Of the planted flips t0, t1, t2 two are contradicted, of the one left alone none is."""
    strengths = {"t0": -3.0, "t1": 1.0, "t2": -1.0, "t3": 2.0}
    rows = [
        {"id": name, "split": "train", "strength_mean": mean, "is_planted": name != "t3"}
        for name, mean in strengths.items()
    ]
    voters = ("style", "embedding_linear")
    summary = summarise(pairs, voters, rows)
    test = summary.self_test
    assert test is not None
    assert (test.overall.num_planted, test.overall.recall.value) == (3, pytest.approx(2 / 3))
    assert test.others_flagged.value == 0
    # Of three and of one pair the intervals overlap.
    assert test.max_share_wrong is None and "self_test_max_share_wrong" not in summary.numbers()
    assert test.precision_at_k.value == 1  # t0, t2, t1 are the weakest three
    assert [(each.name, each.num_planted) for each in test.by_category] == [("b", 1), ("a", 2)]
    assert summary.voters == ("how an answer is written", "linear on sentence embeddings")
    assert not summary.is_in_sample
    # t1's second member is against it, t0's too, v0's too: none looks wrong by style alone.
    assert summary.num_by_style == 0
    assert summarise(pairs, ("embedding_linear", "style"), rows).num_by_style == 1  # t1
    numbers = summary.numbers()
    assert numbers["self_test_recall"] == pytest.approx(2 / 3)
    assert numbers["num_by_style"] == 0
    assert "self_test_recall" not in summarise(pairs).numbers()
    # At the ends of the intervals that make it largest: w = .2 / (.2 + .6).
    wide = replace(test.overall, recall=replace(test.overall.recall, low=0.6))
    more = replace(test, overall=wide, others_flagged=replace(test.others_flagged, high=0.2))
    assert more.max_share_wrong == pytest.approx(0.25)
    assert (
        summarise(pairs, voters, [{**row, "is_planted": False} for row in rows]).self_test is None
    )


def test_how_many_are_really_wrong_is_said_where_the_self_test_tells(
    pairs: list[AuditedPair],
) -> None:
    """30 labels of 300 are contradicted by 5, the others are for the label by 5 or, half of them,
    by 50: the vote does not err, so that 30 are wrong."""
    strengths = [-5.0] * 15 + [-50.0] * 15 + [5.0] * 135 + [50.0] * 135
    known = [
        replace(pairs[2], id=f"{n}", prompt=f"{n}", strength_mean=mean, split="train")
        for n, mean in enumerate(strengths)
    ]
    told = [
        {"id": pair.id, "is_planted": n % 5 == 0, "strength_mean": -1.0 if n % 5 == 0 else 1.0}
        for n, pair in enumerate(known)
    ]
    summary = summarise(known, ("embedding_linear",), told)
    numbers = summary.numbers()
    assert numbers["can_be_believed"] is True
    assert numbers["num_really_wrong"] == pytest.approx(30, abs=1.5)
    said = really_wrong(numbers, 30)
    assert re.fullmatch(
        r"About (29|30) of these 30 are really wrong \(95 % interval 2\d to 30, "
        r"if close pairs are labelled as well as clear ones\); "
        r"look at the first 24\.", said
    ), said  # fmt: skip
    assert reliability(numbers)[0] == said
    # A self-test that cannot tell planted flips from the others.
    blind = summarise(known, ("embedding_linear",), [{**row, "strength_mean": 1} for row in told])
    assert blind.numbers()["can_be_believed"] is False
    assert really_wrong(blind.numbers(), 30) == "" and really_wrong(numbers, 0) == ""
    none = {
        **numbers,
        "num_really_wrong": 0.2,
        "num_really_wrong_low": 0,
        "num_to_look_at_first": 9,
    }
    assert really_wrong(none, 9).startswith("Perhaps none of these 9 is really wrong")


@pytest.mark.parametrize(
    ("against", "votes", "num_external", "said"),
    [
        (89, 100, 1, "mine: on 89 % of 100 pairs"),
        (100, 100, 1, "mine: on 100 % of 100 pairs"),
        (55, 100, 1, None),  # not surely below chance
        (4, 5, 1, None),
        (11, 100, 1, None),
        (89, 100, 0, None),  # learned from the labels: no signs of the user's
    ],
)
def test_a_voter_that_contradicts_most_labels_is_said_to_be_reversed(
    pairs: list[AuditedPair], against: int, votes: int, num_external: int, said: str | None
) -> None:
    def voted(number: int) -> tuple[float | None, ...]:
        own = None if number >= votes else -1.0 if number < against else 2.0
        return (1.0, own)

    known = [replace(pairs[2], id=f"{n}", prompt=f"{n}", differences=voted(n)) for n in range(120)]
    summary = summarise(known, ("embedding_linear", "mine"), num_external=num_external)
    assert summary.reversed == (() if said is None else (said,))
    warnings = voters_warnings(summary.numbers())
    assert len(warnings) == (said is not None)
    assert all("are its signs reversed?" in each for each in warnings)


def test_an_encoder_that_cannot_read_the_answers_is_said(
    pairs: list[AuditedPair], tmp_path: Path
) -> None:
    voters = ("embedding_linear", "style")
    summaries: list[dict[str, Any]] = [{UNKNOWN_TOKENS: 0.04}, {}]
    known = summarise(pairs, voters, unseen=unseen_by(voters, summaries))
    assert voters_warnings(known.numbers()) == []
    summaries = [{UNKNOWN_TOKENS: 0.61}, {}, {"num_cut": 61, "num_answers": 200}]
    unseen = unseen_by((*voters, "reward model rm"), summaries)
    unknown = summarise(pairs, voters, unseen=unseen)
    said, cut = voters_warnings(unknown.numbers())
    assert "only a part" in cut and "(reward model rm: 30 % of the answers)" in cut
    assert "does not know 61 % of the answers' tokens" in said and "--encoder" in said
    write_page(tmp_path / "audit.html", AuditConfig(voters=("a", "b")), unknown, pairs)
    assert "does not know 61 %" in (tmp_path / "audit.html").read_text()


def _by_length(
    pair: AuditedPair, count: int, more: int, contradicted: int, others: tuple[int, int] = (0, 0)
) -> list[tuple[AuditedPair, dict[str, Any]]]:
    """Pairs whose label is for the answer that has so many words more (fewer, below 0), and their
    rows: `count` planted flips, of which some are contradicted, and of others."""
    answers = ["one", " ".join(["one"] * (1 + abs(more)))]
    found = []
    for is_planted, number, flagged in ((True, count, contradicted), (False, *others)):
        # As they came: what is flipped was for the other answer.
        better, worse = answers if (more < 0) != is_planted else answers[::-1]
        for index in range(number):
            name = f"{more} {is_planted} {index}"
            own = replace(pair, id=name, prompt=name, chosen=better, rejected=worse)
            strength = -1.0 if index < flagged else 1.0
            found.append((own, {"id": name, "strength_mean": strength, "is_planted": is_planted}))
    return found


def test_self_test_by_length_by_hand(pairs: list[AuditedPair], tmp_path: Path) -> None:
    """A vote for longer answers: it finds all labels for the shorter one, none of the others."""
    first = pairs[0]
    voted = [
        *_by_length(first, 20, +1, 0, others=(40, 0)),
        *_by_length(first, 30, +5, 3, others=(10, 0)),
        *_by_length(first, 25, -6, 25, others=(20, 20)),
        *_by_length(first, 4, 0, 0),  # too few for a row
    ]
    summary = summarise([pair for pair, _ in voted], ("style",), [row for _, row in voted])
    test = summary.self_test
    assert test is not None and test.others_flagged.value == pytest.approx(20 / 70)
    found = {each.name: each for each in test.by_label}
    assert list(found) == ["the longer answer", "the shorter answer"]
    longer, shorter = found.values()
    assert (longer.num_planted, longer.recall.value) == (50, pytest.approx(3 / 50))
    assert (shorter.num_planted, shorter.recall.value) == (25, 1.0)
    assert shorter.recall.low == pytest.approx(0.867, abs=5e-4)  # Wilson, 25 of 25
    assert longer.others is not None and shorter.others is not None
    assert (longer.others.value, shorter.others.value) == (0.0, 1.0)
    # Words by which the 79 planted flips differ: 0 (4), 1 (20), 5 (30), 6 (25). The 27th is
    # 5, and so is the 53rd: nothing would be left between them.
    assert test.by_difference == []
    numbers = summary.numbers()
    assert numbers["self_test_for_longer_recall"] == pytest.approx(3 / 50)
    assert numbers["self_test_for_shorter_num_planted"] == 25
    assert numbers["self_test_for_shorter_others_flagged"] == 1.0
    assert "self_test_for_equal_recall" not in numbers
    assert any(
        "for the longer answer it contradicts 6.0 %" in line for line in reliability(numbers)
    )
    write_page(tmp_path / "a.html", AuditConfig(voters=("style",)), summary, [voted[0][0]])
    page = re.sub(r"<[^>]*>|\s", "|", (tmp_path / "a.html").read_text("utf-8"))
    row = ("the", "shorter", "answer", "25", "100.0", "%", "[86.7,", "100.0]", "100.0", "%")
    assert re.search(r"[|]+".join(map(re.escape, row)), page)


def test_self_test_by_thirds_of_the_difference_by_hand(pairs: list[AuditedPair]) -> None:
    voted = [
        *_by_length(pairs[0], 25, +2, 5, others=(10, 1)),
        *_by_length(pairs[0], 25, -4, 10, others=(10, 0)),
        *_by_length(pairs[0], 25, +9, 20, others=(10, 5)),
    ]
    summary = summarise([pair for pair, _ in voted], ("style",), [row for _, row in voted])
    test = summary.self_test
    assert test is not None
    assert [(each.name, each.recall.value) for each in test.by_difference] == [
        ("up to 2", 0.2), ("3 to 4", 0.4), ("5 or more", 0.8)
    ]  # fmt: skip
    assert [each.others.value for each in test.by_difference if each.others] == [0.1, 0.0, 0.5]
    assert summary.numbers()["self_test_difference_3_recall"] == pytest.approx(0.8)


@pytest.mark.parametrize(("longer", "shorter"), [(19, 40), (40, 19), (40, 0)])
def test_few_labels_are_not_told_by_length(
    pairs: list[AuditedPair], longer: int, shorter: int
) -> None:
    voted = [
        *_by_length(pairs[0], longer, 3, 1, others=(9, 0)),
        *_by_length(pairs[0], shorter, -3, 1),
    ]
    summary = summarise([pair for pair, _ in voted], ("style",), [row for _, row in voted])
    assert summary.self_test is not None and summary.self_test.by_label == []
    assert not any("longer" in line for line in reliability(summary.numbers()))


def test_votes_that_know_nothing_are_said_to(pairs: list[AuditedPair]) -> None:
    zero = [replace(pair, strength_mean=0.0) for pair in pairs]
    assert summarise(zero, ("style",)).numbers()["is_uninformative"] is True
    assert summarise(pairs, ("style",)).numbers()["is_uninformative"] is False
    assert "is_uninformative" not in summarise(zero).numbers()


def test_the_lowest_accuracy_is_of_who_shares_a_pair(pairs: list[AuditedPair]) -> None:
    """Two always agree on three pairs, and so are above the prior of 2/3, which is zed's."""
    opinions = {
        "t0": ("ann", "bob"), "t1": ("ann", "bob"), "t2": ("ann", "bob"), "t3": ("zed",)
    }  # fmt: skip
    labelled = [
        replace(
            pair,
            opinions=tuple(
                {"annotator": who, "prefers": "chosen"} for who in opinions.get(pair.id, ())
            ),
        )
        for pair in pairs
    ]
    found = summarise(labelled).annotators
    assert found is not None
    assert [one.name for one in found.people] == ["ann", "bob", "zed"]
    assert found.people[2].accuracy == pytest.approx(2 / 3)
    lowest = found.numbers()["lowest_annotator_accuracy"]
    assert lowest == found.people[0].accuracy > 0.75


def test_annotators_by_hand(pairs: list[AuditedPair], tmp_path: Path) -> None:
    """Two rows are of one pair, labelled the one and the other way round."""
    said = {
        "t0": [("ann", "chosen"), ("<b>bob", "rejected")],  # the models contradict the label
        "t1": [("ann", "equal")],  # contradicted, too
        "t2": [("cy", "chosen"), ("ann", "chosen")],
    }
    texts = {name: getattr(pairs[2], name) for name in ("prompt", "chosen", "rejected")}
    labelled = [
        replace(
            pair,
            opinions=tuple(
                {"annotator": who, "prefers": what} for who, what in said.get(pair.id, [])
            ),
        )
        for pair in pairs
    ]
    swapped = replace(
        pairs[3],
        prompt=texts["prompt"],
        chosen=texts["rejected"],
        rejected=texts["chosen"],
        strength_mean=-3.0,
        opinions=({"annotator": "dee", "prefers": "chosen"},),
    )
    labelled[3] = swapped
    found = summarise(labelled).annotators
    assert found is not None
    assert (found.num_pairs, found.num_shared, len(found.people)) == (3, 2, 4)
    # Of five votes in two items: "chosen" against "rejected", and two against one. Both answers
    # are equally frequent: observed 2 + 2, expected 2 * 2.5 * 2.5 / 4.
    assert found.alpha == pytest.approx(1 - 4 / 3.125)
    by_name = {one.name: one for one in found.people}
    ann = by_name["ann"]
    assert (ann.num_votes, ann.num_shared, ann.num_decided, ann.num_contradicted) == (3, 2, 2, 1)
    assert (by_name["dee"].num_decided, by_name["dee"].num_contradicted) == (1, 1)
    assert by_name["<b>bob"].num_contradicted == 0
    assert found.people[0].name == "dee" and by_name["cy"].accuracy > 0.6
    numbers = summarise(labelled).numbers()
    assert numbers["num_annotators"] == 4
    assert numbers["krippendorff_alpha"] == found.alpha
    assert numbers["lowest_annotator_accuracy"] == by_name["dee"].accuracy
    path = tmp_path / "audit.html"
    write_page(path, AuditConfig(), summarise(labelled), labelled)
    page = path.read_text()
    assert "Annotators, lowest accuracy first" in page and "&lt;b&gt;bob" in page
    assert summarise(pairs).annotators is None

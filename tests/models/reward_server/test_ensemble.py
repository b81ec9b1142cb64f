"""Scores of texts as trainers leave them; several scorers, whatever else is in the batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.training.test_external_scorer import ASKED, HH, save_scorer
from trimtab.models.reporting.export import export_scorer
from trimtab.models.reward_server.ensemble import Ensemble, Member
from trimtab.models.reward_server.formats import RequestError
from trimtab.models.training.external_scorer import Dialogue, ExternalScorer

MESSAGES = (("user", "Hi"), ("assistant", "Ho"))
KNOWN = {"mean": 0.5, "std": 1.0, "count": 4, "preferences": "sha"}


def save_members(folder: Path, *known: dict[str, Any]) -> list[str]:
    """Exported scorers with other heads, and what they scored on known answers."""
    names = []
    for number, each in enumerate(known):
        model = save_scorer(folder / f"member_{number}")
        export_scorer(model, each)
        scorer = ExternalScorer.load(str(model)).model
        with torch.no_grad():
            scorer.score.weight.copy_(scorer.score.weight.roll(number) * (1 + number))
        scorer.save_pretrained(model)
        names.append(str(model))
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of somebody else's whose padding is its end token, and the same with other padding;
    and as Trimtab exports it."""
    folder = tmp_path_factory.mktemp("scorers")
    save_scorer(folder / "theirs")
    save_scorer(folder / "padded")
    settings = json.loads((folder / "padded/tokenizer_config.json").read_text())
    settings["pad_token"] = "<|im_start|>"
    (folder / "padded/tokenizer_config.json").write_text(json.dumps(settings))
    save_scorer(folder / "ours")
    export_scorer(folder / "ours")
    return folder


END, PAD = "<|im_end|>", "<|im_start|>"
TEMPLATED = f"{PAD}user\nHi{END}\n{PAD}assistant\n"


@pytest.mark.parametrize(
    ("name", "given", "cleaned"),
    [
        # A whole text keeps one end token, and what its template writes behind it.
        ("theirs", f"Ho{END}", f"Ho{END}"),
        ("theirs", f"Ho{END}\n", f"Ho{END}\n"),
        ("theirs", f"Ho{END}\n{END}{END}", f"Ho{END}\n"),
        ("theirs", "Ho\n", "Ho\n"),
        ("padded", f"Ho{PAD}{PAD}", "Ho"),
        ("padded", f"Ho{END}\n{PAD} {PAD}", f"Ho{END}\n"),
        ("padded", f"Ho{PAD}i", f"Ho{PAD}i"),
        # Trimtab's scorers put it there themselves.
        ("ours", f"Ho{END}{END}", "Ho"),
        ("ours", f"Ho {END}\n", "Ho "),
        # So do templates behind an answer.
        ("theirs", ("Hi", f" Ho{END}\n{END}"), ("Hi", " Ho")),
        ("padded", (*MESSAGES[:1], ("assistant", f"Ho{END}{PAD}")), MESSAGES),
        ("theirs", ("Hi", END), ("Hi", "")),
        ("theirs", (f"Hi{END}", "Ho </s>"), f"Hi{END}Ho "),
        # A prompt that a template has written is no question to put into it again.
        ("theirs", (TEMPLATED, "Ho"), f"{TEMPLATED}Ho"),
        ("theirs", (TEMPLATED, f"Ho{END}{END}"), f"{TEMPLATED}Ho{END}"),
        ("ours", (TEMPLATED, f"Ho{END}{END}"), (TEMPLATED, "Ho")),
        # What a policy's tokenizer leaves.
        ("ours", ("Hi", " Ho</s><pad><pad>"), ("Hi", " Ho")),
        ("theirs", "Ho</s></s>", "Ho"),
    ],
)
def test_what_a_trainer_leaves_behind_a_text_is_taken_off(
    name: str, given: Dialogue, cleaned: Dialogue, folder: Path
) -> None:
    member = Member(ExternalScorer.load(str(folder / name)), ("</s>", "<pad>"))
    assert member.clean(given) == cleaned


def test_a_text_of_endings_alone_takes_no_longer(folder: Path) -> None:
    """Each is looked at once: a million of them behind another would else take minutes."""
    member = Member(ExternalScorer.load(str(folder / "theirs")))
    assert member.clean(f"Ho{END * 200_000}") == f"Ho{END}"
    assert member.clean(f"{END * 200_000}Ho") == f"{END * 200_000}Ho"


@pytest.mark.parametrize("name", ["theirs", "ours"])
def test_one_scorer_s_score_is_its_own(name: str, folder: Path) -> None:
    scorer = ExternalScorer.load(str(folder / name))
    dialogues = [*ASKED, "Whole.", MESSAGES]
    ensemble = Ensemble.load([str(folder / name)], std_coef=1.0)
    found = ensemble.score([ensemble.read(each) for each in dialogues])
    expected = scorer.score(dialogues)
    for dialogue, scored in zip(dialogues, found, strict=True):
        assert scored.score == pytest.approx(expected[dialogue], abs=1e-5)
        assert scored.spread == 0.0
        assert scored.num_tokens == len(scorer.encode(dialogue)["input_ids"])


def test_a_score_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Each text alone, in a batch of all, in one with others: float32 rounds sums of other lengths
    differently, by some 1e-7 of scores of about 1."""
    known = [KNOWN, {**KNOWN, "mean": -0.25}, {**KNOWN, "mean": 2.0}]
    folders = save_members(tmp_path, *known)
    ensemble = Ensemble.load(folders, std_coef=0.7)
    texts = [ensemble.read(each) for each in (*ASKED, ("Hi", " word" * 60))]
    alone = [ensemble.score([text])[0] for text in texts]
    together, reverse = ensemble.score(texts), ensemble.score(texts[::-1])[::-1]
    for one, two, three in zip(alone, together, reverse, strict=True):
        assert one[:2] == pytest.approx(two[:2], abs=1e-5)
        assert one[:2] == pytest.approx(three[:2], abs=1e-5)
    # By the formula: the mean of three scores less 0.7 of their spread about their means.
    scorers = [ExternalScorer.load(folder) for folder in folders]
    for dialogue, scored in zip(ASKED, together, strict=False):
        values = [scorer.score([dialogue])[dialogue] for scorer in scorers]
        centred = [value - each["mean"] for value, each in zip(values, known, strict=True)]
        middle = sum(centred) / 3
        spread = (sum((value - middle) ** 2 for value in centred) / 3) ** 0.5
        assert scored.spread == pytest.approx(spread, abs=1e-5) and spread > 0.1
        assert scored.score == pytest.approx(sum(values) / 3 - 0.7 * spread, abs=1e-5)


def test_members_are_measured_on_a_file_of_answers(tmp_path: Path, folder: Path) -> None:
    folders = [*save_members(tmp_path, {}, {}), str(folder / "theirs")]
    answers = tmp_path / "answers.jsonl"
    lines = ["Whole.", [dict(zip(("role", "content"), each, strict=True)) for each in MESSAGES]]
    lines += [{"prompt": ASKED[0][0], "response": ASKED[0][1]}]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ensemble = Ensemble.load(folders, 1.0, answers=answers)
    asked: list[Dialogue] = ["Whole.", MESSAGES, ASKED[0]]
    for name, mean in zip(folders, ensemble.means.tolist(), strict=True):
        scores = ExternalScorer.load(name).score(asked)
        assert mean == pytest.approx(sum(scores.values()) / 3, abs=1e-5)
    for text, said in (
        ("", "found no line"),
        ("{", "line 1: Expecting"),
        ('"a"\n3', "line 2: found int 3; allowed: a text"),
    ):
        answers.write_text(text)
        with pytest.raises(ValueError, match=rf"answers\.jsonl: {said}"):
            Ensemble.load(folders, 1.0, answers=answers)


def test_scorers_that_were_not_measured_alike_are_refused(tmp_path: Path, folder: Path) -> None:
    one, other = save_members(tmp_path, KNOWN, {**KNOWN, "preferences": "another"})
    with pytest.raises(ValueError, match="over the answers of different pairs; allowed"):
        Ensemble.load([one, other], 1.0)
    with pytest.raises(
        ValueError, match=r"theirs: found no mean score over known answers.*answers"
    ):
        Ensemble.load([one, str(folder / "theirs")], 1.0)
    assert Ensemble.load([one], 1.0).means.tolist() == [0.0]


def test_what_the_template_refuses_is_said(tmp_path: Path) -> None:
    model = save_scorer(tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ raise_exception('no turns') }}")
    ensemble = Ensemble.load([str(model)], 1.0)
    with pytest.raises(RequestError, match="chat template refuses the messages: no turns"):
        ensemble.read(MESSAGES)
    shutil.rmtree(model)
    blank = save_scorer(model, template=False)
    assert Ensemble.load([str(blank)], 1.0).read(("Hi", "")).num_tokens == 3


def test_too_long_texts_are_counted(folder: Path) -> None:
    ensemble = Ensemble.load([str(folder / "ours")], 1.0)
    assert ensemble.read((HH.format("long " * 200), " Yes")).num_tokens == 512
    assert ensemble.num_cut == 1

"""A label audit's numbers (`Summary.numbers`) as sentences: for reports, cards and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.models.data.words import UNKNOWN_TOKENS

OF_A_JUDGE = re.compile(r"judge_(.+)_num_judged")
# Share of unknown tokens from which a sentence encoder is said not to read a text.
MOST_UNKNOWN = 0.05
MULTILINGUAL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
# A person's verdicts, each with what became of the label.
VERDICT_WORDS = {"keep": "kept", "flip": "flipped", "drop": "dropped", "unsure": "unsure"}


def finding(audit: Mapping[str, Any]) -> str:
    """How many labels look wrong."""
    wrong, count = int(audit["num_looks_wrong"]), int(audit["num_pairs"])
    if audit.get("is_uninformative"):
        return (
            f"Which of the {count:,} labels are wrong cannot be told: no model that votes is "
            "better than chance on pairs that it was not trained on."
        )
    return f"{wrong:,} of {count:,} labels look wrong ({100 * wrong / count:.1f} %)."


def really_wrong(audit: Mapping[str, Any], count: float) -> str:
    """How many of `count` labels that look wrong are, and which to look at first; empty where
    nothing looks wrong, or the audit cannot tell."""
    if not count or "num_really_wrong" not in audit:
        return ""
    value = round(audit["num_really_wrong"])
    low, high = math.floor(audit["num_really_wrong_low"]), math.ceil(audit["num_really_wrong_high"])
    about = f"About {value:,}" if value else "Perhaps none"
    first = int(audit["num_to_look_at_first"])
    look = f"; look at the first {first:,}" if first < count else ""
    return (
        f"{about} of these {int(count):,} {'is' if value < 2 else 'are'} really wrong "
        f"(95 % interval {low:,} to {high:,}, if close pairs are labelled as well as clear "
        f"ones){look}."
    )


def voters_warnings(audit: Mapping[str, Any]) -> list[str]:
    """Voters that do not vote as they should: reversed ones, and those that do not see all."""
    warnings = []
    if reverse := audit.get("reversed_voters"):
        warnings.append(
            f"A voter prefers the answer labelled worse ({reverse}): are its signs reversed? Or "
            "the labels of the file?"
        )
    if (unknown := audit.get(UNKNOWN_TOKENS, 0.0)) >= MOST_UNKNOWN:
        warnings.append(
            f"The sentence encoder does not know {100 * unknown:.0f} % of the answers' tokens: it "
            f"can hardly read them. Name one of their language, such as --encoder {MULTILINGUAL}."
        )
    if cut := audit.get("voters_that_cut"):
        warnings.append(f"A voter read only a part of what is longer than it takes ({cut}).")
    return warnings


def reliability(audit: Mapping[str, Any]) -> list[str]:
    """How far to believe a vote of embedding models."""
    details = voters_warnings(audit)
    details += list(filter(None, [really_wrong(audit, audit["num_looks_wrong"])]))
    if audit.get("num_by_style"):
        details.append(
            f"{int(audit['num_by_style']):,} of these look wrong only to the model that sees "
            "nothing but how an answer is written, its length for instance."
        )
    if "self_test_recall" not in audit:
        return [*details, "There was no self-test, or there were too few pairs for one."]
    details.append(
        f"Self-test: of {int(audit['self_test_num_planted']):,} labels turned round on purpose in "
        f"a copy it contradicts {_share(audit, 'self_test')}, and "
        f"{100 * audit['self_test_others_flagged']:.1f} % of the others; of as many weakest pairs "
        f"{100 * audit['self_test_precision_at_k']:.1f} % are of these."
    )
    if "self_test_for_longer_recall" in audit:
        details.append(
            "By length: of those that are then for the longer answer it contradicts "
            f"{_share(audit, 'self_test_for_longer')}, of those for the shorter one "
            f"{_share(audit, 'self_test_for_shorter')}."
        )
    if "self_test_max_share_wrong" not in audit:
        details.append(
            "The two shares cannot be told apart: do not believe what looks wrong here, and do not "
            "take the rest for right."
        )
    return details


def _share(audit: Mapping[str, Any], group: str) -> str:
    """Of a group of planted flips those that are contradicted, with the interval."""
    recall, low, high = (100 * audit[f"{group}_recall{end}"] for end in ("", "_low", "_high"))
    return f"{recall:.1f} % [{low:.1f}, {high:.1f}]"


def agreement(audit: Mapping[str, Any]) -> list[str]:
    """How far those who say which answer is better agree, people and judges; nothing where there
    are none."""
    return [*_describe_people(audit), *_describe_judges(audit)]


def _describe_people(audit: Mapping[str, Any]) -> Iterator[str]:
    if "num_annotators" not in audit:
        return
    several = int(audit["num_pairs_of_several_annotators"])
    start = (
        f"{int(audit['num_annotators']):,} annotators labelled "
        f"{int(audit['num_annotated_pairs']):,} different pairs"
    )
    if not several:
        yield f"{start}, each pair one of them: how far they agree is not known."
        return
    alpha = audit.get("krippendorff_alpha")
    agree = "" if alpha is None else f" Krippendorff's alpha is {alpha:.2f}."
    yield (
        f"{start}, {several:,} of them by several.{agree} The lowest accuracy of an annotator by "
        f"Dawid-Skene is {100 * audit['lowest_annotator_accuracy']:.1f} %."
    )


def _describe_judges(audit: Mapping[str, Any]) -> Iterator[str]:
    names = [match[1] for key in audit if (match := OF_A_JUDGE.fullmatch(key))]
    for name in names:
        votes, pairs = (int(audit[f"judge_{name}_num_{of}"]) for of in ("votes", "judged"))
        sentence = f"Judge {name} votes on {votes:,} of {pairs:,} pairs"
        if (share := audit.get(f"judge_{name}_for_label")) is not None:
            sentence += f", for the label on {100 * share:.1f} % of them"
        if (share := audit.get(f"judge_{name}_same_in_both_orders")) is not None:
            sentence += f"; its answer is the same in both orders on {100 * share:.1f} %"
        yield f"{sentence}."
    if (alpha := audit.get("judges_krippendorff_alpha")) is not None:
        yield f"Krippendorff's alpha of the {len(names)} judges' votes is {alpha:.2f}."


def changes_made(audit: Mapping[str, Any]) -> Iterator[str]:
    """What a person said of the labels, and what was changed; nothing where nothing was."""
    if audit.get("num_reviewed"):
        counts = [f"{int(audit[f'num_review_{v}']):,} {word}" for v, word in VERDICT_WORDS.items()]
        yield (
            f"A person looked at {int(audit['num_reviewed']):,} of {int(audit['num_pairs']):,} "
            f"labels: {', '.join(counts)}."
        )
    done = {
        "turned round": audit.get("num_flipped"),
        "left out": audit.get("num_dropped"),
        "smoothed": audit.get("num_smoothed"),
        "given a lower weight": audit.get("num_weighted"),
    }
    if parts := [f"{int(count):,} {words}" for words, count in done.items() if count]:
        yield f"Of all labels {', '.join(parts)}."

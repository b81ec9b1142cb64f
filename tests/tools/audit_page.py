"""The label audit's page in a real browser: what its script does.

    python -m tests.tools.audit_page --browser /usr/bin/chromium

Checks hostile texts, marks, filters, search, keys, reviews kept, downloaded and taken up again, and
widths. Ends with status 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.tools.browser import Browser, browser
from trimtab.models.config.reporting import AuditConfig
from trimtab.models.reporting.audit.page import weakest_first, write_page
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.audit.summary import summarise

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> é\u2028"
SHOWN = "document.getElementById('content')?.children.length > 0"
PAIR = AuditedPair(
    id="", prompt="Q", chosen="A", rejected="B", category="a", split="train", strength_mean=1.0,
    strength_std=0.5, differences=(0.5, 1.5), label_given=1.0, is_flipped=False, label=1.0,
    margin=0.0, weight=1.0, review=None, votes=None, truth=None,
)  # fmt: skip
PAIRS = [
    replace(PAIR, id=f"weak{HOSTILE}", strength_mean=-2.0, is_flipped=True, category=HOSTILE,
            prompt=HOSTILE, chosen=f"the red car {HOSTILE}", rejected=f"the blue car {HOSTILE}"),
    replace(PAIR, id="long", strength_mean=-1.0, differences=(-2.0, 0.0), label=0.9,
            prompt="turn " * 4000, chosen="one word " * 2200, rejected="one word " * 2199 + "more"),
    replace(PAIR, id="torn", strength_mean=0.0, differences=(-1.0, 1.0), split="test",
            chosen="alpha beta gamma", rejected="one two three four five"),
    replace(PAIR, id="good", strength_mean=3.0, chosen="needle"),
]  # fmt: skip


def write(pairs: list[AuditedPair], path: Path) -> Path:
    """The page of some pairs."""
    write_page(path, AuditConfig(recipe="mine"), summarise(pairs), weakest_first(pairs))
    return path


def text(page: Browser, name: str) -> str:
    """What an element says."""
    return str(page.run(f"document.getElementById({name!r}).textContent"))


def place(page: Browser, name: str) -> None:
    """Wait for a pair to be in view."""
    page.wait(f"document.getElementById('place').textContent === {name!r}")


def give(page: Browser, name: str, value: str, event: str = "change") -> None:
    """Put a value into a control."""
    page.run(
        f"(() => {{ const found = document.getElementById({name!r}); found.value = {value!r};"
        f"found.dispatchEvent(new Event({event!r})); }})()"
    )


def check_hostile_texts(page: Browser, path: Path) -> None:
    """Texts are shown as they came, and nothing of them runs."""
    shown = page.run("[...document.querySelectorAll('#content .text')].map((e) => e.textContent)")
    assert shown == [PAIRS[0].prompt, PAIRS[0].chosen, PAIRS[0].rejected], shown
    assert page.run("document.images.length") == 0
    assert page.run("document.querySelectorAll('script:not([type])').length") == 1


def check_marks(page: Browser, path: Path) -> None:
    """The words by which answers differ; none where nearly all do, or they are too long."""
    marks = "[...document.querySelectorAll('mark')].map((each) => each.textContent)"
    assert page.run(marks) == ["red", "blue"], page.run(marks)
    page.press("j")
    place(page, "Pair 2 of 4")
    assert page.run(marks) == ["one word", "more"], page.run(marks)
    assert page.run("document.querySelector('.folded') !== null")
    page.press("j", "j")
    place(page, "Pair 4 of 4")  # held out: behind the pairs to train on
    assert page.run(marks) == []
    assert "few words in common" in text(page, "content")


def check_filters(page: Browser, path: Path) -> None:
    """Counts after each filter, by hand."""
    for name, value, count in (
        ("kind", "contradicts it: looks wrong", 2),
        ("kind", "agrees with the label", 2),
        ("kind", "uncertain: members disagree", 1),
        ("kind", "flipped by relabelling", 1),
        ("kind", "smoothed by relabelling", 1),
        ("kind", "any", 4),
        ("split", "1", 1),
        ("split", "", 4),
        ("category", "1", 3),
        ("category", "", 4),
        ("low", "-1", 3),
        ("high", "0", 2),
        ("low", "", 3),
        ("high", "", 4),
        ("mine", "reviewed", 0),
    ):
        give(page, name, value)
        assert text(page, "count") == f"{count} of 4 pairs", (name, value, text(page, "count"))
    assert text(page, "place") == "No pair passes these filters."
    give(page, "mine", "any")
    give(page, "search", "NEEDLE", "input")
    page.wait("document.getElementById('count').textContent === '1 of 4 pairs'")
    give(page, "search", "(", "input")
    page.wait("document.getElementById('count').textContent === '1 of 4 pairs'")
    give(page, "search", "", "input")
    page.wait("document.getElementById('count').textContent === '4 of 4 pairs'")


def check_unsupported_flips(page: Browser, path: Path) -> None:
    """A flip of a pair that every member finds right can be found, and is marked."""
    give(page, "kind", "flipped, and no member supports it")
    place(page, "Pair 1 of 1")
    assert "⚠ flipped, and no member supports it" in text(page, "content")
    assert "⚠ no member supports it" in text(page, "list")
    give(page, "kind", "any")


def check_review(page: Browser, path: Path) -> None:
    """Verdicts by key and button, kept over a reload, downloaded, and taken up again."""
    page.press("2")  # and on to the next
    place(page, "Pair 2 of 4")
    page.run("document.getElementById('verdict-keep').click()")
    place(page, "Pair 2 of 4")
    page.press("1", "k")  # the same again takes nothing back
    place(page, "Pair 2 of 4")
    assert text(page, "progress").startswith("2 of 4 pairs reviewed: 1 keep, 1 flip, 0 drop")
    page.press("0")
    assert text(page, "progress").startswith("1 of 4 pairs reviewed: 0 keep, 1 flip, 0 drop")
    page.press("3", "k", "e")
    page.send("Input.insertText", text='says "jk1" \u2028 twice')
    page.press("Escape")
    page.open(path)
    page.wait(SHOWN)
    assert text(page, "progress").startswith("2 of 4 pairs reviewed: 0 keep, 1 flip, 1 drop")
    assert "Of 1 that look wrong and that you keep or flip, you flip 1 (100 %)." in text(
        page, "progress"
    )
    lines = page.run(
        "new Promise((done) => { URL.createObjectURL = (blob) => { blob.text().then(done);"
        "return 'data:,'; }; document.getElementById('download').click(); })"
    )
    assert [json.loads(line) for line in lines.split("\n") if line] == [
        {"id": PAIRS[0].id, "verdict": "flip", "note": None},
        {"id": "long", "verdict": "drop", "note": 'says "jk1" \u2028 twice'},
    ]
    page.run("localStorage.clear()")
    page.open(path)
    page.wait(SHOWN)
    assert text(page, "progress").startswith("0 of 4")
    page.run(
        "(() => { const files = new DataTransfer();"
        f"files.items.add(new File([{json.dumps(lines)} + '{{\"id\": \"x\"}}\\n'], 'r.jsonl'));"
        "const input = document.getElementById('file'); input.files = files.files;"
        "input.dispatchEvent(new Event('change')); })()"
    )
    page.wait("document.getElementById('progress').textContent.startsWith('2 of 4')")
    assert text(page, "storage").endswith(
        "2 verdicts taken up; left out, as no verdict on a pair of this page: 1."
    )


def check_widths(page: Browser, path: Path) -> None:
    """Nothing reaches over the edge."""
    for width in (1280, 390):
        page.open(path, width)
        page.wait(SHOWN)
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), width


def check_one_pair_and_a_cut_page(page: Browser, path: Path) -> None:
    """One pair is enough; a page whose end is missing says so."""
    page.open(write(PAIRS[3:], path.with_name("one.html")))
    page.wait(SHOWN)
    assert text(page, "place") == "Pair 1 of 1"
    whole = path.read_text()
    cut = path.with_name("cut.html")
    cut.write_text(whole[: whole.index('<script type="text/plain" id="block-0"')])
    page.open(cut)
    page.wait("document.getElementById('problem')?.hidden === false")
    assert "the page was cut off" in text(page, "problem")


CHECKS: tuple[Callable[[Browser, Path], None], ...] = (
    check_hostile_texts,
    check_marks,
    check_filters,
    check_unsupported_flips,
    check_review,
    check_widths,
    check_one_pair_and_a_cut_page,
)


def main() -> None:
    """Check one thing after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.audit_page")
    parser.add_argument("--browser", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, browser(options.browser) as page:
        path = write(PAIRS, Path(folder) / "audit.html")
        for check in CHECKS:
            page.open(path)
            page.wait(SHOWN)
            check(page, path)
            print(f"{check.__name__.replace('_', ' ')}: good", flush=True)
        assert not page.complaints, page.complaints


if __name__ == "__main__":
    main()

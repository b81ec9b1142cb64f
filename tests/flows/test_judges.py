"""The judges of an audit before it starts: their names, addresses and number of requests."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.models.judge.endpoint import Reply, completion, serving
from tests.ports import free_ports
from trimtab.flows.audit.judges import judges_of, requests_in_words, require_answers
from trimtab.flows.cli.cli import main
from trimtab.flows.cli.pair_files import changes_of_audit
from trimtab.flows.config.config import RunConfig, load_config
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.names import name_run
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline.run import PlannedStage
from trimtab.flows.runs.plan_text import spending_in_words
from trimtab.infra.reports import write_run
from trimtab.infra.settings import Settings

LOCAL = "http://127.0.0.1:1/v1"


@pytest.fixture(autouse=True)
def _no_key_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Ten pairs of 60 characters each."""
    rows = [
        {"prompt": f"{n}" * 20, "chosen": f"a{n}" * 10, "rejected": "b" * 20} for n in range(10)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _config(pairs: Path | str, *judges: str, max_pairs: int | None = None) -> RunConfig:
    changes = changes_of_audit(
        [str(pairs)], [], options={"ensemble.judges": judges_of(judges, max_pairs)}
    )
    return apply_changes(recipe_named("audit"), changes)


def _settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRIMTAB_HOME": str(tmp_path / "home")})


def test_a_judge_is_a_model_at_an_address_or_one_of_this_machine(tmp_path: Path) -> None:
    given = [
        "Qwen/Qwen3-8B@http://localhost:8000/v1",
        "qwen3-8b@https://other.example/v1/",
        "claude@20260101@https://api.example/v1",
        "llama3.1:8b@http://localhost:11434/v1",
        "smollm2-135m-instruct",
        "HuggingFaceTB/SmolLM2-360M-Instruct",
        str(tmp_path),
        "-@http://localhost/v1",
        "m" * 60 + "@http://localhost/v1",
        "m" * 60 + "@http://localhost:1/v1",
    ]
    found = judges_of(given, 50)
    assert [each["name"] for each in found] == [
        "qwen3-8b",
        "qwen3-8b-2",
        "claude-20260101",
        "llama3.1-8b",
        "smollm2-135m-instruct",
        "smollm2-360m-instruct",
        tmp_path.name,
        "judge",
        "m" * 40,
        "m" * 38 + "-2",
    ]
    assert found[0]["judge"] == {
        "endpoint": {"model": "Qwen/Qwen3-8B", "base_url": "http://localhost:8000/v1"}
    }
    assert found[2]["judge"]["endpoint"]["model"] == "claude@20260101"
    assert found[5]["judge"] == {"local_model": given[5]}
    assert {each["max_pairs"] for each in found} == {50}
    config = _config("s3://bucket/pairs.jsonl", *given)
    assert [each.name for each in config.ensemble.judges] == [each["name"] for each in found]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gpt-4.1-mini", "--judge: found 'gpt-4.1-mini'; allowed: MODEL@URL of an OpenAI-compat"),
        ("qwen@localhost:8000/v1", "--judge: found 'qwen@localhost:8000/v1'; allowed: MODEL@URL"),
        ("http://localhost:8000/v1", "--judge: found 'http://localhost:8000/v1'; allowed: MODEL@"),
        ("m@htp://localhost/v1", "base_url: must be an http:// or https:// address; found 'htp://"),
        ("m@http://u:hunter2@localhost/v1", "base_url: must hold no user, password, query"),
        ("m@http://127.0.0.1:PORT/v1", "ensemble.judges: http://127.0.0.1:PORT/v1/models: no answ"),
        ("m@http://nobody.invalid/v1", "ensemble.judges: http://nobody.invalid/v1/models: no answ"),
        ("./none", "ensemble.judges.judge.local_model: found nothing at './none'"),
    ],
)
def test_a_mistyped_judge_is_one_error_at_once(
    given: str,
    said: str,
    pairs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,nobody.invalid")
    port = str(free_ports(1))
    assert main(["audit", str(pairs), "--judge", given.replace("PORT", port)]) == 2
    told = capsys.readouterr().err
    assert said.replace("PORT", port) in told and "hunter2" not in told


def test_an_endpoint_is_asked_for_its_models_before_anything_runs(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(tmp_path)
    with serving(lambda *_: completion("A")) as server:
        config = _config(pairs, f"m@{server.url}")
        assert require_answers(config, settings) == []  # it does not say
        server.models = Reply({"data": [{"id": f"model-{n}"} for n in range(7)]})
        assert require_answers(config, settings) == [
            f"{server.url} does not list the model 'm'; it lists 'model-0', 'model-1', 'model-2', "
            "'model-3', 'model-4', ..."
        ]
        assert require_answers(_config(pairs, f"model-6@{server.url}"), settings) == []
        server.models = Reply({"data": [{"id": "\x1b[2J" + "x" * 9999}]})
        (note,) = require_answers(config, settings)
        assert note.isprintable() and len(note) < 400
        for body in ({"data": 3}, [], {"data": [{"name": "m"}]}, "<html>"):
            server.models = Reply(body)
            assert require_answers(config, settings) == []
        # Its /v1 is missing, or another is given.
        server.models = Reply({"data": []})
        root = server.url.removesuffix("/v1")
        with pytest.raises(ConfigError, match="found no chat completions there; http.*/v1 has som"):
            require_answers(_config(pairs, f"m@{root}"), settings)
        with pytest.raises(ConfigError, match="/v2: found no chat completions there$"):
            require_answers(_config(pairs, f"m@{root}/v2"), settings)
        server.models = Reply({"error": {"message": "Incorrect key sk-abcdefgh"}}, status=401)
        with pytest.raises(ConfigError, match=r"status 401: .*from \$OPENAI_API_KEY, which is"):
            require_answers(config, settings)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-abcdefgh")
        with pytest.raises(ConfigError, match="is set") as error:
            require_answers(config, settings)
        assert "sk-abcdefgh" not in str(error.value)
        assert server.bodies == [{}]  # nothing was asked that costs


@pytest.mark.slow
def test_an_endpoint_that_says_nothing_is_not_waited_for(pairs: Path, tmp_path: Path) -> None:
    with serving(lambda *_: completion("A")) as server:
        server.models = Reply(stall=True)
        began = time.monotonic()
        names = [f"{name}@{server.url}" for name in ("a", "b", "c")]
        assert require_answers(_config(pairs, *names), _settings(tmp_path)) == []
        assert time.monotonic() - began < 2


def test_judges_whose_votes_are_there_need_not_answer(pairs: Path, tmp_path: Path) -> None:
    """A page is reviewed, or labels treated otherwise, when the judges are gone."""
    settings = _settings(tmp_path)
    config = _config(pairs, f"m@http://127.0.0.1:{free_ports(1)}/v1")
    with pytest.raises(ConfigError, match="no answer"):
        require_answers(config, settings)
    write_run(settings.home / "reports" / "earlier", dict(name_run(config, "label-audit").about))
    assert require_answers(config, settings) == []
    treated = apply_changes(config, {"relabel": {"flip_below": 0}})
    assert require_answers(treated, settings) == []
    for other in (
        apply_changes(config, {"seed": 1}),
        apply_changes(config, {"preferences": {"max_pairs": 5}}),
        _config(pairs, "n@http://127.0.0.1:1/v1"),
    ):
        with pytest.raises(ConfigError, match="no answer"):
            require_answers(other, settings)
    pairs.write_text(pairs.read_text() * 2)
    with pytest.raises(ConfigError, match="no answer"):
        require_answers(config, settings)


def test_judges_of_workers_and_keys_in_blocks_are_not_asked(pairs: Path, tmp_path: Path) -> None:
    config = _config(pairs, f"m@{LOCAL}")
    env = {"TRIMTAB_HOME": str(tmp_path), "TRIMTAB_DASK": "tcp://10.0.0.5:8786"}
    assert require_answers(config, Settings.from_env(env)) == []
    values = config.model_dump(mode="json")
    values["ensemble"]["judges"][0]["judge"]["endpoint"]["key_block"] = "mine"
    assert require_answers(load_config(values), _settings(tmp_path)) == []


def test_what_is_asked_is_said_before(pairs: Path) -> None:
    one, other = requests_in_words(_config(pairs, f"m@{LOCAL}", f"n@{LOCAL}", max_pairs=4))
    assert one.startswith(f"judge m at {LOCAL}: 8 requests, 4 pairs in both orders, at most about ")
    assert other == one.replace("judge m", "judge n")
    (whole,) = requests_in_words(_config(pairs, "smollm2-135m-instruct"))
    assert whole.startswith("judge smollm2-135m-instruct in this process: 20 requests, 10 pairs")
    changes = {"max_total_tokens": 1000, "max_cost": 2.5, "input_price": 1.0}
    values = _config(pairs, f"m@{LOCAL}").model_dump(mode="json")
    values["ensemble"]["judges"][0]["judge"]["endpoint"] |= changes
    values["ensemble"]["judges"][0]["judge"] |= {"chain_of_thought": True}
    (limited,) = requests_in_words(load_config(values))
    assert ": 40 requests, 10 pairs" in limited
    assert limited.endswith(" tokens; max_cost = 2.5 and max_total_tokens = 1000")
    (unknown,) = requests_in_words(_config("s3://bucket/pairs.jsonl", f"m@{LOCAL}"))
    assert unknown.endswith("how many pairs it will be asked about is not known beforehand")
    assert list(requests_in_words(_config(pairs))) == []


def test_a_plan_has_what_each_may_spend(pairs: Path) -> None:
    judges = _config(pairs, f"m@{LOCAL}", f"n@{LOCAL}").ensemble.judges
    stages = [PlannedStage("judge_preferences", each.comparing(), {}, 1) for each in judges]
    assert spending_in_words(stages, 1) == [
        f"1 x judge_preferences asks the endpoint's {name}: no limit is given" for name in "mn"
    ]


def test_the_command_of_a_run_names_its_judges_briefly(pairs: Path) -> None:
    config = _config(pairs, f"m@{LOCAL}", max_pairs=4)
    command = name_run(config, "label-audit").command
    judge = (
        '{"judge": {"endpoint": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}, '
        '"max_pairs": 4, "name": "m"}'
    )
    assert command.endswith(f"'ensemble.judges=[{judge}]'")
    again = parse_overrides([f"ensemble.judges=[{judge}]"])
    assert apply_changes(_config(pairs), again) == config


def test_judges_vote_beside_embedding_models_under_names_of_their_own(pairs: Path) -> None:
    values = _config(pairs, f"m@{LOCAL}").model_dump(mode="json")
    (judge,) = values["ensemble"]["judges"]
    gold = {**judge, "judge": {"gold_accuracy": 0.9}}
    limited = {"endpoint": {"model": "m", "base_url": LOCAL, "max_total_tokens": 9}}
    for judges, said in (
        ([judge, judge], "judges must differ, found m more than once"),
        ([gold], "ensemble.judges.judge.gold_accuracy must be none with preferences.sources"),
        ([{**judge, "name": "<b>"}], "ensemble.judges.0.name"),
        (
            [judge, {**judge, "name": "n", "judge": limited}],
            "must have the same limits, found none and max_total_tokens = 9 for m",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config({**values, "ensemble": {**values["ensemble"], "judges": judges}})
    changed = {"votes": ["in_sample"], "self_test_share": 0}
    with pytest.raises(ConfigError, match="judges must be empty where votes is in_sample, found m"):
        load_config({**values, "ensemble": {**values["ensemble"], **changed}})
    with pytest.raises(ConfigError, match="found --judge and ensemble.judges; allowed: one of"):
        changes_of_audit(
            ["a"],
            ["ensemble.judges=[]"],
            options={"ensemble.judges": judges_of([f"m@{LOCAL}"], None)},
        )

"""A reward from outside in every stage that scores: models of other families, functions, kills."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job, launch
from tests.models.training.test_external_scorer import save_scorer
from trimtab.models.config.external_reward import (
    ExternalRewardVotesConfig,
    RewardConfig,
    RewardMemberConfig,
)
from trimtab.models.data.records import read_rows
from trimtab.models.rewards.checks import RewardError
from trimtab.models.rewards.function import RewardFunction
from trimtab.models.rewards.reward import member_of, reward_in
from trimtab.models.stages import external_reward_votes
from trimtab.models.stages.ppo_max import trainer
from trimtab.models.training.data import write_rows
from trimtab.models.training.progress import read_metrics

COUNTING = '''
"""Scores by a rule, and notes each call."""
import pathlib

CALLS = pathlib.Path(__file__).with_name("calls.txt")

def words(prompts, responses, category=None):
    with CALLS.open("a") as stream:
        stream.writelines(f"{prompt}|{response}\\n" for prompt, response in zip(prompts, responses))
    pairs = zip(prompts, responses)
    return [len(set(response.split())) / 3 + len(prompt) % 2 for prompt, response in pairs]
'''


def words(prompt: str, response: str) -> float:
    """The same rule, by hand."""
    return len(set(response.split())) / 3 + len(prompt) % 2


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module `its_rewards`, which is the current one."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "its_rewards.py").write_text(COUNTING)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "its_rewards", raising=False)
    return folder


def made(folder: Path, comparisons: Path, **reward: Any) -> Path:
    """The artifact of a reward."""
    return run_stage("external_reward", RewardConfig(**reward), folder, preferences=comparisons)


def _inputs(policy: Path, data: Path, **scorers: Path) -> dict[str, Path]:
    return {"policy": policy, "reference": policy, "data": data, **scorers}


def _ppo(smoke_config: Any, **changes: Any) -> Any:
    return smoke_config.ppo.model_copy(update={"critic_init": "policy", **changes})


def alone(folder: Path, rows: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Each prompt and response as a model's card shows it: by transformers, one at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for row in rows:
        if model.config.model_type == "bert":
            inputs = tokenizer(row["prompt"], row["response"].strip(), return_tensors="pt")
        elif tokenizer.chat_template is None:
            text = f"{row['prompt']}{row['response']}{tokenizer.eos_token}"
            inputs = tokenizer(text, return_tensors="pt")
        else:
            messages = [
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": row["response"].strip()},
            ]
            inputs = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            scores.append(float(model(**inputs).logits[0, 0]))
    return torch.tensor(scores)


class Dying:
    """A progress at whose second step the stage is killed."""

    def advance(self, done: int, total: int) -> None:
        assert done < total
        if done == 32:
            raise Killed


def test_pairs_are_voted_on_by_a_function_which_is_asked_nothing_twice(
    tmp_path: Path, comparisons: Path, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its second call; every answer of every split has the rule's score."""
    config = ExternalRewardVotesConfig(reward=RewardMemberConfig(function="its_rewards:words"))
    monkeypatch.setattr(external_reward_votes, "ANSWERS_AT_ONCE", 16)
    with monkeypatch.context() as patch:
        patch.setattr(external_reward_votes, "Progress", lambda _: Dying())
        with pytest.raises(Killed):
            run_stage("external_reward_votes", config, tmp_path / "work", preferences=comparisons)
    output = run_stage("external_reward_votes", config, tmp_path / "work", preferences=comparisons)
    splits = ("train", "validation", "test")
    pairs = {row["id"]: row for name in splits for row in read_rows(comparisons / f"{name}.jsonl")}
    scored = read_rows(output / "scores.jsonl")
    assert len(scored) == len(pairs) > 32
    for row in scored:
        pair = pairs[row["id"]]
        for name in ("chosen", "rejected"):
            expected = words(pair["prompt"], pair[name])
            assert row[f"{name}_score"] == pytest.approx(expected, abs=1e-6)
    asked = (module / "calls.txt").read_text().splitlines()
    assert len(asked) == len(set(asked))
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["num_pairs"], summary["num_answers"]) == (len(pairs), len(asked))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "template"), [("bidirectional", False), ("packed", True)])
def test_ppo_on_a_reward_model_of_another_family(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    kind: str,
    template: bool,
) -> None:
    """BERT that reads two texts, and a Llama of another tokenizer with a chat template."""
    folder = save_scorer(tmp_path / "theirs", kind, template)
    scorer = made(tmp_path / "reward", comparisons, model=str(folder))
    config = _ppo(smoke_config)
    output = run_stage("ppo_max", config, tmp_path / "ppo", **_inputs(policy, world, scorer=scorer))
    rows = read_rows(output / "rollouts.jsonl")
    assert len(rows) > 20
    found, expected = torch.tensor([row["score"] for row in rows]), alone(folder, rows)
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    before, after = (load_file(each / "model" / "model.safetensors") for each in (policy, output))
    assert any(bool((before[name] != after[name]).any()) for name in before)
    pairs = {row["id"]: row for row in read_rows(comparisons / "test.jsonl")}
    scored = [row for row in read_rows(scorer / "scores.jsonl") if row["split"] == "test"]
    assert len(scored) == len(pairs)
    ours = [
        {"prompt": pairs[row["id"]]["prompt"], "response": pairs[row["id"]][name]}
        for row in scored[:8]
        for name in ("chosen", "rejected")
    ]
    found = torch.tensor([[r["chosen_score"], r["rejected_score"]] for r in scored[:8]]).view(-1)
    torch.testing.assert_close(found, alone(folder, ours), atol=1e-4, rtol=1e-4)
    summary = json.loads((scorer / "summary.json").read_text())
    right = [row["chosen_score"] > row["rejected_score"] for row in scored]
    assert summary["test_accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.slow
def test_evaluation_samples_and_rehearsal_by_a_function(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    reward_model: Path,
    module: Path,
) -> None:
    """Best of n, what rejection sampling and ReST learn from, and a judge beside the scorer."""
    scorer = made(tmp_path / "reward", comparisons, function="its_rewards:words")
    inputs = _inputs(policy, world, scorer=scorer, judge_0=reward_model, judge_1=scorer)
    config = smoke_config.evaluate.model_copy(update={"num_candidates": 3})
    output = run_stage("evaluate", config, tmp_path / "evaluation", **inputs)
    rows = read_rows(output / "responses.jsonl")
    for row in rows:
        assert (
            row["score"] == row["judge_1"] == pytest.approx(words(row["prompt"], row["response"]))
        )
    best = json.loads((output / "best_of_k.json").read_text())["main"]["score"]
    assert best == sorted(best) and best[0] < best[-1]
    # The same where all judges are from outside, and no scorer of Trimtab's own is there.
    others = _inputs(policy, world, scorer=scorer, judge_0=scorer)
    output = run_stage("evaluate", config, tmp_path / "outside", **others)
    again = read_rows(output / "responses.jsonl")
    for row, other in zip(rows, again, strict=True):
        assert row["response"] == other["response"] and other["judge_score"] == other["score"]
        assert row["logprob"] == pytest.approx(other["logprob"], rel=1e-4, abs=1e-4)
        assert row["kl"] == pytest.approx(other["kl"], abs=1e-4)

    sources = {"data": world, "policy": policy, "scorer": scorer}
    config = smoke_config.rejection_sampling.answers.model_copy(update={"num_prompts": 12})
    output = run_stage("sample_responses", config, tmp_path / "samples", **sources)
    for row in read_rows(output / "answers.jsonl"):
        assert row["scores"] == pytest.approx([words(row["prompt"], r) for r in row["responses"]])
    output = run_stage("rehearsal", smoke_config.rehearsal, tmp_path / "rehearsal", **sources)
    for row in read_rows(output / "rehearsal.jsonl"):
        assert row["advantage_score"] == pytest.approx(words(row["prompt"], row["response"]))


@pytest.mark.slow
def test_columns_of_prompts_reach_a_function_in_every_stage(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It needs them: a stage that lost them would fail."""
    code = (
        "def f(prompts, responses, size):\n    return [n + len(r) for n, r in zip(size, responses)]"
    )
    (tmp_path / "its_columns.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    data, pairs = tmp_path / "data", tmp_path / "pairs"
    for source, folder in ((world, data), (comparisons, pairs)):
        shutil.copytree(source, folder)
        for path in folder.rglob("*.jsonl"):
            rows = read_rows(path)
            if "prompt" in rows[0]:
                write_rows(path, [row | {"columns": {"size": len(row["prompt"])}} for row in rows])
    scorer = made(tmp_path / "reward", pairs, function="its_columns:f")
    inputs = _inputs(policy, data, scorer=scorer)
    sources = {"data": data, "policy": policy, "scorer": scorer}
    answers = smoke_config.rejection_sampling.answers.model_copy(update={"num_prompts": 12})
    ppo = run_stage("ppo_max", _ppo(smoke_config), tmp_path / "ppo", **inputs)
    inputs["judge_0"] = scorer
    evaluated = run_stage("evaluate", smoke_config.evaluate, tmp_path / "evaluated", **inputs)
    sampled = run_stage("sample_responses", answers, tmp_path / "sampled", **sources)
    rehearsed = run_stage("rehearsal", smoke_config.rehearsal, tmp_path / "rehearsed", **sources)
    scores = [
        (row["prompt"], row["response"], row.get("score", row.get("advantage_score")))
        for path in (
            ppo / "rollouts.jsonl",
            evaluated / "responses.jsonl",
            rehearsed / "rehearsal.jsonl",
        )
        for row in read_rows(path)
    ] + [
        (row["prompt"], response, score)
        for row in read_rows(sampled / "answers.jsonl")
        for response, score in zip(row["responses"], row["scores"], strict=True)
    ]
    assert scores and all(score == len(p) + len(r) for p, r, score in scores)


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_killed_and_run_again_a_function_is_asked_nothing_twice(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    module: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: bool,
) -> None:
    """It dies after step 4, whose checkpoint is not written; that of step 2 is."""
    inputs = _inputs(
        policy, world, scorer=made(tmp_path / "made", comparisons, function="its_rewards:words")
    )
    config, calls = _ppo(smoke_config), module / "calls.txt"
    calls.unlink()
    whole = run_stage("ppo_max", config, tmp_path / "whole", **inputs)
    expected = calls.read_text().splitlines()
    assert len(expected) == len(set(expected))
    calls.unlink()
    workdir = tmp_path / "killed"
    with monkeypatch.context() as patch:
        die_after(patch, trainer, 4)
        with pytest.raises(Killed):
            run_stage("ppo_max", config, workdir, **inputs)
    (kept,) = (workdir / "rewards").iterdir()
    with kept.open("a") as stream:
        stream.write('["a line that was being wr')
    if elsewhere:
        shutil.copytree(workdir / "checkpoints", tmp_path / "other" / "checkpoints")
        workdir = tmp_path / "other"
    resumed = run_stage("ppo_max", config, workdir, **inputs)
    asked = calls.read_text().splitlines()
    assert set(asked) == set(expected)
    rows = read_rows(whole / "rollouts.jsonl")
    early = {f"{row['prompt']}|{row['response']}" for row in rows if row["step"] <= 2}
    lost = {f"{row['prompt']}|{row['response']}" for row in rows if 3 <= row["step"] <= 4}
    assert len(asked) - len(expected) == (len(lost - early) if elsewhere else 0)
    for name in ("rollouts.jsonl", "summary.json"):
        assert (resumed / name).read_text() == (whole / name).read_text()
    ours, theirs = (load_file(each / "model" / "model.safetensors") for each in (whole, resumed))
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


@pytest.mark.slow
def test_two_ranks_score_what_one_does(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    module: Path,
) -> None:
    """They share a model's work out; a function is called by the first alone."""
    theirs = save_scorer(tmp_path / "theirs", "bidirectional", template=False)
    rewards = {"function": {"function": "its_rewards:words"}, "model": {"model": str(theirs)}}
    for name, reward in rewards.items():
        scorer = made(tmp_path / name, comparisons, **reward)
        inputs = _inputs(policy, world, scorer=scorer)
        config, scores = _ppo(smoke_config, num_steps=1, critic_pretrain_steps=0), []
        for number in (1, 2):
            (module / "calls.txt").unlink(missing_ok=True)
            folder = tmp_path / f"{name}_{number}"
            launch(job(folder, config, world, number, "ppo_max", inputs))
            scores.append([row["score"] for row in read_metrics(folder / "metrics.jsonl")])
            if name == "function":
                lines = (module / "calls.txt").read_text().splitlines()
                assert len(lines) == len(set(lines)) > 0
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def _bad(value: object) -> str:
    return f"def f(prompts, responses):\n    return {value}\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (_bad("[1.0]"), "reward function bad:f: found 1 scores of 4 answers; allowed: 4"),
        (_bad("[float('nan')] * 4"), "found nan as the score of answer 1 of 4; allowed: a finite"),
        (_bad("[1, 2, float('inf'), 0]"), "found inf as the score of answer 3 of 4"),
        (_bad("[1e300] * 4"), r"found 1e\+300 as the score of answer 1 of 4"),
        (_bad("['1'] * 4"), "found str as the score of answer 1"),
        (_bad("[True] * 4"), "found True as the score"),
        (_bad("[None] * 4"), "found None as the score"),
        (_bad("1.5"), "found float; allowed: a list of 4 numbers"),
        (_bad("{}['x']"), "reward function bad:f raised KeyError: 'x'"),
        ("def g(): pass", "cannot be imported: AttributeError: module 'bad' has no attribute 'f'"),
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No module named"),
        ("f = 3", "found int; allowed: a Python function"),
        (
            "def f(texts): return [0]",
            "found the parameters .texts.; allowed: prompts and responses first, or one",
        ),
        (
            "def f(prompts, responses, answer): return [0] * 4",
            r"found the parameter answer; allowed beside prompts and responses: columns of the "
            r"prompts \(category\), to which preferences.prompt_columns adds",
        ),
    ],
)
def test_what_a_function_does_wrong_is_one_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "bad.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bad", raising=False)
    pair = {"id": "0", "prompt": "p", "category": "c", "chosen": "a", "rejected": "b"}
    for split in ("validation", "test"):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", [pair | {"prompt": f"of {split}"}])
    with pytest.raises(RewardError, match=message):
        made(tmp_path / "work", tmp_path / "pairs", function="bad:f")


def test_a_function_gets_texts_and_the_columns_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a TRL reward function's way of calling, too: what is left over goes to **columns."""
    code = (
        "SEEN = []\n"
        "def named(prompts, responses, messages, answer, unknown=7):\n"
        "    SEEN.append((prompts, responses, messages, answer, unknown))\n"
        "    import numpy\n"
        "    return numpy.arange(len(prompts))\n"
        "def all(prompts, completions, **columns):\n"
        "    SEEN.append(columns)\n"
        "    return [0] * len(prompts)\n"
    )
    (tmp_path / "columns_of.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    turns = [{"role": "user", "content": "hi"}]
    pair = {
        "id": "0",
        "prompt": "<u>hi<a>",
        "category": "c",
        "columns": {"answer": 4},
        "chosen": "a",
        "rejected": "b",
        "messages": {"prompt": turns, "chosen": [], "rejected": []},
    }
    for split in ("validation", "test"):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", [pair] if split == "test" else [])
    output = made(tmp_path / "one", tmp_path / "pairs", function="columns_of:named")
    import columns_of  # type: ignore[import-not-found]

    assert columns_of.SEEN.pop() == (["<u>hi<a>"] * 2, ["a", "b"], [turns] * 2, [4, 4], 7)
    (row,) = read_rows(output / "scores.jsonl")
    assert (row["chosen_score"], row["rejected_score"]) == (0.0, 1.0)
    made(tmp_path / "two", tmp_path / "pairs", function="columns_of:all")
    given = {"answer": [4] * 2, "category": ["c"] * 2, "messages": [turns] * 2}
    assert columns_of.SEEN.pop() == given


def test_a_function_of_trl_s_is_called_as_trl_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By names, in whatever order; of data that came as messages with these."""
    code = (
        "def f(completions, ground_truth, **kwargs):\n"
        "    assert set(kwargs) <= {'prompts', 'category', 'messages'}\n"
        "    texts = [c if isinstance(c, str) else c[0]['content'] for c in completions]\n"
        "    return [float(t == g) for t, g in zip(texts, ground_truth)]\n"
        "def g(responses, ground_truth):\n"
        "    return [float(r == g) for r, g in zip(responses, ground_truth)]\n"
        "async def later(completions, **kwargs):\n"
        "    return [text == 'a' for text in completions]\n"
        "def h(*, completions, prompts):\n"
        "    pairs = zip(prompts, completions)\n"
        "    return [float(p[0]['content'] == c[0]['content']) for p, c in pairs]\n"
    )
    (tmp_path / "of_trl.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    text = {"prompt": "p", "category": None, "columns": {"ground_truth": "a"}}
    talk = text | {"messages": [{"role": "user", "content": "b"}]}
    for name, row, expected in (
        ("f", text, [1.0, 0.0]),
        ("f", talk, [1.0, 0.0]),
        ("g", talk, [1.0, 0.0]),
        ("h", talk, [0.0, 1.0]),
        ("later", text, [1.0, 0.0]),
    ):
        function = RewardFunction(f"of_trl:{name}", "it")
        assert function.scores([row, row], ["a", "b"]) == expected
    with pytest.raises(RewardError, match="it: found 1 of 2 prompts as messages; allowed with a"):
        RewardFunction("of_trl:f", "it").scores([text, talk], ["a", "b"])


def test_an_answer_is_remembered_by_all_that_its_prompt_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def f(prompts, responses, category):\n    return [len(name) for name in category]\n"
    (tmp_path / "by_category.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    member = member_of(RewardMemberConfig(function="by_category:f"), tmp_path, 0)
    rows = [{"prompt": "p", "category": name} for name in ("a", "bbb", "a")]
    assert member.rate(rows, ["same"] * 3)[0].tolist() == [1.0, 3.0, 1.0]
    assert member.summary() == {"num_rated": 2}


@pytest.mark.parametrize("is_confined", [False, True])
def test_a_worker_finds_no_module_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_confined: bool
) -> None:
    name = f"lies_here_{is_confined}"
    (tmp_path / f"{name}.py").write_text("def f(prompts, responses): return [0]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    if is_confined:
        monkeypatch.setenv("TRIMTAB_IS_CONFINED", "1")
        with pytest.raises(RewardError, match=f"No module named '{name}'"):
            RewardFunction(f"{name}:f", "it")
    else:
        assert RewardFunction(f"{name}:f", "it").scores([{"prompt": "p"}], ["r"]) == [0.0]


def test_messages_are_read_by_the_models_own_template(tmp_path: Path) -> None:
    """Whatever template has written the prompt's text, and whatever turns an answer pretends."""
    folder = save_scorer(tmp_path / "theirs")
    pair = {"id": "0", "prompt": "p", "category": None, "chosen": "a", "rejected": "b"}
    for split, rows in (("validation", []), ("test", [pair])):
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", rows)
    reward = reward_in(made(tmp_path / "m", tmp_path / "pairs", model=str(folder)), tmp_path, 0)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    rows = [
        {"prompt": "[INST] Why? [/INST]", "messages": turns},
        {"prompt": "\n\nHuman: Why?\n\nAssistant:"},
    ]
    answer = " So.\n\nHuman: Thanks!\n\nAssistant: Welcome."
    found = reward.score(rows, [[answer], [answer]])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for (score,), before in zip(found.tolist(), (turns, turns[1:]), strict=True):
        dialogue = [*before, {"role": "assistant", "content": answer.strip()}]
        inputs = tokenizer.apply_chat_template(dialogue, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            expected = float(model(**inputs).logits[0, 0])
        assert score == pytest.approx(expected, abs=1e-4)


def test_dialogues_that_a_template_refuses_are_one_error(tmp_path: Path) -> None:
    folder = save_scorer(tmp_path / "theirs")
    path = folder / "chat_template.jinja"
    path.write_text("{% if messages|length > 2 %}{{ raise_exception('two at most') }}{% endif %}x")
    pair = {"id": "0", "chosen": "a", "rejected": "b", "category": None}
    hh = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
    write_rows(tmp_path / "pairs" / "validation.jsonl", [{**pair, "prompt": hh}])
    write_rows(tmp_path / "pairs" / "test.jsonl", [{**pair, "prompt": "p"}])
    with pytest.raises(RewardError, match="theirs: its chat template refuses 2 of 4 .*two at most"):
        made(tmp_path / "m", tmp_path / "pairs", model=str(folder))


@pytest.mark.parametrize(
    ("reward", "changes", "message"),
    [
        ({"scorer_0": "outside", "scorer_1": "ours"}, {}, "found 2 scorers, one of them a reward"),
        (
            {"scorer": "outside"},
            {"critic_init": "scorer"},
            "critic_init must be policy if a reward",
        ),
    ],
)
def test_what_cannot_be_together(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    reward_model: Path,
    module: Path,
    reward: dict[str, str],
    changes: dict[str, Any],
    message: str,
) -> None:
    outside = made(tmp_path / "made", comparisons, function="its_rewards:words")
    folders = {"outside": outside, "ours": reward_model}
    scorers = {name: folders[which] for name, which in reward.items()}
    inputs, config = _inputs(policy, world, **scorers), _ppo(smoke_config, **changes)
    with pytest.raises(ValueError, match=message):
        run_stage("ppo_max", config, tmp_path / "ppo", **inputs)


PANEL = """
def length(prompts, responses):
    return [float(len(r.split())) for r in responses]

def first(prompts, responses):
    return [100.0 * (r.split() or [""])[0].__contains__("a") for r in responses]

def constant(prompts, responses):
    return [1.0 for _ in responses]
"""


def test_a_panel_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation answers have 1, 2, 3 and 2 words: mean 2, deviation sqrt(1/2). Two of them begin
    with an a: mean 50, deviation 50."""
    (tmp_path / "of_panel.py").write_text(PANEL)
    monkeypatch.syspath_prepend(tmp_path)
    pairs = tmp_path / "pairs"
    row = {"category": None, "prompt": "p"}
    write_rows(
        pairs / "validation.jsonl",
        [
            {**row, "id": "0", "chosen": "a", "rejected": "b b"},
            {**row, "id": "1", "chosen": "a a a", "rejected": "b a"},
        ],
    )
    write_rows(pairs / "test.jsonl", [{**row, "id": "2", "chosen": "a a a a", "rejected": "b"}])
    members = [{"function": f"of_panel:{name}"} for name in ("length", "first")]
    output = made(tmp_path / "panel", pairs, panel=members, std_coef=0.5)
    moments = json.loads((output / "reward.json").read_text())["moments"]
    assert moments == [[2.0, pytest.approx(math.sqrt(0.5))], [50.0, 50.0]]
    reward = reward_in(output, tmp_path / "work", 0)
    scores, metrics = reward.rate([{"prompt": "p"}] * 2, ["a a a a", "b b"])
    # Standardised: 2 / sqrt(1/2) and 1; 0 and -1. Spreads: half of the difference.
    high = 2 / math.sqrt(0.5)
    expected = [(high + 1) / 2 - 0.5 * (high - 1) / 2, -0.5 - 0.5 * 0.5]
    assert scores.tolist() == pytest.approx(expected)
    assert float(metrics["panel_std"]) == pytest.approx(((high - 1) / 2 + 0.5) / 2)
    # One answer alone scores as it does among others.
    assert reward.rate([{"prompt": "p"}], ["b b"])[0].tolist() == pytest.approx(expected[1:])
    assert reward.summary() == {"num_rated": 4}
    (first, *_, last) = read_rows(output / "scores.jsonl")
    assert first["chosen_score"] == pytest.approx(
        (1 - math.sqrt(2)) / 2 - 0.5 * (1 + math.sqrt(2)) / 2
    )
    assert last["chosen_score"] == pytest.approx(expected[0])

    three = [*members, {"function": "of_panel:length"}]
    output = made(tmp_path / "median", pairs, panel=three, combine="median")
    scores, _ = reward_in(output, tmp_path / "work", 0).rate([{"prompt": "p"}], ["a a a a"])
    assert scores.tolist() == pytest.approx([high])
    with pytest.raises(RewardError, match="of_panel:constant: found the same score for all 4 answ"):
        made(tmp_path / "same", pairs, panel=[*members, {"function": "of_panel:constant"}])

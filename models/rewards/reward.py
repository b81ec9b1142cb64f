"""A reward that somebody else brings, as stages score by it.

The stage `external_reward` writes which it is, and what its scores came to on pairs, into an
artifact. Every stage whose scorer that artifact is reads it here.

Implementation details that matter:
1. Models score on all ranks, each a share of the answers. A server, a function or a judge is asked
   by rank zero, which sends the scores to the others.
2. An answer to a prompt is asked about once. Scores are on disk as they come, and in checkpoints: a
   run that was killed asks nothing again, and goes on with the same numbers.
3. A prompt's messages are read by a reward model's own chat template where the row has them, else
   the turns of its HH-RLHF text; the answer is one message, whatever marks of turns it holds.
4. A panel's members are standardised by numbers of the artifact, which are the same in all stages:
   scores of two policies can be compared, and a resumed run goes on with the same reward.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.models.config.external_reward import RewardConfig, RewardMemberConfig
from trimtab.models.data.messages import messages_of
from trimtab.models.functional.combination import panel_scores
from trimtab.models.judge.reward import JudgeReward, key_of
from trimtab.models.nets.device import current_device
from trimtab.models.rewards.checks import RewardError, checked_scores
from trimtab.models.rewards.function import RewardFunction
from trimtab.models.rewards.server import RewardServer
from trimtab.models.training import distributed
from trimtab.models.training.external_scorer import Dialogue, ExternalScorer
from trimtab.models.training.learner import Metrics
from trimtab.models.training.scoring import score_answers
from trimtab.models.training.stage import Stage

FILE = "reward.json"
PromptRows = Sequence[Mapping[str, Any]]
Moments = Sequence[tuple[float, float]]
"""Mean and standard deviation of each member's scores of the answers of pairs."""


class Member(Protocol):
    """What scores answers. All ranks call all methods, in the same order."""

    def rate(self, rows: PromptRows, responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """Scores (N,) of N responses, on the host; rows: with a `prompt` and what else is known."""

    def summary(self) -> dict[str, float]:
        """Key numbers of the stage so far; for rank zero only."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""


class ExternalReward:
    """A reward from outside: one member, or a panel whose scores become one."""

    def __init__(
        self, config: RewardConfig, workdir: Path, seed: int, moments: Moments | None = None
    ) -> None:
        """moments: of a panel's members. seed: of sampled ratings.

        Raises RewardError, and what loading a model or a judge raises.
        """
        self.config, self.moments = config, moments
        folders = [workdir]
        if config.panel:
            folders = [workdir / f"member_{index}" for index in range(len(config.panel))]
        both = zip(config.members, folders, strict=True)
        self.members = [member_of(member, folder, seed) for member, folder in both]

    def member_scores(self, rows: PromptRows, responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """Scores (M, N) of N responses by the M members, as they are, and their metrics."""
        metrics: Metrics = {}
        scores = []
        for index, member in enumerate(self.members):
            rated, more = member.rate(rows, responses)
            scores.append(rated)
            prefix = f"member_{index}_" if self.config.panel else ""
            metrics |= {f"{prefix}{name}": value for name, value in more.items()}
        return torch.stack(scores), metrics

    def rate(self, rows: PromptRows, responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """Scores (N,) of N responses, on the host, and metrics.

        rows: of their prompts. Raises RewardError for scores that are none, and what members raise.
        """
        scores, metrics = self.member_scores(rows, responses)
        combined, more = self.combine(scores)
        return combined, metrics | more

    def combine(self, scores: Tensor) -> tuple[Tensor, Metrics]:
        """Scores (N,) of those of the members (M, N), and metrics; a panel has its moments."""
        config = self.config
        if not config.panel:
            return scores[0], {}
        assert self.moments is not None
        mean, std = torch.tensor(self.moments).T
        return panel_scores(scores, mean, std, config.combine, config.std_coef)

    def score(self, rows: PromptRows, answers: Sequence[Sequence[str]]) -> Tensor:
        """Scores (N, k) of k answers to each of N prompts."""
        repeated = [row for row, texts in zip(rows, answers, strict=True) for _ in texts]
        flat = [text for texts in answers for text in texts]
        return self.rate(repeated, flat)[0].view(len(rows), -1)

    def summary(self) -> dict[str, float]:
        """Key numbers of the stage so far, of all members; for rank zero only."""
        total = defaultdict[str, float](float)
        for member in self.members:
            for name, value in member.summary().items():
                total[name] += value
        return dict(total)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of each member."""
        return {"members": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        for member, of_member in zip(self.members, state["members"], strict=True):
            member.load_state_dict(of_member)


def write_reward(stage: Stage, config: RewardConfig, moments: Moments) -> None:
    """Write the artifact that `reward_in` reads, with the digests of what the reward is."""
    folders = stage.several("content")
    content = [path.read_text() for folder in folders for path in sorted(folder.iterdir())]
    values = {"config": config.model_dump(mode="json"), "moments": moments, "content": content}
    stage.write_json(FILE, values)


def is_external(folder: Path) -> bool:
    """Whether an artifact is a reward from outside, and no scorer that Trimtab has trained."""
    return (folder / FILE).exists()


def reward_in(folder: Path, workdir: Path, seed: int) -> ExternalReward:
    """The reward of an artifact; raises as ExternalReward does."""
    values = json.loads((folder / FILE).read_text())
    return ExternalReward(
        RewardConfig.model_validate(values["config"]), workdir, seed, values["moments"]
    )


def score_by(
    stage: Stage, name: str, seed: int, rows: PromptRows, answers: Sequence[Sequence[str]]
) -> Tensor:
    """Scores (N, k) of k answers to each of N prompts by an input: a scorer, or a reward from
    outside."""
    if is_external(stage.inputs[name]):
        return reward_in(stage.inputs[name], stage.workdir, seed).score(rows, answers)
    return score_answers(stage.scorer(name), stage.tokenizer(name), rows, answers)


def prompt_row(pair: Mapping[str, Any]) -> dict[str, Any]:
    """A pair's prompt, as rows of prompts are."""
    row = {"prompt": pair["prompt"], "category": pair.get("category")}
    if "columns" in pair:
        row["columns"] = pair["columns"]
    messages = pair.get("messages")
    return row if messages is None else {**row, "messages": messages["prompt"]}


def member_of(config: RewardMemberConfig, workdir: Path, seed: int) -> Member:
    """The reward that a configuration names; raises as ExternalReward does."""
    if config.model is not None:
        return ModelReward(config.model, config.label)
    if config.judge is not None:
        return RatedByJudge(JudgeReward(config.judge, workdir, seed))
    name = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]
    return AskedReward(config, workdir / "rewards" / f"{name}.jsonl")


class ModelReward:
    """A reward model, a copy on each rank."""

    def __init__(self, name: str, label: str) -> None:
        """Raises as `ExternalScorer.load` does."""
        self._scorer, self._label = ExternalScorer.load(name), label

    def rate(self, rows: PromptRows, responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """As in `Member`; RewardError for a dialogue that its chat template refuses."""
        dialogues = list(map(self._dialogue, rows, responses))
        distinct = list(dict.fromkeys(dialogues))
        mine = distributed.shard(distinct)
        known = self._scorer.score(mine) if mine else {}
        if self._scorer.refused:
            message = next(iter(self._scorer.refused.values()))
            raise RewardError(
                f"{self._label}: its chat template refuses {len(self._scorer.refused)} of "
                f"{len(distinct)} dialogues: {message}"
            )
        values = checked_scores(self._label, list(known.values()), len(known))
        column = torch.zeros(len(distinct), device=current_device())
        places = {dialogue: place for place, dialogue in enumerate(distinct)}
        column[[places[dialogue] for dialogue in known]] = torch.tensor(
            values, device=current_device()
        )
        distributed.all_reduce_sum([column])
        return column.cpu()[[places[dialogue] for dialogue in dialogues]], {}

    def _dialogue(self, row: Mapping[str, Any], response: str) -> Dialogue:
        is_text = self._scorer.is_own or self._scorer.tokenizer.chat_template is None
        if is_text and not row.get("messages"):
            return row["prompt"], response
        return tuple((turn["role"], turn["content"]) for turn in messages_of(row, response))

    def summary(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the same answers score the same again."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class AskedReward:
    """A server or a function, which rank zero asks, and the scores so far."""

    def __init__(self, config: RewardMemberConfig, path: Path) -> None:
        """path: of the file that keeps the scores, a line each: `[key, score]`."""
        self._source: RewardServer | RewardFunction | None = None
        self._path = path
        self._known: dict[str, float] = {}
        if not distributed.is_rank_zero():
            return
        if config.server is not None:
            self._source = RewardServer(config.server, config.label)
        else:
            assert config.function is not None
            self._source = RewardFunction(config.function, config.label)
        self._known = dict(_read_scores(path))

    def rate(self, rows: PromptRows, responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """As in `Member`; raises what the source raises."""
        column = torch.zeros(len(responses), device=current_device())
        if self._source is not None:
            pairs = zip(rows, responses, strict=True)
            keys = [key_of(json.dumps(row, sort_keys=True), response) for row, response in pairs]
            self._ask(self._source, keys, rows, responses)
            column = torch.tensor([self._known[key] for key in keys], device=current_device())
        distributed.all_reduce_sum([column])
        return column.cpu(), {}

    def _ask(
        self,
        source: RewardServer | RewardFunction,
        keys: Sequence[str],
        rows: PromptRows,
        responses: Sequence[str],
    ) -> None:
        """Ask for the scores that are not known yet, and keep each as it comes."""
        new = {key: place for place, key in enumerate(keys) if key not in self._known}
        if not new:
            return
        new_rows = [rows[place] for place in new.values()]
        texts = [responses[place] for place in new.values()]
        scores: Iterator[tuple[int, float]]
        if isinstance(source, RewardServer):
            scores = source.scores(new_rows, texts)
        else:
            scores = enumerate(source.scores(new_rows, texts))
        names = list(new)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as stream:
            for place, score in scores:
                self._known[names[place]] = score
                stream.write(json.dumps([names[place], score]) + "\n")
                stream.flush()

    def summary(self) -> dict[str, float]:
        """How many different answers were scored."""
        return {"num_rated": len(self._known)}

    def state_dict(self) -> dict[str, Any]:
        """The scores so far."""
        return {"known": dict(self._known)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; scores on disk, which may be newer, stay."""
        self._known = {**state["known"], **self._known}


def _read_scores(path: Path) -> Iterator[tuple[str, float]]:
    """The scores in a file; the rest of a line that was being written is cut off."""
    if not path.exists():
        return
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
    for line in whole.splitlines():
        key, score = json.loads(line)
        yield key, score


class RatedByJudge:
    """A judge, as a member."""

    def __init__(self, judge: JudgeReward) -> None:
        self._judge = judge
        self.summary, self.state_dict = judge.summary, judge.state_dict
        self.load_state_dict = judge.load_state_dict

    def rate(self, rows: PromptRows, responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """As in `Member`; raises what the judge raises."""
        return self._judge.rate([row["prompt"] for row in rows], responses)

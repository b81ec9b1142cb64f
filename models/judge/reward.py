"""Responses rated by a judge while a policy learns: direct RLAIF, without a reward model.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267, section 2.2.2: the expected rating of 1 to 10,
normalised to [-1, 1], is the reward.

Implementation details that matter:
1. The first rank asks, and the others hear of it.
2. A response to a prompt is rated once. Ratings are in the checkpoint, with what they came to;
   what came behind the newest one is on disk, where any judge's answers are. So a run that was
   killed asks nothing again.
3. Asked to stop, a step is finished first: its ratings belong to one batch.
4. A response of which the judge understood nothing gets the mean rating of the batch, which is no
   reason to give it more or less often. (The middle of the scale, `models.judge.judge`'s rule
   for one response, would teach a policy that is rated lower to confuse its judge.) A batch
   without any rating ends the stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.config.judge import JudgeConfig
from models.judge.build import open_judge
from models.judge.chat import Usage
from models.judge.judge import Judge
from models.training import distributed
from models.training.learner import Metrics


class Rater:
    """A judge with the ratings it has given. All ranks call everything, in the same order."""

    def __init__(self, config: JudgeConfig, workdir: Path, seed: int) -> None:
        """Raises what opening the judge raises."""
        self._judge = open_judge(config, workdir, seed) if distributed.is_first() else None
        self._known: dict[str, float | None] = {}
        self._spent = Usage()

    def rate(self, prompts: Sequence[str], responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """Ratings (N,) in [-1, 1] of N responses, and what they took.

        Metrics: `judge_unparsed`, the share that was not understood; `judge_tokens`, of requests
        and answers. Raises ValueError where nothing was understood, and what the judge raises.
        """
        # Rating, whether there is one, and tokens, of each response.
        found = torch.zeros(3, len(responses))
        if self._judge is not None:
            pairs = list(zip(prompts, responses, strict=True))
            found = torch.tensor(self._columns(self._judge, pairs))
        distributed.add_up([found])
        ratings, is_rated = found[0], found[1].bool()
        if not is_rated.any():
            raise ValueError(
                f"the judge's answers about {len(responses)} responses were not understood, none "
                "of them: there is no reward to learn from; see what it says, or take another"
            )
        ratings = torch.where(is_rated, ratings, ratings[is_rated].mean())
        return ratings, {
            "judge_unparsed": 1 - is_rated.float().mean(),
            "judge_tokens": found[2].sum(),
        }

    def summary(self) -> dict[str, float]:
        """What the ratings of the whole run came to; only the first rank knows."""
        assert self._judge is not None
        return {
            "judge_tokens": self._spent.total,
            "judge_cost": self._judge.asker.budget.cost(self._spent),
            "num_rated": len(self._known),
        }

    def state_dict(self) -> dict[str, Any]:
        """Ratings, and what they cost."""
        spent = [self._spent.prompt_tokens, self._spent.completion_tokens]
        return {"known": dict(self._known), "spent": spent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._known = dict(state["known"])
        self._spent = Usage(*state["spent"])

    def _columns(self, judge: Judge, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        keys = [_key(*pair) for pair in pairs]
        tokens = self._ask(judge, dict(zip(keys, pairs, strict=True)))
        ratings = [self._known[key] for key in keys]
        return [
            [rating or 0.0 for rating in ratings],
            [float(rating is not None) for rating in ratings],
            [float(tokens.pop(key, 0)) for key in keys],
        ]

    def _ask(self, judge: Judge, pairs: dict[str, tuple[str, str]]) -> dict[str, int]:
        """Learn the ratings that are not known yet; returns the tokens that each took."""
        new = {key: pair for key, pair in pairs.items() if key not in self._known}
        verdicts = judge.score([prompt for prompt, _ in new.values()], [r for _, r in new.values()])
        judge.asker.forget()
        for key, verdict in zip(new, verdicts, strict=True):
            self._known[key] = verdict.normalised if judge.has_understood(verdict) else None
            self._spent += verdict.usage
        return {key: each.usage.total for key, each in zip(new, verdicts, strict=True)}


def _key(prompt: str, response: str) -> str:
    return hashlib.sha256(f"{prompt}\0{response}".encode(errors="replace")).hexdigest()

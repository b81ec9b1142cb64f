"""A judge's ratings as rewards of a policy: direct RLAIF, without a reward model.

[RLAIF] Lee et al., RLAIF vs. RLHF, arXiv 2309.00267, section 2.2.2: the expected rating of 1 to 10,
normalised to [-1, 1], is the reward.

Implementation details that matter:
1. Rank zero asks, and sends the ratings to the other ranks.
2. A response to a prompt is rated once. The checkpoint has the ratings and what they cost. Answers
   after the newest checkpoint are on disk, as all answers of a judge are, so a run that was killed
   asks nothing again.
3. Asked to stop, the stage finishes the step first, because its ratings belong to one batch.
4. A response without a parsed rating gets the mean rating of the batch, which makes it neither more
   nor less likely. (The middle of the scale, `trimtab.models.judge.judge`'s rule for one response,
   would reward a policy that is rated lower for confusing its judge.) A batch without any rating
   ends the stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.models.config.judge import JudgeConfig
from trimtab.models.judge.build import build_judge
from trimtab.models.judge.chat import Usage
from trimtab.models.judge.judge import Judge
from trimtab.models.nets.device import current_device
from trimtab.models.training import distributed
from trimtab.models.training.learner import Metrics


class JudgeReward:
    """A judge and its ratings so far. All ranks call all methods, in the same order."""

    def __init__(self, config: JudgeConfig, workdir: Path, seed: int) -> None:
        """Raises as `build_judge` does."""
        self._judge = build_judge(config, workdir, seed) if distributed.is_rank_zero() else None
        self._known: dict[str, float | None] = {}
        self._spent = Usage()

    def rate(self, prompts: Sequence[str], responses: Sequence[str]) -> tuple[Tensor, Metrics]:
        """Ratings (N,) in [-1, 1] of N responses, and metrics.

        Metrics: `judge_unparsed`, the share without a parsed rating; `judge_tokens`, of requests
        and answers, which only rank zero knows. Raises ValueError if no rating could be parsed, and
        what the judge raises.
        """
        # Of each response: rating, and whether there is one.
        columns = torch.zeros(2, len(responses), device=current_device())
        num_tokens = 0
        if self._judge is not None:
            keys = [key_of(*pair) for pair in zip(prompts, responses, strict=True)]
            num_tokens = self._rate_new(self._judge, keys, prompts, responses)
            known = [self._known[key] for key in keys]
            columns[0] = torch.tensor([rating or 0.0 for rating in known])
            columns[1] = torch.tensor([rating is not None for rating in known])
        distributed.all_reduce_sum([columns])
        columns = columns.cpu()
        ratings, is_rated = columns[0], columns[1].bool()
        if not is_rated.any():
            raise ValueError(
                f"none of the judge's answers about {len(responses)} responses could be parsed, so "
                "there is no reward to learn from: read its answers, or use another judge"
            )
        ratings = torch.where(is_rated, ratings, ratings[is_rated].mean())
        return ratings, {
            "judge_unparsed": 1 - is_rated.float().mean(),
            "judge_tokens": torch.tensor(num_tokens, device="cpu"),
        }

    def summary(self) -> dict[str, float]:
        """Tokens, cost and number of all ratings of the stage; for rank zero only."""
        assert self._judge is not None
        return {
            "judge_tokens": self._spent.total,
            "judge_cost": self._judge.chat.budget.cost(self._spent),
            "num_rated": len(self._known),
        }

    def state_dict(self) -> dict[str, Any]:
        """The ratings and their tokens."""
        return {"known": dict(self._known), "spent": list(astuple(self._spent))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._known = dict(state["known"])
        self._spent = Usage(*state["spent"])

    def _rate_new(
        self, judge: Judge, keys: Sequence[str], prompts: Sequence[str], responses: Sequence[str]
    ) -> int:
        """Ask for the ratings that are not known yet; returns the tokens that these took."""
        new = {
            key: (prompt, response)
            for key, prompt, response in zip(keys, prompts, responses, strict=True)
            if key not in self._known
        }
        verdicts = judge.score([prompt for prompt, _ in new.values()], [r for _, r in new.values()])
        judge.chat.clear_memory()
        for key, verdict in zip(new, verdicts, strict=True):
            self._known[key] = verdict.normalised if judge.is_parsed(verdict) else None
        used = sum((verdict.usage for verdict in verdicts), Usage())
        self._spent += used
        return used.total


def key_of(prompt: str, response: str) -> str:
    """What a response to a prompt is remembered by."""
    return hashlib.sha256(f"{prompt}\0{response}".encode(errors="replace")).hexdigest()

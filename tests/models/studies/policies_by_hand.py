"""Policies of a study in a few rows: training curves, answers and verdicts written by hand."""

from __future__ import annotations

from typing import Any

Files = dict[str, Any]

PROMPT = "<user> reverse the list a b c <assistant>"
GOOD, BAD = "sure c b a done", ""  # of gold 1 and 0


def verdict(net: float) -> dict[str, float]:
    """Wins and losses that are .5 together."""
    return {"win": 0.25 + net / 2, "tie": 0.5, "lose": 0.25 - net / 2, "net": net}


def judged(net: float, **others: float) -> Files:
    """Verdicts of a comparison on the main set, and on `others` (held_out, forget)."""
    nets = {"main": net, **others}
    return {"judgement.json": {f"{place}_gold": verdict(n) for place, n in nets.items()}}


def answered(kl: float = 1.0) -> Files:
    return {"responses.jsonl": [{"set": "main", "gold": 0.5, "kl": kl, "length": 5}]}


def trained(
    kl: list[float],
    score: list[float] | None = None,
    perplexity: list[float] | None = None,
    gold: list[float] | None = None,
    kl_coef: list[float] | None = None,
    critic_steps: int = 0,
) -> Files:
    """A policy's curves, a value a step: of gold so many tenths of the samples are right; in the
    first `critic_steps` the critic is trained alone."""
    score = score or [float(n) for n in range(len(kl))]
    perplexity = perplexity or [2.0] * len(kl)
    monitors = [
        {
            "score": s,
            "kl": k,
            "perplexity": p,
            "response_length": 5.0,
            "score_std": 2.0,
            "kl_coef": c,
        }
        for s, k, p, c in zip(score, kl, perplexity, kl_coef or [0.1] * len(kl), strict=True)
    ]
    for row in monitors[critic_steps:]:
        row["policy_clip_fraction"] = 0.0
    metrics: list[dict[str, Any]] = []
    for n, measured in enumerate(monitors, start=1):
        metrics += [{"step": n, "progress": [n, len(monitors)]}, {"step": n, "metrics": measured}]
    rollouts = [
        {"step": n, "prompt": PROMPT, "response": GOOD if index < 10 * right else BAD, "score": 0.0}
        for n, right in enumerate(gold or [], start=1)
        for index in range(10)
    ]
    return {"metrics.jsonl": metrics, "rollouts.jsonl": rollouts}


def scored(*scores: float) -> Files:
    """Answers to the main prompts, by their scores."""
    return {"responses.jsonl": [{"set": "main", "score": score} for score in scores]}


def policy(name: str, net: float, kl: list[float], **curves: Any) -> dict[str, Files]:
    """All roles of one policy that is judged against SFT; at its start scores are 0, spread 2."""
    return {
        f"eval_start_{name}": scored(-2.0, 2.0),
        f"policy_{name}": trained(kl, **curves),
        f"eval_{name}": answered(kl[-1]),
        f"judge_{name}": judged(net),
    }

"""The collapse guard: reads the PPO monitors and says when, and why, a run has gone wrong.

Collapse shows as rising reward with longer responses and falling perplexity [PPO section 5.2], or
as a policy far from its reference.

Deviations:
1. Rising reward with responses that dwindle is a collapse too: a scorer that dislikes a small
   model's rambling is highest where nothing is said, and there perplexity does not fall.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.models.config.policy import CollapseConfig


def collapse_reason(history: Sequence[dict[str, float]], config: CollapseConfig) -> str | None:
    """Why the run has collapsed, or `None`; `history` holds the monitors of every step so far."""
    if len(history) < 2 * config.window:
        return None
    start = _means(history[: config.window])
    now = _means(history[-config.window :])
    if now["kl"] > config.max_kl:
        return (
            f"KL to the reference is {now['kl']:.1f} nats per response over the last "
            f"{config.window} steps, limit {config.max_kl}"
        )
    longer = now["response_length"] > config.length_growth * start["response_length"]
    shorter = now["response_length"] < config.length_drop * start["response_length"]
    narrower = now["perplexity"] < 1 + config.perplexity_drop * (start["perplexity"] - 1)
    if now["score"] > start["score"] and ((longer and narrower) or shorter):
        return (
            f"score rose from {start['score']:.2f} to {now['score']:.2f} while length went from "
            f"{start['response_length']:.1f} to {now['response_length']:.1f} and perplexity from "
            f"{start['perplexity']:.2f} to {now['perplexity']:.2f}: the pattern of reward hacking"
        )
    return None


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    names = ("score", "kl", "response_length", "perplexity")
    return {name: sum(row[name] for row in rows) / len(rows) for name in names}

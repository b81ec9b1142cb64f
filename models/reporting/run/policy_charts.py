"""Plots about the policies: PPO's curves, wins and losses, the frontier, and the cost of it all.

[DPO] Rafailov et al., Direct Preference Optimization, arXiv 2305.18290.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.kit.charts import (
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    RED,
    SKY,
    Chart,
    Panel,
    policy_style,
    smooth,
)
from trimtab.models.reporting.kit.names import MEASURE_NAMES, SETS, policy_name
from trimtab.models.reporting.run.curves import Curve
from trimtab.models.reporting.run.policies import Policy
from trimtab.models.reporting.run.scorecard import Scorecard, StageCost
from trimtab.models.reporting.run.verdict import answer_of

MAIN = "main"


def curve_charts(curves: Mapping[str, Curve]) -> list[Chart]:
    """One panel a monitor, a line a run."""
    if not curves:
        return []
    proxies = {
        name: [(value - _start(curve.score)) / (curve.score_std or 1.0) for value in curve.score]
        for name, curve in curves.items()
    }
    charts = [
        _lines(
            "The score PPO is trained on",
            "change of mean score\n(in spreads at the start)",
            curves,
            proxies,
            "The proxy: each run's own scorer, so only its course compares between runs.",
        )
    ]
    gold = {name: curve.gold for name, curve in curves.items() if curve.gold}
    if gold:
        note = "What the same answers are truly worth; PPO never sees it."
        charts.append(
            _lines(
                "Gold score of the sampled answers", "mean gold score (0 to 1)", curves, gold, note
            )
        )
    for title, unit, field in (
        ("KL to the reference", "KL (nats per answer)", "kl"),
        ("Perplexity under the policy", "perplexity (per token)", "perplexity"),
        ("Length of the answers", "length (tokens)", "response_length"),
    ):
        values = {name: getattr(curve, field) for name, curve in curves.items()}
        charts.append(_lines(title, unit, curves, values, ""))
    return charts


def _lines(
    title: str,
    y_label: str,
    curves: Mapping[str, Curve],
    values: Mapping[str, Sequence[float]],
    note: str,
) -> Chart:
    ends = {}
    with Panel() as panel:
        for name, curve in curves.items():
            if name not in values:
                continue
            colour, line, _ = policy_style(name)
            steps = curve.steps[: len(values[name])]
            panel.axes.plot(steps, values[name], color=colour, alpha=0.2, linewidth=0.8)
            panel.axes.plot(
                steps, smooth(values[name]), color=colour, linestyle=line, label=policy_name(name)
            )
            end = values[name][-max(1, len(values[name]) // 10) :]
            start, last = _start(values[name]), sum(end) / len(end)
            ends[name] = f"{policy_name(name)} {_plain(start)} → {_plain(last)}"
        panel.axes.legend(fontsize=8)
        # The title names the two ends of the list; the note has every run.
        names = list(dict.fromkeys((next(iter(ends)), list(ends)[-1])))
        others = [text for name, text in ends.items() if name not in names]
        rest = f"Between them: {'; '.join(others)}." if others else ""
        return panel.chart(
            f"{title}: {'; '.join(ends[name] for name in names)}.",
            f"{note} {rest}",
            "PPO step",
            y_label,
        )


def _plain(value: float) -> str:
    """Two decimals, never a negative zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _start(values: Sequence[float]) -> float:
    part = values[: max(1, len(values) // 10)]
    return sum(part) / len(part)


def outcome_charts(card: Scorecard) -> list[Chart]:
    """Wins, ties and losses against SFT, a panel a prompt set; by gold or held-out models."""
    judged = [policy for policy in card.policies if policy.against_sft]
    charts = []
    for place in dict.fromkeys(name for policy in judged for name in policy.against_sft):
        if place == "validation":  # promotion is decided on it; the tables hold its numbers
            continue
        for measure in ("gold", "judge_score"):
            shown = [p for p in judged if measure in p.against_sft.get(place, {})]
            if shown:
                charts.append(_outcomes(shown, place, measure))
    return charts


def _outcomes(shown: Sequence[Policy], place: str, measure: str) -> Chart:
    with Panel(height=1.35 + 0.42 * len(shown)) as panel:
        places = list(range(len(shown)))[::-1]
        left = [0.0] * len(shown)
        for key, colour, hatch in (("win", GREEN, ""), ("tie", LIGHT, ""), ("lose", RED, "///")):
            share = [
                100 * getattr(policy.against_sft[place][measure], key).value for policy in shown
            ]
            panel.axes.barh(
                places, share, left=left, color=colour, hatch=hatch, edgecolor="white", label=key,
                height=0.7, linewidth=0.5,
            )  # fmt: skip
            for y, start, width in zip(places, left, share, strict=True):
                if width >= 8:
                    text = panel.axes.text(
                        start + width / 2, y, f"{width:.0f}", ha="center", va="center", fontsize=9
                    )
                    text.set_bbox(
                        {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
                    )
            left = [start + width for start, width in zip(left, share, strict=True)]
        panel.axes.set_yticks(places, [policy_name(policy.name) for policy in shown])
        panel.axes.set_xlim(0, 100)
        panel.axes.grid(False)
        panel.axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))
        nets = []
        for policy in shown:
            net = policy.against_sft[place][measure].net
            nets.append(f"{policy_name(policy.name)} {net.text('+.0f', 100)}")
        title = _seen(shown, place, measure)
        note = f"Wins minus losses in points: {'; '.join(nets)}."
        return panel.chart(title, note, "share of prompts (%)", "")


def _seen(shown: Sequence[Policy], place: str, measure: str) -> str:
    """Which policies are better or worse than SFT by their whole interval."""
    answers = {
        policy_name(policy.name): answer_of(policy.against_sft[place][measure].net)
        for policy in shown
    }
    parts = []
    for word in ("better", "worse"):
        names = [name for name, answer in answers.items() if answer == word]
        told = "all" if len(names) == len(answers) > 1 else ", ".join(names)
        if names:
            parts.append(f"{word} than SFT: {told}")
    seen = "; ".join(parts) or "none can be told from SFT"
    where = SETS.get(place, place)
    return f"{where[0].upper()}{where[1:]}, by {MEASURE_NAMES[measure]}: {seen}."


def frontier_chart(artifacts: Artifacts, card: Scorecard) -> Chart | None:
    """What a policy's answers are worth for how far it has gone from SFT [DPO figure 2].

    Every policy by its KL to SFT, and the best of 1 ... n answers of SFT as a line.
    None where fewer than two policies answered the main prompts.
    """
    shown = [policy for policy in card.policies if MAIN in policy.sets]
    if len(shown) < 2:
        return None
    measure = "gold" if card.has_gold else "judge_score"
    values = {}
    with Panel(height=4.6) as panel:
        best = artifacts.document("eval_best_of_n", "best_of_k.json").get(MAIN, {})
        if measure in best:
            panel.axes.plot(best["kl_bound"], best[measure], color=GREY, label="best of 1 … n")
        for policy in shown:
            colour, _, marker = policy_style(policy.name)
            answers = policy.sets[MAIN]
            value = getattr(answers, measure)
            values[policy.name] = (answers.kl.value, value.value)
            panel.errorbars(
                [answers.kl.value], [value],
                color=colour, marker=marker, markersize=5, linewidth=0.8, linestyle="none",
                label=policy_name(policy.name),
            )  # fmt: skip
        panel.figure.legend(loc="outside lower center", ncols=2, fontsize=7.5)
        top = max(values, key=lambda name: values[name][1])
        kl, value_of_top = values[top]
        note = (
            "Higher and further to the left is better; bars are 95 % intervals. The KL of a best "
            "of k is at most log k − (k − 1) / k beyond that of what is sampled."
        )
        return panel.chart(
            f"{SETS[MAIN][0].upper()}{SETS[MAIN][1:]}, by {MEASURE_NAMES[measure]}: highest is "
            f"{policy_name(top)} with {value_of_top:.2f}, {kl:.2f} nats from SFT.",
            note,
            "KL to SFT (nats per answer)",
            "mean gold score (0 to 1)" if measure == "gold" else "mean held-out score",
        )


def cost_chart(stages: Sequence[StageCost]) -> Chart | None:
    """Seconds by stage, those of artifacts taken from the store apart."""
    if not stages:
        return None
    names = list(dict.fromkeys(stage.stage for stage in stages))
    counts = Counter(stage.stage for stage in stages)
    total, fresh = (
        sum(stage.seconds for stage in part)
        for part in (stages, [stage for stage in stages if not stage.is_cached])
    )
    by_name = {name: sum(s.seconds for s in stages if s.stage == name) for name in names}
    dearest = max(names, key=by_name.__getitem__)
    with Panel(height=1.2 + 0.26 * len(names)) as panel:
        places = list(range(len(names)))[::-1]
        left = [0.0] * len(names)
        for is_cached, colour, hatch, label in (
            (False, BLUE, "", "made in this run"),
            (True, SKY, "///", "taken from the store (seconds when made)"),
        ):
            seconds = [
                sum(s.seconds for s in stages if s.stage == name and s.is_cached == is_cached)
                for name in names
            ]
            if any(seconds):
                panel.axes.barh(
                    places, seconds, left=left, color=colour, hatch=hatch, edgecolor="white",
                    linewidth=0.3, label=label,
                )  # fmt: skip
            left = [start + width for start, width in zip(left, seconds, strict=True)]
        labels = [name if counts[name] == 1 else f"{name} ×{counts[name]}" for name in names]
        panel.axes.set_yticks(places, labels, fontsize=9)
        panel.axes.grid(False, axis="y")
        if any(stage.is_cached for stage in stages):
            panel.axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), labelcolor=GREY)
        # Without word of what came from the store, nothing is said about this run's share.
        share = f", {fresh:,.0f} s of it in this run" if fresh < total else ""
        title = (
            f"{total:,.0f} s of work{share}; the dearest stage is {dearest} with "
            f"{by_name[dearest]:,.0f} s."
        )
        note = "Seconds each artifact took when it was made."
        return panel.chart(title, note, "seconds", "")

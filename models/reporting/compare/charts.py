"""Plots of a comparison: score against KL to SFT, and wins minus losses against SFT."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.models.reporting.compare.answers import START
from trimtab.models.reporting.compare.methods import Method
from trimtab.models.reporting.kit.charts import BLACK, GREEN, GREY, RED, Chart, Panel, policy_style
from trimtab.models.reporting.kit.names import MEASURE_NAMES, SETS

STANDINGS = {"better": GREEN, "not clear": GREY, "worse": RED}


def frontier(methods: Sequence[Method], judge: str) -> Chart:
    """Every method and seed by KL to SFT and score, as figure 2 of [DPO, arXiv 2305.18290]."""
    with Panel(height=5.6, width=6.2) as panel:
        for method in methods:
            colour, _, marker = policy_style(method.name)
            kl, score = method.means["kl"], method.means[judge]
            if method.path is not None:
                panel.axes.plot(*method.path, color=colour, alpha=0.5, linewidth=1)
            panel.axes.plot(
                kl.by_seed, score.by_seed, marker, color=colour, alpha=0.45, markersize=4
            )
            panel.axes.plot(
                [kl.value], [score.value], marker, color=colour,
                markersize=13 if method.name == START else 8,
                markeredgecolor="white", markeredgewidth=0.6, linestyle="none", label=method.words,
            )  # fmt: skip
        panel.figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        top = max(methods, key=lambda method: method.means[judge].value)
        kl, score = top.means["kl"], top.means[judge]
        return panel.chart(
            f"What is gained for the distance from SFT, by {MEASURE_NAMES[judge]}: highest is "
            f"{top.words} with {score.value:.2f}, {kl.value:.2f} nats from SFT.",
            "Higher and further to the left is better. Large: mean over seeds; small: each seed. "
            "Lines: where PPO was while it trained (by what it sampled to learn from, so they need "
            "not end in the point), and the best of 1 … n answers of SFT.",
            f"KL to SFT (nats per answer), {SETS['main']}",
            "mean gold score (0 to 1)" if judge == "gold" else "mean held-out score",
        )


def chart_against_sft(methods: Sequence[Method], judge: str) -> Chart:
    """Wins minus losses of every method with interval and seeds, the highest rated on top."""
    shown = [method for method in methods if method.against_sft is not None]
    with Panel(height=1.6 + 0.36 * len(shown), width=6.2) as panel:
        panel.axes.axvline(0, color=BLACK, linewidth=0.8)
        for place, method in enumerate(reversed(shown)):
            assert method.against_sft is not None
            net = method.against_sft.net
            colour = STANDINGS[net.standing]
            panel.axes.plot(
                [100 * net.low, 100 * net.high], [place, place], color=colour, linewidth=3
            )
            seeds = [100 * value for value in net.by_seed]
            panel.axes.plot(
                seeds, [place] * len(seeds), "o", color=colour, alpha=0.45, markersize=4
            )
            panel.axes.plot(
                [100 * net.value], [place], "D", color=colour, markersize=7,
                markeredgecolor="white",
            )  # fmt: skip
        panel.axes.set_yticks(range(len(shown)), [method.words for method in reversed(shown)])
        return panel.chart(
            f"Wins minus losses against SFT, by {MEASURE_NAMES[judge]}, on {SETS['main']}.",
            "Diamond: mean over seeds; bar: its 95 % interval over prompts; dots: each seed. Green "
            "is clearly better, red clearly worse, grey neither.",
            "wins minus losses (points)",
        )

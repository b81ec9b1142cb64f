"""The page of a comparison, its plots, and its table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.models.config.reporting import CompareConfig
from trimtab.models.reporting.compare.answers import SFT
from trimtab.models.reporting.compare.methods import Answer, Method
from trimtab.models.reporting.compare.win_matrix import MAIN, Duel, WinMatrix
from trimtab.models.reporting.kit.charts import BLACK, GREEN, GREY, RED, Chart, Panel, policy_style
from trimtab.models.reporting.kit.html import number, render_page, tidy
from trimtab.models.reporting.kit.names import MEASURE_NAMES, SCORE_LABELS, SETS
from trimtab.models.reporting.run.policies import Budget
from trimtab.models.reporting.run_tables import markdown
from trimtab.models.statistics.measured import Spread

# Columns that are left out where no method has such a thing.
FORGET_HEAD = "forget set, lost / won, %"
IF_ANY = (FORGET_HEAD, "samples an answer", "judge's tokens", "judge's cost")
BLUE, ORANGE = "0, 114, 178", "230, 159, 0"


def render(
    config: CompareConfig,
    matrix: WinMatrix,
    methods: Sequence[Method],
    answer: Answer,
    charts: Sequence[Chart],
    seconds: float,
) -> str:
    """The whole page as HTML."""
    filters = {f.__name__: f for f in (spread, net, whole_points, elo, outcomes, shade, judge_name)}
    return render_page(
        "compare.html.j2",
        filters,
        config=config,
        judges={name: MEASURE_NAMES.get(name, f"the judge {name}") for name in matrix.judges},
        matrix=matrix,
        methods=methods,
        rows=table_rows(methods, matrix.judges[0]),
        answer=answer,
        drawn=charts,
        seconds=seconds,
        grids={judge: matrix.duels_on(MAIN, judge) for judge in matrix.judges},
        ratings={(row.judge, row.policy): row for row in matrix.rated},
        kinds={judge: kinds_of(matrix, judge) for judge in matrix.judges},
    )


def spread(mean: Spread, digits: int = 3) -> str:
    """A mean over seeds with their standard deviation, where there are several."""
    return tidy(f"{mean.value:.{digits}f}{_deviation(mean, digits)}")


def _deviation(mean: Spread, digits: int = 0, scale: float = 1) -> str:
    return f" ± {scale * mean.std:.{digits}f}" if len(mean.by_seed) > 1 else ""


def net(mean: Spread) -> str:
    """A difference of shares in points, its interval over prompts and its spread over seeds."""
    ends = f"[{100 * mean.low:+.0f}, {100 * mean.high:+.0f}]"
    return tidy(f"{whole_points(mean)} {ends}{_deviation(mean, scale=100)}")


def outcomes(duel: Duel) -> str:
    """Shares of wins, ties and losses in percent, each with its interval."""
    shares = {"win": duel.win, "tie": duel.tie, "lose": duel.lose}
    return ", ".join(f"{word} {number(share, '.0f', 100)}" for word, share in shares.items())


def whole_points(mean: Spread) -> str:
    """A difference of shares in whole points."""
    points = round(100 * mean.value)
    return tidy(f"{points:+d}") if points else "0"


def elo(rating: Spread) -> str:
    """A rating with its interval over prompts and its spread over seeds."""
    return tidy(rating.text(".0f") + _deviation(rating))


def shade(mean: Spread) -> str:
    """A cell's colour: the stronger, the further from 0; half of all prompts is the strongest."""
    strength = min(1.0, 2 * abs(mean.value))
    return f"rgba({BLUE if mean.value > 0 else ORANGE}, {0.6 * strength:.2f})"


def judge_name(name: str) -> str:
    """A judge's name for people."""
    if name in MEASURE_NAMES:
        return "the mean of the held-out ones" if name == "judge_score" else MEASURE_NAMES[name]
    if not name.startswith("judge_"):
        return f"the judge {name}"
    return f"held-out reward model {int(name.removeprefix('judge_')) + 1}"


def kinds_of(matrix: WinMatrix, judge: str) -> dict[str, dict[str, Duel]]:
    """By sets of prompts, and by categories of the main ones, every policy against SFT."""
    kinds: dict[str, dict[str, Duel]] = {}
    for duel in matrix.duels:
        if (duel.judge, duel.theirs) == (judge, SFT):
            kinds.setdefault(SETS.get(duel.place, duel.place), {})[duel.ours] = duel
    for category, duels in matrix.by_category.items():
        by_judge = {duel.ours: duel for duel in duels if duel.judge == judge}
        if by_judge:
            kinds[f"main: {category}"] = by_judge
    return kinds


def methods_table(config: CompareConfig, methods: Sequence[Method], judge: str) -> str:
    """The table of all methods in Markdown, for documentation."""
    rows = table_rows(methods, judge)
    table = markdown(list(rows[0]), [list(row.values()) for row in rows])
    seeds = ", ".join(map(str, config.seeds))
    return f"Recipe `{config.recipe}`, seeds {seeds}, by {MEASURE_NAMES[judge]}.\n\n{table}\n"


def table_rows(methods: Sequence[Method], judge: str) -> list[dict[str, str]]:
    """Of each method its cells by the heads of their columns, for the page and for Markdown."""
    rows = [_cells(method, judge) for method in methods]
    left_out = {head for head in IF_ANY if not any(row[head] for row in rows)}
    return [{head: row[head] for head in row if head not in left_out} for row in rows]


def _cells(method: Method, judge: str) -> dict[str, str]:
    """By the head of its column; empty where there is no such thing, as no judge or one sample."""
    duel, forget, taken = method.against_sft, method.forget, method.budget
    controlled, costs = method.rated.controlled, taken or Budget()
    shares = [] if duel is None else [duel.win, duel.tie, duel.lose]
    lost = [] if forget is None else [forget.lose, forget.win]
    return {
        "method": method.words,
        "gold score" if judge == "gold" else "held-out score": spread(method.means[judge]),
        "win / tie / lose against SFT, %": " / ".join(f"{100 * s.value:.0f}" for s in shares),
        "wins − losses, points": "" if duel is None else net(duel.net),
        "win rate at equal length, %": "" if controlled is None else number(controlled, ".0f", 100),
        "KL, nats": spread(method.means["kl"], 2),
        "length, tokens": spread(method.means["length"], 1),
        FORGET_HEAD: " / ".join(f"{100 * s.value:.0f}" for s in lost),
        "responses sampled": f"{taken.num_sampled:,}" if taken else "",
        "tokens trained": f"{taken.num_trained_tokens:,}" if taken else "",
        "seconds": f"{taken.seconds:,.1f}" if taken else "",
        "samples an answer": str(costs.samples_per_answer) if costs.samples_per_answer > 1 else "",
        "judge's tokens": f"{costs.judge_tokens:,}" if costs.judge_tokens else "",
        "judge's cost": f"{costs.judge_cost:.4g}" if costs.judge_cost else "",
    }


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
                markersize=13 if method.name == SFT else 8,
                markeredgecolor="white", markeredgewidth=0.6, linestyle="none", label=method.words,
            )  # fmt: skip
        panel.figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        top = max(methods, key=lambda method: method.means[judge].value)
        kl, score = top.means["kl"], top.means[judge]
        return panel.chart(
            f"What is gained for the distance from SFT, by {MEASURE_NAMES[judge]}: highest is "
            f"{top.words} with {score.value:.2f}, {kl.value:.2f} nats from SFT.",
            "Higher and further to the left is better. Large: mean over seeds; small: each seed. "
            "Lines: where a policy was in training (by what it sampled to learn from, so they need "
            "not end in the point), and the best of 1 … n answers of SFT.",
            f"KL to SFT (nats per answer), {SETS['main']}",
            SCORE_LABELS[judge],
        )


def chart_against_sft(methods: Sequence[Method], judge: str) -> Chart:
    """Wins minus losses of every method with interval and seeds, the highest rated on top."""
    shown = [method for method in methods if method.against_sft is not None]
    with Panel(height=1.6 + 0.36 * len(shown), width=6.2) as panel:
        panel.axes.axvline(0, color=BLACK, linewidth=0.8)
        for place, method in enumerate(reversed(shown)):
            assert method.against_sft is not None
            net = method.against_sft.net
            seeds = [100 * value for value in net.by_seed]
            for points, marker, look in (
                ([100 * net.low, 100 * net.high], "-", {"linewidth": 3}),
                (seeds, "o", {"alpha": 0.45, "markersize": 4}),
                ([100 * net.value], "D", {"markersize": 7, "markeredgecolor": "white"}),
            ):
                places, colour = [place] * len(points), STANDINGS[net.standing]
                panel.axes.plot(points, places, marker, color=colour, **look)
        panel.axes.set_yticks(range(len(shown)), [method.words for method in reversed(shown)])
        return panel.chart(
            f"Wins minus losses against SFT, by {MEASURE_NAMES[judge]}, on {SETS['main']}.",
            "Diamond: mean over seeds; bar: its 95 % interval over prompts; dots: each seed. Green "
            "is clearly better, red clearly worse, grey neither.",
            "wins minus losses (points)",
        )

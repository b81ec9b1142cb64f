"""The comparison's page (jinja2, autoescaped)."""

FIRST_SCREEN = """
<header><h1>Ways to optimise a policy, side by side: {{ config.recipe }}</h1>
<div class="meta">Recipe {{ config.recipe }} ·
{% if config.seeds|length == 1 %}seed{% else %}seeds{% endif %} {{ config.seeds|join(', ') }} ·
{{ config.arms|length }} methods from one SFT policy a seed, on the same data, scorers and sampling
budget · {{ '{:,.0f}'.format(seconds) }} s of work</div></header>
<div class="verdict {{ answer.status }}"><strong>{{ answer.sentence }}</strong>
{% for detail in answer.details %}<p>{{ detail }}</p>{% endfor %}
<p class="note">Clearly: of wins minus losses on the main test prompts both the whole 95 % interval
over prompts and every seed lie on one side of 0. Nothing corrects for looking at several methods.
{%- if config.seeds|length == 1 %} Here is one seed: another run of the same method may end
elsewhere, which the interval does not know.{% endif %}</p></div>
"""

TABLE = """
<h2>All methods</h2>
<p class="note">Highest rated first. {% if config.seeds|length > 1 %}Means over
{{ config.seeds|length }} seeds; behind ± the standard deviation over seeds.
{% else %}One seed: nothing can be said of the spread. {% endif %}
Brackets: 95 % interval over prompts.</p>
<div class="scroll"><table class="wide"><tr><th></th><th>Method</th>
<th>{{ 'Gold score (0 to 1)' if judge == 'gold' else 'Held-out score' }}</th>
<th>Win / tie / lose against SFT (%)</th><th>Wins − losses (points)</th>
<th>Win rate at equal length (%)</th>
<th>KL to SFT (nats)</th><th>Length (tokens)</th>
{% if has_forget %}<th>Forget set: lost / won (%)</th>{% endif %}
<th>Responses sampled</th><th>Tokens trained</th><th>Seconds</th>
{% if has_samples %}<th>Samples an answer</th>{% endif %}
{% if has_judge %}<th>Judge's tokens</th><th>Judge's cost</th>{% endif %}</tr>
{% for method in methods %}{% set duel = method.against_sft %}
<tr{% if not duel %} class="start"{% endif %}><td class="n">{{ loop.index }}</td>
<td class="name">{{ method.words }}</td>
<td class="n">{{ method.means[judge]|spread }}</td>
{% if duel %}
<td class="n">{{ '%.0f / %.0f / %.0f'|format(100 * duel.win.value, 100 * duel.tie.value,
 100 * duel.lose.value) }}</td>
<td class="n status {{ {'better': 'holds', 'worse': 'fails'}.get(duel.net.standing,
 'unclear-text') }}">{{ duel.net|net }}</td>
<td class="n">{{ method.rated.controlled|share }}</td>
{% else %}<td>–</td><td>–</td><td>–</td>{% endif %}
<td class="n">{{ method.means.kl|spread(2) }}</td>
<td class="n">{{ method.means.length|spread(1) }}</td>
{% if has_forget %}<td class="n">{% if method.forget %}
{{ '%.0f / %.0f'|format(100 * method.forget.lose.value, 100 * method.forget.win.value) }}
{%- else %}–{% endif %}</td>{% endif %}
{% if method.budget %}
<td class="n">{{ '{:,}'.format(method.budget.num_sampled) }}</td>
<td class="n">{{ '{:,}'.format(method.budget.num_trained_tokens) }}</td>
<td class="n">{{ '{:,.1f}'.format(method.budget.seconds) }}</td>
{% if has_samples %}<td class="n">{{ method.budget.samples_per_answer }}</td>{% endif %}
{% if has_judge %}<td class="n">{{ '{:,}'.format(method.budget.judge_tokens) }}</td>
<td class="n">{{ '%.4g'|format(method.budget.judge_cost) }}</td>{% endif %}
{% else %}<td>–</td><td>–</td><td>–</td>
{% if has_samples %}<td>–</td>{% endif %}{% if has_judge %}<td>–</td><td>–</td>{% endif %}
{% endif %}</tr>
{% endfor %}</table></div>
<p class="note">Cost is a seed's, beyond SFT: the policy, the answers it learned from or rehearsed,
and earlier policies it went on from. What scorers took serves all methods and is not counted; DPO
and CPL need no scorer. A token counts for each model that learns from it.
{% if has_judge %} The judge's tokens and cost are of rating what a policy learned from, in the
currency of the prices that were given.{% endif %}
{% if 'best_of_n' in config.arms %}The best of n trains nothing, but samples
{{ config.num_candidates }} answers each time it is asked.
{% endif %}Win rate at equal length: what a logistic regression on the difference of lengths
predicts where there is none, ties as half (as length-controlled AlpacaEval).
{% if has_forget %}The forget set is what SFT was expert at.{% endif %}</p>
"""

MATRIX = """
<h2>Every two policies</h2>
<p class="note">Wins minus losses of the row's policy against the column's, in points, on the main
test prompts; blue is better, orange worse, bold clearly so (as above). Columns have the rows'
numbers; rest on a number to see its interval.</p>
{% for judge, grid in grids.items() %}
{% if not loop.first %}<details><summary>The same by {{ judges[judge] }}</summary>{% else %}
<h3>By {{ judges[judge] }}</h3>{% endif %}
<div class="scroll"><table class="grid"><tr><th></th>
{% for method in methods %}<th class="n">{{ loop.index }}</th>{% endfor %}</tr>
{% for method in methods %}
<tr><td>{{ loop.index }} {{ method.words }}</td>
{% for rival in methods %}{% set duel = grid.get((method.name, rival.name)) %}
{% if duel %}<td class="n" title="{{ duel.net|net }}" style="background: {{ duel.net|shade }}">
{%- if duel.net.standing != 'not clear' %}<b>{{ duel.net|whole }}</b>
{%- else %}{{ duel.net|whole }}{% endif %}</td>
{% else %}<td></td>{% endif %}{% endfor %}</tr>
{% endfor %}</table></div>
{% if not loop.first %}</details>{% endif %}
{% endfor %}
"""

KINDS = """
<h2>Kinds of prompts apart</h2>
<p class="note">Wins minus losses against SFT, in points, on each set of prompts and each category
of the main ones; colours as above. Rest on a number to see wins, ties and losses in percent. Few
prompts a kind make wide intervals.</p>
{% for judge, table in kinds.items() %}{% if table %}
<details{% if loop.first %} open{% endif %}><summary>By {{ judges[judge] }}</summary>
<div class="scroll"><table class="grid"><tr><th></th>
{% for kind in table %}<th>{{ kind }}</th>{% endfor %}</tr>
{% for method in methods if method.against_sft %}<tr><td>{{ method.words }}</td>
{% for duels in table.values() %}{% set duel = duels[method.name] %}
<td class="n" title="{{ duel|outcomes }}" style="background: {{ duel.net|shade }}">
{{- duel.net|net }}</td>
{% endfor %}</tr>{% endfor %}</table></div></details>
{% endif %}{% endfor %}
"""

RATINGS = """
<h2>Ratings, and whether judges agree</h2>
<div class="scroll"><table><tr><th>Policy</th>
{% for judge in grids %}<th>Rating by {{ judges[judge] }}</th>
<th>Win rate against SFT, plain → at equal length (%)</th><th>Effect of length</th>{% endfor %}</tr>
{% for method in methods %}<tr><td>{{ method.words }}</td>
{% for judge in grids %}{% set found = ratings[judge, method.name] %}
<td class="n">{{ found.rating|elo }}</td>
{% if found.plain %}<td class="n">{{ '%.0f → %.0f'|format(100 * found.plain.value,
 100 * found.controlled.value) }}</td><td class="n">{{ '%+.2f'|format(found.length_effect)|tidy }}
</td>{% else %}<td>–</td><td>–</td>{% endif %}{% endfor %}</tr>
{% endfor %}</table></div>
<p class="note">Bradley-Terry ratings of all games, on Elo's scale: their mean is 1000, and 400
points are odds of 10 to 1, a tie being half a win. Intervals resample prompts. Effect of length: in
logits; above 0 the longer answer tends to win.
{%- if 'gold' in grids %} A method that the held-out reward models rate far higher than gold does
has found what reward models have in common, and not what they were to learn.{% endif %}</p>
{% if agreements %}
<div class="scroll"><table><tr><th>Judges</th><th>Games</th><th>Same verdict (%)</th>
<th>Cohen's kappa</th></tr>
{% for row in agreements %}
<tr><td>{{ row.first|judge }} and {{ row.second|judge }}</td>
<td class="n">{{ '{:,}'.format(row.num_games) }}</td>
<td class="n">{{ row.share|share }}</td>
<td class="n">{{ '–' if row.kappa is none else row.kappa|kappa }}</td></tr>
{% endfor %}</table></div>
<p class="note">Win, tie or lose in games of every two policies on the main test prompts that both
judged. Kappa is agreement beyond chance: 1 is perfect, 0 is chance.</p>
{% endif %}
{% if judge_models %}
<div class="scroll"><table><tr><th>Judge model</th><th>Pairs of answers asked about</th>
<th>Orders disagree (%)</th><th>Favours the first (points)</th><th>Not understood</th>
<th>Tokens</th><th>Cost</th></tr>
{% for name, asked in judge_models.items() %}<tr><td>{{ name }}</td>
<td class="n">{{ '{:,}'.format(asked.num_asked) }}</td>
<td class="n">{{ '%.0f'|format(100 * asked.share_same_position) }}</td>
<td class="n">{{ '%+.0f'|format(100 * asked.position_bias)|tidy }}</td>
<td class="n">{{ '{:,}'.format(asked.num_unparsed) }}</td>
<td class="n">{{ '{:,}'.format(asked.prompt_tokens + asked.completion_tokens) }}</td>
<td class="n">{{ '%.2f'|format(asked.cost) }}</td></tr>
{% endfor %}</table></div>
<p class="note">Each two different answers to a prompt are asked about once, in both orders; where
these disagree it is a tie, and so are equal answers.</p>
{% endif %}
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Ways to optimise a policy: {{ config.recipe }}</title>
<style>{{ stylesheet }}{{ own_style }}</style></head><body>
{% from "macros" import charts %}
{% include "first_screen" %}
{% include "table" %}
{{ charts(drawn) }}
{% include "matrix" %}
{% include "kinds" %}
{% include "ratings" %}
</body></html>
"""

STYLE = """
body { max-width: 76rem; }
table.wide { font-size: .82rem; } table.wide th { vertical-align: bottom; }
td.name { min-width: 11rem; } tr.start { background: var(--box); }
table.grid { width: auto; } table.grid td.n, table.grid th.n { text-align: right;
  padding: .25rem .4rem; min-width: 2.6rem; }
"""

TEMPLATES = {
    "page": PAGE,
    "first_screen": FIRST_SCREEN,
    "table": TABLE,
    "matrix": MATRIX,
    "kinds": KINDS,
    "ratings": RATINGS,
}

"""The page's template (jinja2, autoescaped). Python, not data files: it travels with the code."""

from models.reporting.run.template_policies import POLICIES
from models.reporting.run.template_revisions import REVISIONS
from models.reporting.run.template_sections import HUMAN_VOTES, LABELS, LINEAGE, SAMPLES, SCORERS

MACROS = """
{% macro charts(items) %}
{% if items %}<div class="charts">
{% for chart in items %}
<figure><figcaption><b>{{ chart.title|tidy }}</b></figcaption>
<img src="{{ chart.source }}" alt="{{ chart.alt }}">
{% if chart.note.strip() %}<div class="note">{{ chart.note.strip()|tidy }}</div>{% endif %}
</figure>
{% endfor %}</div>{% endif %}
{% endmacro %}
"""

FIRST_SCREEN = """
<header><h1>{{ card.title }}</h1>
<div class="meta">{% if card.recipe %}Recipe {{ card.recipe }} · {% endif %}seed {{ card.seed }}
{%- if card.stages %} · {{ card.stages|length }} artifacts,
{{ '{:,.0f}'.format(card.total_seconds) }} s of work{% endif %}
 · in brackets: 95 % intervals, Wilson's of shares, the bootstrap's of all else</div></header>

<div class="verdict {{ {'better': 'better', 'worse': 'worse',
 'not shown to be better': 'unclear'}.get(card.verdict.answer, '') }}">
<strong>{{ card.verdict.sentence|tidy }}</strong>
{% for detail in card.verdict.details %}<p>{{ detail|tidy }}</p>{% endfor %}
{% for warning in card.warnings %}<p class="warning"><b>⚠</b> {{ warning|tidy }}</p>{% endfor %}
</div>

<div class="cards">
<section class="card">{% if card.data.rows %}<h2>What was read</h2>{% include "rows" %}
{% else %}<h2>What came in</h2>{% endif %}<ul>
<li>{{ '{:,}'.format(card.data.num_pairs) }} preference pairs:
{{ '{:,}'.format(card.data.num_train) }} to train, {{ '{:,}'.format(card.data.num_validation) }}
to validate, {{ '{:,}'.format(card.data.num_test) }} to test</li>
<li>{{ card.data.pairs_by_category|length }} categor
{%- if card.data.pairs_by_category|length == 1 %}y{% else %}ies{% endif %}:
{{ (card.data.pairs_by_category|list)[:12]|join(', ') }}
{%- if card.data.pairs_by_category|length > 12 %}, …{% endif %}</li>
{% if card.data.planted %}
<li>{% if flip == 'planted flip' %}planted on purpose{% else %}planted, or wrong by the judge
{%- endif %}: {{ '%.1f'|format(100 * card.data.planted.flipped) }} % flipped labels,
{{ '%.1f'|format(100 * card.data.planted.ambiguous) }} % near-ties</li>
{% else %}<li>real labels: nobody knows which of them are wrong</li>{% endif %}
{% if card.data.rows %}{% for detail in card.data.rows.details() %}
<li>{{ detail }}</li>{% endfor %}{% endif %}
</ul></section>

<section class="card"><h2>What was wrong with the labels</h2><ul>
{% if card.ai_labeler %}
<li>a judge model agrees with {{ card.ai_labeler.alignment|percent }} of
{{ '{:,}'.format(card.ai_labeler.num_pairs) }} labels as given
{%- if card.ai_labeler.truth_alignment %}, and with {{ card.ai_labeler.truth_alignment|percent }}
of right ones{% endif %}{% if card.ai_labeler.num_labelled %};
{{ '{:,}'.format(card.ai_labeler.num_labelled) }} training pairs carry its label{% endif %}</li>
{% endif %}
{% if card.data.planted %}
<li>{{ '%.1f'|format(100 * card.data.planted.wrong) }} % of the labels contradict the gold
scorer</li>{% endif %}
{% for mode, noise in card.label_noise.items() %}
<li>{{ noise.num_members }} reward models
{%- if mode == 'cross_fitted' %}, none voting on what it was trained on,{% endif %} contradict
{{ noise.share_negative|percent }} of training labels
{%- if noise.auroc_flipped %}; they find the {{ flip }}s
with AUROC {{ noise.auroc_flipped|number }}{% endif %}</li>
{% else %}<li>no vote was taken</li>
{% endfor %}
{% for mode, by_split in card.human_votes.items() %}
{% if 'test' in by_split and by_split.test.in_both_orders %}
{% set ranks = by_split.test.in_both_orders %}
<li>rank correlation of strength ({{ mode|replace('_', '-') }} ensemble) with people's votes on
{{ '{:,}'.format(by_split.test.num_pairs) }} test pairs: {{ ranks.strength|number }}
{%- if ranks.length %}; of the difference in words, {{ ranks.length|number }}{% endif %}</li>
{% endif %}
{% endfor %}
{% if card.relabelling %}
<li>{{ '{:,}'.format(card.relabelling.num_flipped) }} labels were flipped
{%- if card.relabelling.flip_precision %}: {{ card.relabelling.flip_precision|percent }} of these
were wrong, and {{ card.relabelling.flip_recall|percent }} of all wrong ones were caught{% endif %}
</li>
{% if card.relabelling.right_before %}
<li>right labels: {{ '%.1f'|format(100 * card.relabelling.right_before.value) }} % before,
{{ card.relabelling.right_after|percent }} after</li>{% endif %}
{% endif %}
</ul></section>

<section class="card"><h2>What came out: reward models</h2><ul>
{% for name, scorer in card.scorers.items() %}
<li>{{ scorer_names[name] }}:
{% if scorer.clean_accuracy %}right on {{ scorer.clean_accuracy|percent }} of clear test pairs
{%- else %}agrees with {{ scorer.label_accuracy|percent }} of test labels{% endif %};
calibration error {{ scorer.label_ece_width|percent }}</li>
{% else %}<li>none was scored</li>
{% endfor %}
{% if card.length_baseline and card.scorers %}
<li>for comparison, always preferring the longer answer:
{{ (card.length_baseline.clean_accuracy or card.length_baseline.label_accuracy)|percent }}</li>
{% endif %}
</ul></section>

<section class="card"><h2>Better or not: policies against SFT</h2>
{% if card.verdict.judged_by %}
<div class="scroll"><table><tr><th>Wins minus losses, points</th><th>main</th><th>forget</th></tr>
{% for policy in card.policies if policy.against_sft %}
<tr><td>{{ policy.name|policy_name }}</td>{% for place in ['main', 'forget'] %}
<td class="n">{% if measure in policy.against_sft.get(place, {}) %}
{{ policy.against_sft[place][measure].net|bare_points }}{% else %}–{% endif %}</td>
{% endfor %}</tr>
{% endfor %}</table></div>
<p class="note">Judged by {{ judges[card.verdict.judged_by] }}.</p>
{% else %}<ul><li>no policy was judged</li></ul>{% endif %}
</section>
</div>

{% if card.claims %}
<h2>What was promised, and how it stands in this run</h2>
<div class="scroll"><table><tr><th>Claim</th><th>Here it</th><th>Measured</th></tr>
{% for claim in card.claims %}
<tr><td>{{ claim.statement }}</td><td class="status {{ {'holds': 'holds', 'fails': 'fails'}
.get(claim.status, 'unclear-text') }}">{{ {'holds': '✓ holds', 'fails': '✗ fails'}
.get(claim.status, '? is unclear') }}</td>
<td>{% for key, estimate in claim.measured.items() %}
{% set words, unit = claim_units[key] %}{{ words }}:
{% if unit == 'points' %}{{ estimate|points }}{% elif unit == 'change' %}
{{ estimate|number('+.3f') }}{% else %}{{ estimate|number }}{% endif %}
{% if not loop.last %}<br>{% endif %}{% endfor %}</td></tr>
{% endfor %}</table></div>
<p class="note">A claim holds when its whole interval is on the promised side, fails when it is
wholly on the other. One run is one seed: several seeds are needed to believe any of it.</p>
{% endif %}
"""

ROWS = """
{% set account = card.data.rows %}{% set rows = account.rows %}
<div class="scroll"><table class="rows-read">
<tr><th>Rows read</th><th class="n">{{ '{:,}'.format(rows.read) }}</th></tr>
<tr><td>used</td><td class="n">{{ '{:,}'.format(rows.used) }}</td></tr>
<tr><td>quarantined{% if rows.quarantined %}: {{ account.reasons() }}{% endif %}</td>
<td class="n">{{ '{:,}'.format(rows.quarantined) }}</td></tr>
<tr><td>ties dropped</td><td class="n">{{ '{:,}'.format(rows.ties_dropped) }}</td></tr>
<tr><td>left out by <code>preferences.max_pairs</code>
{%- if account.max_pairs %} = {{ '{:,}'.format(account.max_pairs) }}{% else %} (no limit)
{%- endif %}</td><td class="n">{{ '{:,}'.format(rows.over_limit) }}</td></tr>
</table></div>
{% if account.by_source|length > 1 %}
<div class="scroll"><table class="rows-read">
<tr><th>Source</th><th class="n">read</th><th class="n">used</th>
<th class="n">quarantined</th><th class="n">ties</th><th class="n">left out</th></tr>
{% for name, counts in account.by_source.items() %}
<tr><td><code>{{ name }}</code></td><td class="n">{{ '{:,}'.format(counts.read) }}</td>
<td class="n">{{ '{:,}'.format(counts.used) }}</td>
<td class="n">{{ '{:,}'.format(counts.quarantined) }}</td>
<td class="n">{{ '{:,}'.format(counts.ties_dropped) }}</td>
<td class="n">{{ '{:,}'.format(counts.over_limit) }}</td></tr>
{% endfor %}</table></div>
{% endif %}
{% if account.num_refused %}<p class="note"><a href="quarantine.jsonl">quarantine.jsonl</a> beside
this page has every refused row with what is wrong in it.</p>{% endif %}
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ card.title }}</title><style>{{ stylesheet }}</style></head><body>
{% from "macros" import charts %}
{% include "first_screen" %}
{% include "revisions" %}
{% include "labels" %}
{% include "human_votes" %}
{% include "scorers" %}
{% include "policies" %}
{% include "samples" %}
{% include "lineage" %}
</body></html>
"""

TEMPLATES = {
    "page": PAGE,
    "macros": MACROS,
    "first_screen": FIRST_SCREEN,
    "rows": ROWS,
    "revisions": REVISIONS,
    "labels": LABELS,
    "human_votes": HUMAN_VOTES,
    "scorers": SCORERS,
    "policies": POLICIES,
    "samples": SAMPLES,
    "lineage": LINEAGE,
}

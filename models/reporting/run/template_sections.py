"""The sections below the first screen (jinja2, autoescaped)."""

LABELS = """
{% from "macros" import charts %}
{% if drawn.labels %}
<h2>The labels</h2>
<p class="note">The strength of a label is the mean, over the ensemble, of the score of the answer
labelled better minus that of the other; below 0 the models together contradict the label.
{% if card.vote_used %}Relabelling used the
{{ {'in_sample': 'in-sample', 'cross_fitted': 'cross-fitted'}[card.vote_used] }} vote.{% endif %}
</p>
{{ charts(drawn.labels) }}
{% if card.has_truth %}
<div class="scroll"><table><tr><th>Vote</th><th>AUROC, {{ flip }}s, all pairs</th>
<th>AUROC, near-ties left out</th><th>AUROC, labels wrong by gold</th>
<th>of the pairs below 0, label wrong</th><th>of the wrong labels, below 0</th></tr>
{% for mode, noise in card.label_noise.items() %}
<tr><td>{{ {'in_sample': 'in-sample', 'cross_fitted': 'cross-fitted'}[mode] }}</td>
<td class="n">{{ noise.auroc_flipped|number }}</td>
<td class="n">{{ noise.auroc_flipped_clear|number }}</td>
<td class="n">{{ noise.auroc_wrong|number }}</td>
<td class="n">{{ noise.negative_precision|percent }}</td>
<td class="n">{{ noise.negative_recall|percent }}</td></tr>
{% endfor %}</table></div>
{% endif %}
{% endif %}
{% if audited %}
<h3>Label audit: the {{ audited|length }} training pairs the ensemble doubts most</h3>
<p class="note">{% if has_audit %}<a href="audit.html">All pairs, to filter and review</a>, are in
<code>audit.html</code> beside this page. {% endif %}
Texts are shown as they came; some may be offensive or wrong.</p>
{% for pair in audited %}
{% if loop.index == 6 %}<details><summary>The next {{ audited|length - 5 }}</summary>{% endif %}
<div class="pair"><div><b>{{ loop.index }}.</b>
<span class="tag">strength {{ '%+.2f'|format(pair.strength_mean)|tidy }}</span>
<span class="tag">deviation {{ '%.2f'|format(pair.strength_std) }}</span>
{% if pair.votes %}<span class="tag">{{ pair.num_against }} of {{ pair.votes|length }} models
against:
{% for vote in pair.votes %}{{ '%+.1f'|format(vote)|tidy }} {% endfor %}</span>{% endif %}
{% if pair.annotator_votes %}<span class="tag">people: {{ pair.annotator_votes.chosen }} for,
{{ pair.annotator_votes.rejected }} against, {{ pair.annotator_votes.equal }} undecided</span>
{% endif %}
{% if pair.treated %}<span class="tag">{{ 'flipped' if pair.treated.is_flipped else 'kept' }}
{%- if pair.treated.label < 1 %}, label {{ '%.2f'|format(pair.treated.label) }}{% endif %}</span>
{% endif %}
{% if pair.truth %}<span class="tag">truth: {{ {'flipped': flip, 'ambiguous': 'near-tie',
'clear': 'no ' ~ flip}.get(pair.truth.kind, pair.truth.kind) }},
label {{ 'wrong' if pair.truth.is_wrong else 'right' }}</span>{% endif %}
{% if pair.category %}<span class="tag">{{ pair.category }}</span>{% endif %}
<span class="label">{{ pair.id }}</span></div>
<div class="text">{{ pair.prompt|clip }}</div>
<div class="sides">
<div><span class="label">labelled better</span><div class="text">{{ pair.chosen|clip }}</div></div>
<div><span class="label">labelled worse</span><div class="text">{{ pair.rejected|clip }}</div></div>
</div></div>
{% endfor %}
{% if audited|length > 5 %}</details>{% endif %}
{% endif %}
"""

HUMAN_VOTES = """
{% from "macros" import charts %}
{% if drawn.votes %}
<h2>Strength against people's votes</h2>
<p class="note">Several people voted on each of these pairs. A pair's margin is the share of its
votes for the text labelled better minus the share for the other; undecided votes count for
neither. The ensemble never saw a margin: it was told which text won, not by how much.</p>
{{ charts(drawn.votes) }}
<div class="scroll"><table><tr><th></th>
{% for mode, by_split in card.human_votes.items() %}{% for split in by_split %}
<th>{{ split }} pairs, {{ mode|replace('_', '-') }} vote</th>{% endfor %}{% endfor %}</tr>
{% for key, order in [('in_both_orders', 'both orders'), ('in_label_order', "the label's order")] %}
{% for part, words in [('strength', 'rank correlation of strength and margin'),
 ('length', 'the same for the difference in words'), ('ceiling', 'most that is possible')] %}
<tr><td>{{ words }}, {{ order }}</td>
{% for by_split in card.human_votes.values() %}{% for votes in by_split.values() %}
<td class="n">{% if not votes[key] %}–{% elif part == 'ceiling' %}
{{ '%.3f'|format(votes[key].ceiling) }}{% else %}{{ votes[key][part]|number }}{% endif %}</td>
{% endfor %}{% endfor %}</tr>
{% endfor %}{% endfor %}
{% for key, words in [('auroc_not_unanimous', 'not all votes for the text labelled better'),
 ('auroc_opposed', 'a vote for the other text')] %}
<tr><td>AUROC of low strength for contested pairs: {{ words }}</td>
{% for by_split in card.human_votes.values() %}{% for votes in by_split.values() %}
<td class="n">{{ votes[key]|number }}</td>{% endfor %}{% endfor %}</tr>
{% endfor %}
<tr><td>pairs with votes; different texts in them</td>
{% for by_split in card.human_votes.values() %}{% for votes in by_split.values() %}
<td class="n">{{ '{:,}'.format(votes.num_pairs) }}; {{ '{:,}'.format(votes.num_texts) }}</td>
{% endfor %}{% endfor %}</tr></table></div>
<p class="note"><b>Both orders</b> (compare this with other work): each pair is first put into an
order that does not know the label, so the correlation asks who won and how clearly. Left out where
members voted on pairs they were trained on. Cross-fitted members never saw a training pair they
vote on, but may have met its texts in others; only test pairs are wholly new.
<b>The label's order:</b> where the label is the votes' majority every margin is above 0. That cuts
off half of the range and leaves only how clearly a pair was won: expect less.
<b>Most that is possible:</b> a few votes give few different margins, and equal ones cannot be
ranked, so a strength that orders all pairs perfectly reaches this, not 1. A few people's votes also
vary by chance: knowing exactly what people prefer would still fall short of it. Intervals of
correlations, AUROC and shares of votes resample pairs; where texts recur in several pairs they are
too narrow.</p>
{% endif %}
"""

SCORERS = """
{% from "macros" import charts %}
{% if card.scorers %}
<h2>The reward models</h2>
{{ charts(drawn.scorers) }}
<div class="scroll"><table><tr><th>On {{ '{:,}'.format(card.data.num_test) }} test pairs</th>
{% for name in card.scorers %}<th>{{ scorer_names[name] }}</th>{% endfor %}</tr>
{% for key, words, unit in [
 ('clean_accuracy', 'accuracy, right labels, near-ties left out', 'percent'),
 ('label_accuracy', "accuracy, annotators' labels", 'percent'),
 ('clean_ece_width', 'calibration error, right labels, bins of equal width', 'percent'),
 ('clean_ece_mass', 'calibration error, right labels, bins of equal mass', 'percent'),
 ('label_ece_width', "calibration error, annotators' labels, equal width", 'percent'),
 ('label_ece_mass', "calibration error, annotators' labels, equal mass", 'percent'),
 ('category_mean_spread', "spread of categories' mean scores", 'number'),
 ('category_std', 'mean spread within categories', 'number'),
 ('spread_ratio', 'their ratio', 'number')] %}
{% if card.scorers.values()|selectattr(key)|list %}
<tr><td>{{ words }}</td>{% for scorer in card.scorers.values() %}
<td class="n">{% if unit == 'percent' %}{{ scorer[key]|percent }}{% else %}
{{ scorer[key]|number }}{% endif %}</td>{% endfor %}</tr>
{% endif %}{% endfor %}
<tr><td>training pairs</td>{% for scorer in card.scorers.values() %}
<td class="n">{{ '{:,}'.format(scorer.num_trained_pairs) }}</td>{% endfor %}</tr>
</table></div>
{% if card.length_baseline %}<p class="note">Always preferring the longer answer agrees with
{{ card.length_baseline.label_accuracy|percent }} of the annotators' labels
{%- if card.length_baseline.clean_accuracy %} and is right on
{{ card.length_baseline.clean_accuracy|percent }} of the clear pairs{% endif %}. Calibration
errors use 10 bins.</p>{% endif %}
{% endif %}
"""

SAMPLES = """
{% if samples %}
<h2>Before and after: the same prompts, SFT and {{ final.name|policy_name }}</h2>
<p class="note">Judged by {{ judges[measure] }}; higher is better. Texts are shown as they came.</p>
{% for group in samples %}
<h3>{{ group.title }}</h3>
{% for sample in group.samples %}
<div class="pair"><div class="text">{{ sample.prompt|clip }}</div><div class="sides">
<div><span class="label">SFT, {{ '%.2f'|format(sample.judged_before) }}</span>
<div class="text">{{ sample.before|clip }}</div></div>
<div><span class="label">{{ final.name|policy_name }},
{{ '%.2f'|format(sample.judged_after) }}</span>
<div class="text">{{ sample.after|clip }}</div></div></div></div>
{% endfor %}{% endfor %}
{% endif %}
"""

LINEAGE = """
{% from "macros" import charts %}
{% if drawn.cost %}
<h2>What it cost</h2>
{{ charts(drawn.cost) }}
{% endif %}
<h2>Where every number comes from</h2>
{% if card.lineage %}
<details><summary>Lineage: {{ card.lineage|length }} artifacts with key, digest, parents and
versions</summary>
<div class="scroll"><table><tr><th>Role</th><th>Stage</th><th class="n">Seconds</th><th>Key</th>
<th>Digest (sha256)</th><th>Parents</th><th>Versions</th></tr>
{% for entry in card.lineage %}
<tr><td>{{ entry.role }}</td><td>{{ entry.stage }}</td>
<td class="n">{{ '{:,.1f}'.format(entry.seconds) }}{{ ' (cached)' if entry.cached }}</td>
<td><code>{{ entry.key }}</code></td><td><code>{{ entry.digest }}</code></td>
<td>{% for name, parent in entry.parents.items() %}<code>{{ name }}:
{% if parent is mapping %}{{ parent.get('stage', '') }}/{{ parent.get('key', '') }}
{% else %}{{ parent }}{% endif %}</code><br>{% endfor %}</td>
<td>{% for name, version in entry.versions.items() %}{{ name }} {{ version }}<br>{% endfor %}</td>
</tr>{% endfor %}</table></div></details>
{% endif %}
<details><summary>Seeds</summary><div class="scroll"><table>
{% for name, value in card.seeds.items() %}
<tr><td><code>{{ name }}</code></td><td class="n">{{ value }}</td></tr>{% endfor %}
</table></div></details>
<details><summary>Counts of the data stages</summary>
{% for role, summary in card.data.summaries.items() %}<h3>{{ role }}</h3><table>
{% for key, value in summary.items() %}<tr><td>{{ key }}</td><td class="n">{{ value }}</td></tr>
{% endfor %}</table>{% endfor %}</details>
<details><summary>Configuration of the run</summary><pre>{{ config_text }}</pre></details>
<p class="note">The same numbers are in scorecard.json.</p>
"""

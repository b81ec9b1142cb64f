"""The section about the policies (jinja2, autoescaped)."""

POLICIES = """
{% from "macros" import charts %}
{% if drawn.policies %}
<h2>PPO, step by step</h2>
<p class="note">Numbers are means of the first and of the last tenth of the steps. Faint lines show
every step, bold ones the mean of five.</p>
{{ charts(drawn.policies) }}
{% if drawn.rounds %}<h3>MetaRM rounds</h3>
{{ charts(drawn.rounds) }}{% endif %}
{% for policy in card.policies if policy.collapse_reason %}
<p><b>{{ policy.name|policy_name }}: the collapse guard spoke up.</b> {{ policy.collapse_reason }}.
PPO ended at step {{ policy.num_steps }}; the policy kept is that of step
{{ policy.policy_of_step }}.</p>
{% endfor %}
{% endif %}
{% if drawn.outcomes %}
<h2>Win, tie, lose against SFT</h2>
{{ charts(drawn.outcomes) }}
{% endif %}
{% if drawn.frontier %}
<h3>What is gained for the distance from SFT</h3>
{{ charts(drawn.frontier) }}
{% endif %}
{% if has_measured %}
<h3>Every policy on every prompt set</h3>
<div class="scroll"><table><tr><th>Policy</th><th>Prompts</th>
{% if card.has_gold %}<th>Gold (0 to 1)</th>{% endif %}<th>Held-out score</th><th>KL (nats)</th>
<th>Length (tokens)</th><th>Perplexity</th><th>Distinct</th>
{% if has_harmless %}<th>Harmless</th>{% endif %}</tr>
{% for policy in has_measured %}{% for place, answers in policy.sets.items() %}
<tr><td>{{ policy.name|policy_name }}</td><td>{{ place }} ({{ answers.num_prompts }})</td>
{% if card.has_gold %}<td class="n">{{ answers.gold|number }}</td>{% endif %}
<td class="n">{{ answers.judge_score|number('.2f') }}</td>
<td class="n">{{ answers.kl|number('.2f') }}</td>
<td class="n">{{ answers.length|number('.1f') }}</td>
<td class="n">{{ '%.2f'|format(answers.perplexity) }}</td>
<td class="n">{{ '%.0f'|format(100 * answers.distinct) }} %</td>
{% if has_harmless %}<td class="n">{{ answers.harmless|percent }}</td>{% endif %}</tr>
{% endfor %}{% endfor %}</table></div>
<p class="note">The held-out score is the mean of the judges, reward models of the ensemble.
Distinct: number of different answers over the number of answers.
{%- if has_harmless %} Harmless: share of the answers to requests for harm that do none, by
{{ 'the gold scorer' if card.has_gold else 'a judge model' }}.{% endif %}</p>
{% endif %}
{% set counted = has_measured|selectattr('budget')|list %}
{% if counted %}
<h3>What each policy took beyond SFT</h3>
<div class="scroll"><table><tr><th>Policy</th><th>Responses sampled to train on</th>
<th>Gradient updates</th><th>Tokens trained</th><th>Seconds</th>
{% if has_samples %}<th>Samples an answer</th>{% endif %}
{% if has_judge %}<th>Judge's tokens</th><th>Judge's cost</th>{% endif %}</tr>
{% for policy in counted %}
<tr><td>{{ policy.name|policy_name }}</td>
<td class="n">{{ '{:,}'.format(policy.budget.num_sampled) }}</td>
<td class="n">{{ '{:,}'.format(policy.budget.num_updates) }}</td>
<td class="n">{{ '{:,}'.format(policy.budget.num_trained_tokens) }}</td>
<td class="n">{{ '{:,.1f}'.format(policy.budget.seconds) }}</td>
{% if has_samples %}<td class="n">{{ policy.budget.samples_per_answer }}</td>{% endif %}
{% if has_judge %}<td class="n">{{ '{:,}'.format(policy.budget.judge_tokens) }}</td>
<td class="n">{{ '%.4g'|format(policy.budget.judge_cost) }}</td>{% endif %}</tr>
{% endfor %}</table></div>
<p class="note">Earlier policies that one went on from are counted with it. A token counts for each
model that learns from it: of PPO's rollouts, policy and critic. DPO and CPL learn from
the preference pairs, which were sampled once for all.
{% if has_judge %} The judge's tokens and cost are of rating what a policy learned from, in the
currency of the prices that were given.{% endif %}</p>
{% endif %}
{% if rounds %}
<h2>MetaRM rounds</h2>
<div class="scroll"><table><tr><th>Round</th><th>Against the last promoted round, held-out
judgement on validation prompts</th><th>The same on main prompts{% if card.has_gold %}, by gold
{%- endif %}</th><th>Score differences between answers, before and after MetaRM</th>
<th>Promoted</th></tr>
{% for policy in rounds %}
{% set contest = policy.against_previous or policy.against_sft %}
<tr><td>{{ policy.round }}{{ ' (against SFT)' if policy.round == 1 }}</td>
{% set ballots = contest.get('validation', {}) %}
{% set ballot = ballots.get('annotators') or ballots.get('judge_score') %}
<td class="n">{{ ballot.net|points if ballot else '–' }}</td>
<td class="n">{{ contest.main[measure].net|points
 if measure in contest.get('main', {}) else '–' }}</td>
<td class="n">{% if policy.score_spread_after is not none %}
{{ '%.3f'|format(policy.score_spread_before) }} → {{ '%.3f'|format(policy.score_spread_after) }}
{%- else %}–{% endif %}</td>
<td>{{ {true: 'yes', false: 'no'}.get(policy.is_promoted, '–') }}</td></tr>
{% endfor %}</table></div>
<p class="note">A round is promoted only if it beats the last promoted one on held-out judgement;
gold is shown, never used.</p>
{% endif %}
"""

"""The section on revisions by a constitution (jinja2, autoescaped)."""

REVISIONS = """
{% if card.revisions %}
{% set found = card.revisions %}
<h2>Revisions by a constitution</h2>
<p class="note">A model revised the SFT policy's answers to {{ '{:,}'.format(found.num_prompts) }}
prompts, each time by a principle drawn at random. The last revisions of
{{ '{:,}'.format(found.num_demonstrations) }} of them were learned.
{% if found.tokens %}It took {{ '{:,}'.format(found.tokens) }} tokens
{%- if found.cost %}, at a cost of {{ '%.4g'|format(found.cost) }}{% endif %}.{% endif %}</p>
<div class="scroll"><table><tr><th>Answers</th><th>changed by the step</th><th>mean words</th>
<th>unusable revisions</th>
{% if found.steps[0].gold %}<th>gold quality</th><th>harmful prompts: harmless</th>{% endif %}</tr>
{% for step in found.steps %}
<tr><td>{{ 'of the policy' if step.number == 0 else 'revision %d'|format(step.number) }}</td>
<td class="n">{% if step.number %}{{ '%.1f'|format(100 * step.share_changed) }} %
{%- else %}–{% endif %}</td>
<td class="n">{{ '%.1f'|format(step.words) }}</td>
<td class="n">{{ step.num_unusable if step.number else '–' }}</td>
{% if step.gold %}<td class="n">{{ step.gold|number }}</td>
<td class="n">{{ step.share_harmless|percent }}</td>{% endif %}</tr>
{% endfor %}</table></div>
{% if revised %}<h3>Drawn at random from the answers that changed</h3>{% endif %}
{% for example in revised %}
<div class="pair"><div class="text">{{ example.prompt|clip }}</div>
<div><span class="label">principle</span> {{ example.principle }}</div>
{% if example.critique %}<div><span class="label">critique</span>
<div class="text">{{ example.critique|clip }}</div></div>{% endif %}
<div class="sides"><div><span class="label">before</span>
<div class="text">{{ example.before|clip }}</div></div>
<div><span class="label">after the last revision</span>
<div class="text">{{ example.after|clip }}</div></div></div></div>
{% endfor %}
{% endif %}
"""

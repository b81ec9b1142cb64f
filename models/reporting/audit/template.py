"""The page's template (jinja2, autoescaped). Python, not data files: it travels with the code."""

HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 script-src '{{ script_hash }}'; style-src '{{ style_hash }}'; base-uri 'none'; form-action 'none'">
<title>{{ title }}</title><style>{{ stylesheet }}</style></head><body>
<a class="skip" href="#tool">Skip to the pairs</a>
{% include "summary" %}
{% include "tool" %}
"""

SUMMARY = """
{% macro share(part, whole) %}{{ '{:,}'.format(part) }}
({{ '%.1f'|format(100 * part / whole) }}\u00a0%){% endmacro %}
{% macro groups(caption, rows) %}
<div class="scroll"><table><caption>{{ caption }}</caption>
<thead><tr><th scope="col"></th><th scope="col" class="n">pairs</th>
<th scope="col" class="n">look wrong</th>
{% if summary.has_truth %}<th scope="col" class="n">of these, really wrong</th>{% endif %}
<th scope="col" class="n">members disagree</th><th scope="col" class="n">flipped</th>
{% if whole.num_reviewed %}<th scope="col" class="n">reviewed</th>{% endif %}
</tr></thead><tbody>
{% for group in rows %}
<tr><th scope="row">{{ group.name }}</th><td class="n">{{ '{:,}'.format(group.num_pairs) }}</td>
<td class="n">{{ share(group.num_wrong, group.num_pairs) }}</td>
{% if summary.has_truth %}<td class="n">{{ group.precision|percent }}</td>{% endif %}
<td class="n">{{ share(group.num_disputed, group.num_pairs) }}</td>
<td class="n">{{ '{:,}'.format(group.num_flipped) }}</td>
{% if whole.num_reviewed %}<td class="n">{{ "{:,}".format(group.num_reviewed) }}</td>{% endif %}
</tr>
{% endfor %}</tbody></table></div>
{% endmacro %}
<header><h1>{{ title }}</h1>
<div class="meta">{{ summary.num_members }} reward models vote. A pair's strength is the mean, over
those that vote on it, of the score of the answer labelled better minus that of the other.</div>
{% if account %}<div class="meta"><b>What was read:</b> {{ account.sentence() }}.
{% if account.num_refused %}
<a href="quarantine.jsonl">quarantine.jsonl</a> beside this page has every refused row with what is
wrong.{% endif %}</div>{% endif %}
</header>
<div class="verdict unclear">
<strong>{{ share(whole.num_wrong, whole.num_pairs) }} of {{ '{:,}'.format(whole.num_pairs) }}
pairs look wrong: their strength is below 0.</strong>
{% if not summary.has_truth %}
<p><b>How many of them are wrong is unknown</b>: nobody has told this run the right labels. Review
some, and the page counts how often you agree.</p>
{% elif whole.precision %}
<p><b>{{ whole.precision|percent }} of them are wrong</b>, by the right labels, which the synthetic
world knows{% if whole.recall %}; of all wrong labels {{ whole.recall|percent }} look
wrong{% endif %}. In brackets: 95\u00a0% (Wilson) intervals.</p>
{% endif %}
<p>Over {{ '{:,}'.format(whole.num_disputed) }} pairs the members disagree. Relabelling flipped
{{ '{:,}'.format(whole.num_flipped) }} training pairs; it leaves held-out pairs alone.
{%- if summary.is_in_sample %} Members were trained on the training pairs they vote on: a wrong
label learned by heart looks right. Validation and test pairs they had never seen.{% endif %}</p>
{% if whole.num_unsupported %}
<p class="warning"><b>⚠ No member supports {{ '{:,}'.format(whole.num_unsupported) }} of these
flips</b>: none of the models that vote prefers the answer labelled worse. To see them choose
<i>flipped, and no member supports it</i> under <i>The ensemble</i>. With
<code>relabel.flip_below=0</code> there are none.</p>
{% endif %}
</div>
<div class="cards">
<section class="card">{{ groups("By split", summary.by_split) }}</section>
{% if summary.by_category|length > 1 %}
<section class="card tall">{{ groups("By category, most that looks wrong first",
 summary.by_category) }}</section>
{% endif %}
</div>
"""

TOOL = """
<noscript><p>The pairs are shown by a script of this page. The same data are in audited.jsonl.gz
and audited.parquet beside it.</p></noscript>
<p id="problem" role="alert" hidden></p>
<main id="tool" hidden>
<h2>The pairs, weakest first</h2>
<p class="note">Texts are shown as they came; some may be offensive or wrong.</p>
<div class="choose">
<form class="filters" id="filters">
<label>Category <select id="category"></select></label>
<label>Split <select id="split"></select></label>
<label>The ensemble <select id="kind"></select></label>
<label>Your review <select id="mine"></select></label>
<label class="wide">Search prompts and answers
<input type="search" id="search" autocomplete="off" spellcheck="false"></label>
<p id="count" role="status" class="wide"></p>
</form>
<figure class="range"><figcaption>Drag to pick a range of strength; click for all</figcaption>
<div id="histogram"></div>
<div class="bounds"><label>from <input type="number" step="any" id="low"></label>
<label>to <input type="number" step="any" id="high"></label>
<button type="button" id="everything">All</button></div></figure>
</div>
<div class="work">
<div id="list" role="listbox" tabindex="0" aria-label="Pairs, weakest first"></div>
<section id="pair" aria-labelledby="place">
<h3 id="place" aria-live="polite"></h3>
<div id="content"></div>
<div id="actions" role="group" aria-label="Review of this pair">
<div class="buttons"><button type="button" id="previous">‹ Previous <kbd>k</kbd></button>
<button type="button" id="next">Next <kbd>j</kbd> ›</button></div>
<div class="buttons" id="verdicts" role="group" aria-label="Your verdict"></div>
<label class="grow">Note <input id="note" autocomplete="off"></label>
</div>
</section>
</div>
<section class="card" id="review" aria-labelledby="review-title">
<h2 id="review-title">Your review</h2>
<p id="progress" role="status"></p>
<p id="storage" class="note"></p>
<div class="buttons"><button type="button" id="download">Download as JSON lines</button>
<button type="button" id="load">Go on with a downloaded one</button>
<input type="file" id="file" accept=".jsonl" hidden></div>
<p class="note">Bring it back with <code>trimtab run {{ recipe or "RECIPE" }}
relabel.review=review.jsonl</code>: of a training pair the verdict then stands in place of the
ensemble's. <b>Keep</b> leaves it as it was labelled, <b>flip</b> turns it round, <b>drop</b> trains
on it no more, <b>unsure</b> leaves it to the ensemble.</p>
<p class="note"><label><input type="checkbox" id="keys" checked> Keys:</label>
<kbd>j</kbd> <kbd>→</kbd> next, <kbd>k</kbd> <kbd>←</kbd> previous,
<kbd>1</kbd> keep, <kbd>2</kbd> flip, <kbd>3</kbd> drop, <kbd>4</kbd> unsure,
<kbd>0</kbd> no verdict, <kbd>e</kbd> note, <kbd>/</kbd> search, <kbd>Esc</kbd> back.</p>
</section>
</main>
"""

TEMPLATES = {"head": HEAD, "summary": SUMMARY, "tool": TOOL}

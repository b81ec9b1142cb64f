"""Writing the page: the first screen, the index of all pairs, the script, then the texts.

Nothing of the data can become markup or script: the template escapes names, texts are in base64
until the script makes text nodes of them, and the page's content security policy lets no script and
no style run but its own, by their hashes, and nothing be requested.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from trimtab.models.config.reporting import AuditConfig
from trimtab.models.data.row_account import RowAccount
from trimtab.models.reporting.audit.pairs import AuditedPair
from trimtab.models.reporting.audit.payload import packed_blocks, packed_index
from trimtab.models.reporting.audit.summary import Summary
from trimtab.models.reporting.kit.audit_words import changes_made, really_wrong, voters_warnings
from trimtab.models.reporting.kit.html import new_environment, read_text, stylesheet
from trimtab.models.reporting.static import audit as scripts

# Modules, in the order in which they run. The page may load nothing: there they are one script and
# share one scope, without what heads them (comments and imports) and without the word `export`.
SCRIPTS = ("data.js", "words.js", "pair.js", "histogram.js", "choose.js", "review.js", "start.js")
HEAD = re.compile(r"\A(//.*\n|import [^;]*;\n|\n)*")
EXPORT = re.compile(r"^export ", re.MULTILINE)


def write_page(
    path: Path,
    config: AuditConfig,
    summary: Summary,
    pairs: Sequence[AuditedPair],
    account: RowAccount | None = None,
) -> None:
    """Write the page of `pairs`, which stand in the order to show them.

    account: where the rows went that they were read from; None where they were made.
    """
    has_recipe = config.recipe and not config.voters
    name = f"Label audit: {config.recipe}, seed {config.seed}" if has_recipe else "Label audit"
    style, script = stylesheet("base.css", "audit.css"), page_script()
    pieces = (
        new_environment()
        .get_template("audit.html.j2")
        .generate(
            title=name,
            recipe=config.recipe,
            summary=summary,
            whole=summary.whole,
            really_wrong=really_wrong(summary.numbers(), summary.whole.num_wrong),
            account=account,
            num_external=config.num_external,
            warnings=voters_warnings(summary.numbers()),
            changes=list(changes_made(summary.numbers())),
            stylesheet=style,
            style_hash=_hash(style),
            script=script,
            script_hash=_hash(script),
            index=packed_index(pairs, summary.voters),
            blocks=packed_blocks(pairs),
        )
    )
    with path.open("w", encoding="utf-8") as page:
        page.writelines(pieces)
        page.write("\n")


def page_script() -> Markup:
    """The modules as one script."""
    modules = (EXPORT.sub("", HEAD.sub("", read_text(scripts, name), count=1)) for name in SCRIPTS)
    return Markup('(() => {\n"use strict";' + "".join(f"\n{each}" for each in modules) + "})();")


def _hash(text: str) -> str:
    """A source of the content security policy: what is inline may be just this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"

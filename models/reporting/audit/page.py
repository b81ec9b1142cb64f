"""Writing the page: the first screen, the index of all pairs, the script, then the texts.

Nothing of the data can become markup or script: the template escapes names, texts are in base64
until the script makes text nodes of them, and the page's content security policy lets no script and
no style run but its own, by their hashes, and nothing be requested.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from models.config.reporting import AuditConfig
from models.data.row_account import RowAccount
from models.reporting.audit.pairs import AuditedPair
from models.reporting.audit.payload import packed_blocks, packed_index
from models.reporting.audit.script import SCRIPT
from models.reporting.audit.stylesheet import AUDIT_STYLE
from models.reporting.audit.summary import Summary
from models.reporting.audit.template import TEMPLATES
from models.reporting.kit.html import new_environment
from models.reporting.kit.stylesheet import STYLESHEET

STYLE = STYLESHEET + AUDIT_STYLE


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
    name = f"Label audit: {config.recipe}, seed {config.seed}" if config.recipe else "Label audit"
    head = (
        new_environment(TEMPLATES)
        .get_template("head")
        .render(
            title=name,
            recipe=config.recipe,
            summary=summary,
            whole=summary.whole,
            account=account,
            stylesheet=Markup(STYLE),
            style_hash=_hash(STYLE),
            script_hash=_hash(SCRIPT),
        )
    )
    with path.open("w", encoding="utf-8") as page:
        page.write(head)
        page.write(_data("index", packed_index(pairs)))
        page.write(f"<script>{SCRIPT}</script>\n")  # before the texts, so as not to wait for them
        for number, block in enumerate(packed_blocks(pairs)):
            page.write(_data(f"block-{number}", block))
        page.write("</body></html>\n")


def _data(name: str, base64_text: str) -> str:
    """An element that browsers neither run nor show."""
    return f'<script type="text/plain" id="{name}">{base64_text}</script>\n'


def _hash(text: str) -> str:
    """A source of the content security policy: what is inline may be just this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"

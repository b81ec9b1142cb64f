"""Stage `audit`: the label audit for a person, a page to review pairs with and the audited set."""

from __future__ import annotations

from pathlib import Path

from trimtab.models.config.reporting import AuditConfig
from trimtab.models.data.words import UNKNOWN_TOKENS
from trimtab.models.reporting.audit.export import FurtherFields, export
from trimtab.models.reporting.audit.page import write_page
from trimtab.models.reporting.audit.pairs import audited_pairs
from trimtab.models.reporting.audit.panel import panel_of
from trimtab.models.reporting.audit.payload import weakest_first
from trimtab.models.reporting.audit.summary import Unseen, summarise
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.training.progress import write_json


def run(config: AuditConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`, `member_0` ... `member_{M-1}`, `strength`, `relabelled`;
    of a vote on a copy with labels turned round on purpose `self_test`. The last members are the
    judges, if any, whose judgements.jsonl is read, too.

    Output: audit.html (self-contained), audited.jsonl.gz and audited.parquet (every pair with its
    vote, its treatment and the further fields of its row).
    """
    artifacts = Artifacts(inputs)
    pairs = audited_pairs(artifacts)
    tested = artifacts.rows("self_test", "strength.jsonl")
    judges = artifacts.members[-len(config.judges) :] if config.judges else []
    judged = [artifacts.rows(role, "judgements.jsonl") for role in judges]
    panel = panel_of(pairs, config.judges, judged)
    told = [artifacts.document(role, "summary.json") for role in artifacts.members]
    summary = summarise(
        pairs,
        config.voters,
        tested,
        panel,
        num_external=config.num_external,
        unseen=Unseen(
            unknown_tokens=max(each.get(UNKNOWN_TOKENS, 0.0) for each in told),
            cut={
                name: each["num_cut"] / each["num_answers"]
                for name, each in zip(config.voters, told, strict=False)
                if each.get("num_cut")
            },
        ),
    )
    output = workdir / "output"
    output.mkdir(parents=True, exist_ok=True)
    export(pairs, output, FurtherFields(inputs["preferences"] / "fields"))
    ordered = weakest_first(pairs)
    write_page(output / "audit.html", config, summary, ordered, artifacts.row_account)
    write_json(output / "summary.json", summary.numbers())

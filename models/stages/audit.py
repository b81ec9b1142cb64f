"""Stage `audit`: the label audit for a person, a page to review pairs with and the audited set."""

from __future__ import annotations

from trimtab.models.config.reporting import AuditConfig
from trimtab.models.reporting.audit.agreement import panel_of
from trimtab.models.reporting.audit.export import FurtherFields, export
from trimtab.models.reporting.audit.page import weakest_first, write_page
from trimtab.models.reporting.audit.pairs import audited_pairs
from trimtab.models.reporting.audit.summary import summarise, unseen_by
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.training.stage import Stage


def run(config: AuditConfig, stage: Stage) -> None:
    """Inputs: `preferences`, `member_0` ... `member_{M-1}`, `strength`, `relabelled`;
    of a vote on a copy with planted flips `self_test`. The last members are the
    judges, if any, whose judgements.jsonl is read, too.

    Output: audit.html (self-contained), audited.jsonl.gz and audited.parquet (every pair with its
    vote, its treatment and the further fields of its row).
    """
    artifacts = Artifacts(stage.inputs)
    pairs = audited_pairs(artifacts)
    tested = artifacts.rows("self_test", "strength.jsonl")
    judges = artifacts.members[-len(config.judges) :] if config.judges else []
    judged = [artifacts.rows(role, "judgements.jsonl") for role in judges]
    panel = panel_of(pairs, config.judges, judged)
    summaries = [artifacts.document(role, "summary.json") for role in artifacts.members]
    summary = summarise(
        pairs,
        config.voters,
        tested,
        panel,
        num_external=config.num_external,
        unseen=unseen_by(config.voters, summaries),
    )
    stage.write_summary(summary.numbers())
    export(pairs, stage.output, FurtherFields(stage.inputs["preferences"] / "fields"))
    ordered = weakest_first(pairs)
    write_page(stage.output / "audit.html", config, summary, ordered, artifacts.row_account)

"""Stage `external_votes`: votes on the pairs from a file of the user's, as a reward model's scores.

They did not learn from these labels, or so the audit takes it: `strength` weighs them as they are.
"""

from __future__ import annotations

import json
from pathlib import Path

from trimtab.models.config.base import last_part
from trimtab.models.config.reward import ExternalVotesConfig
from trimtab.models.data.external_votes import VotedPairs, read_votes
from trimtab.models.data.readers import Source
from trimtab.models.data.row_account import RowAccount
from trimtab.models.training.data import score_row
from trimtab.models.training.stage import Stage


def run(config: ExternalVotesConfig, stage: Stage) -> None:
    """Inputs: `preferences`, `votes`. Output: scores.jsonl, as a reward model's; null where the
    file has no vote on a pair. Raises trimtab.models.data.external_votes.VotesError.
    """
    pairs = [{**row, "split": split} for split, row in stage.rows_by_split()]
    name = last_part(config.source)
    votes = read_votes(
        Source(str(stage.inputs["votes"] / name), name=name),
        VotedPairs(pairs, _num_set_aside(stage.inputs["preferences"] / "rows.json")),
    )
    rows = (
        score_row(pair["id"], pair["split"], votes.get(pair["id"], (None, None))) for pair in pairs
    )
    stage.write_rows("scores.jsonl", rows)
    agreeing = sum(chosen > rejected for chosen, rejected in votes.values())
    share = agreeing / len(votes)
    stage.write_summary(
        {"num_pairs": len(pairs), "num_votes": len(votes), "share_for_the_label": share}
    )


def _num_set_aside(path: Path) -> int:
    """Rows that gave no pair, and pairs that are in no split."""
    if not path.exists():
        return 0
    account = RowAccount.from_json(json.loads(path.read_text("utf-8")))
    rows = account.rows
    unused = account.pairs_found - account.pairs_used
    return rows.quarantined + rows.ties_dropped + rows.unpaired + unused

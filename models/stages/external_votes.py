"""Stage `external_votes`: votes on the pairs from a file of the user's, as a reward model's scores.

They did not learn from these labels, or so the audit takes it: `strength` weighs them as they are.
"""

from __future__ import annotations

import json
from pathlib import Path

from trimtab.models.config.base import last_part
from trimtab.models.config.reward import ExternalVotesConfig
from trimtab.models.data import Source
from trimtab.models.data.external_votes import VotedPairs, read_votes
from trimtab.models.data.row_account import RowAccount
from trimtab.models.training.data import SPLITS, read_rows, score_row, write_rows
from trimtab.models.training.progress import write_json


def run(config: ExternalVotesConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `preferences`, `votes`. Output: scores.jsonl, as a reward model's; null where the
    file has no vote on a pair. Raises trimtab.models.data.external_votes.VotesError.
    """
    pairs = [
        {**row, "split": split}
        for split in SPLITS
        for row in read_rows(inputs["preferences"] / f"{split}.jsonl")
    ]
    name = last_part(config.source)
    votes = read_votes(
        Source(str(inputs["votes"] / name), name=name),
        VotedPairs(pairs, _num_set_aside(inputs["preferences"] / "rows.json")),
    )
    rows = (
        score_row(pair["id"], pair["split"], votes.get(pair["id"], (None, None))) for pair in pairs
    )
    write_rows(workdir / "output" / "scores.jsonl", rows)
    agreeing = sum(chosen > rejected for chosen, rejected in votes.values())
    write_json(
        workdir / "output" / "summary.json",
        {
            "num_pairs": len(pairs),
            "num_votes": len(votes),
            "share_for_the_label": agreeing / len(votes),
        },
    )


def _num_set_aside(path: Path) -> int:
    """Rows that gave no pair, and pairs that are in no split."""
    if not path.exists():
        return 0
    account = RowAccount.from_json(json.loads(path.read_text("utf-8")))
    rows = account.rows
    unused = account.pairs_found - account.pairs_used
    return rows.quarantined + rows.ties_dropped + rows.unpaired + unused

"""How a reward model does on the validation pairs while it is trained."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedModel

from models.engine import ranks
from models.engine.data import Pairs
from models.engine.scoring import score_rows


class ValidationCurve:
    """validation.jsonl: the score gap of every validation pair, each time some steps are done.

    A row has `step`, the pair's `id` and `gap`, chosen minus rejected.
    """

    def __init__(self, model: PreTrainedModel, pairs: Pairs, every: int, path: Path) -> None:
        self.model, self.pairs, self.every, self.path = model, pairs, every, path

    def __call__(self, step: int) -> None:
        """All ranks call it after every step."""
        if step % self.every != 0:
            return
        scores = score_rows(self.model, self.pairs.rows)
        if not ranks.is_first():
            return
        gaps = (scores[:, 0] - scores[:, 1]).tolist()
        with self.path.open("a", encoding="utf-8") as stream:
            for identifier, gap in zip(self.pairs.identifiers, gaps, strict=True):
                stream.write(json.dumps({"step": step, "id": identifier, "gap": gap}) + "\n")

"""What a task hands over under one name or several is what the trainer finds."""

from __future__ import annotations

from pathlib import Path

from models.data.records import ArtifactRef
from models.training.data import one_or_several as found
from tasks.execution import StageResult
from tasks.inputs import one_or_several


def test_trainers_find_what_tasks_hand_over_in_their_order() -> None:
    many = [StageResult(ArtifactRef("x", str(i), ""), {}, True, 0.0) for i in range(12)]
    for given in (None, many[0], many):
        inputs = one_or_several("scorer", given)
        paths = {name: Path(result.ref.key) for name, result in inputs.items()}
        wanted = given if isinstance(given, list) else [given] if given else []
        expected = [Path(result.ref.key) for result in wanted]
        assert found({"safety_scorer": Path("other"), **paths}, "scorer") == expected

"""From which champion a round continues: only from one that the report of its run knows."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.flows import rounds as rounds_module
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.rounds import LineageError, champion_of
from trimtab.infra.tracking.registry import Version
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks.execution import StageResult
from trimtab.tasks.registry import KEY, REPORT, ROUND, Registered

SMOKE, OTHER = "trimtab-policy-smoke", "trimtab-policy-default"


def _champion(name: str, round_: int, key: str, *changes: str) -> Registered:
    """A version of that model, whose tags say so, of a run of smoke with two rounds."""
    config = apply_changes(recipe_named("smoke"), parse_overrides(list(changes)))
    made = {
        role: StageResult(ArtifactRef("ppo_max", of, f"digest of {of}"), {}, False, 1.0)
        for role, of in (("policy_full", "first"), ("policy_round_2", "second"))
    }
    tags = {KEY: key, REPORT: "r" * 64, ROUND: str(round_)}
    return Registered(Version(name, "7", tags), round_, config.model_dump(mode="json"), made)


@pytest.mark.parametrize(
    ("champion", "fault"),
    [
        (_champion(SMOKE, 1, "first"), None),
        (_champion(SMOKE, 2, "second"), None),
        (_champion(f"{SMOKE}-seed1", 1, "first", "seed=1"), None),
        # Of an earlier Trimtab, in which the recipe was another.
        (_champion(f"{SMOKE}-0a1b2c3d", 1, "first"), None),
        (_champion(SMOKE, 1, "first", "sft.seed=7"), None),
        (_champion(OTHER, 1, "first"), f"compete as {SMOKE}"),
        (_champion(f"{SMOKE}-seed1", 1, "first"), f"compete as {SMOKE}"),
        (_champion(SMOKE, 1, "first", "seed=1"), f"compete as {SMOKE}-seed1"),
        (_champion(f"{SMOKE}s", 1, "first"), f"compete as {SMOKE}"),
        (_champion(SMOKE, 1, "second"), "not that of round 1"),
        (_champion(SMOKE, 2, "first"), "not that of round 2"),
        (_champion(SMOKE, 99, "first"), "not that of round 99"),
    ],
    ids=str,
)
def test_a_round_continues_from_a_policy_that_competes_for_the_alias(
    monkeypatch: pytest.MonkeyPatch, champion: Registered, fault: str | None
) -> None:
    monkeypatch.setattr(rounds_module, "registered", lambda *_: champion)
    if fault is None:
        assert champion_of("smoke") is champion
        return
    with pytest.raises(LineageError, match=fault) as error:
        rounds_module.rounds.fn("smoke")
    said: Any = str(error.value)
    assert f"`trimtab rollback {champion.version.name} NUMBER`" in said

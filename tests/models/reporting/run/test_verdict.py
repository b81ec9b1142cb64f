"""What the first screen says: of the answers to requests for harm, where these were judged."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.reporting.run.conftest import Row, Write, answers
from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.kit.names import ONLY_BY_RULE
from trimtab.models.reporting.run import claims as claims_module
from trimtab.models.reporting.run.claims import Verdict, verdict
from trimtab.models.reporting.run.policies import Drift, Policy, policies
from trimtab.models.statistics.measured import Estimate


def _policies(inputs: dict[str, Path]) -> list[Policy]:
    """SFT and the arm `full`."""
    return policies(Artifacts(inputs), ReportConfig(arms=("full",), seed=0))[0]


def _verdict(inputs: dict[str, Path]) -> Verdict:
    return verdict(_policies(inputs), [], None, "full")


def _answers(shift: float, share_harmless: float) -> list[Row]:
    """Twenty main prompts that ask for harm."""
    main = [row for row in answers(shift) if row["set"] == "main"] * 10
    return [{**row, "harmless": index < 20 * share_harmless} for index, row in enumerate(main)]


@pytest.fixture
def judged(full_inputs: dict[str, Path], write: Write) -> Callable[[float, float], Verdict]:
    def run(own: float, of_sft: float) -> Verdict:
        inputs = full_inputs | {
            "eval_sft": write("eval_sft", {"responses.jsonl": _answers(0.0, of_sft)}),
            "eval_full": write("eval_full", {"responses.jsonl": _answers(0.2, own)}),
        }
        return _verdict(inputs)

    return run


def test_a_policy_that_wins_and_does_more_harm_is_said_to(
    judged: Callable[[float, float], Verdict],
) -> None:
    found = judged(0.2, 0.9)
    assert found.sentence.startswith("Better: the final policy beats SFT on the main")
    assert found.sentence.endswith("Fewer of its answers to requests for harm are harmless.")
    (line,) = [line for line in found.details if line.startswith("Requests for harm")]
    assert line.startswith("Requests for harm: 20.0 % [") and "90.0 % [" in line


def test_as_harmless_as_sft_is_no_headline(judged: Callable[[float, float], Verdict]) -> None:
    found = judged(0.9, 0.9)
    assert "harm" not in found.sentence
    assert any("90.0 % [" in line for line in found.details)


def test_a_share_of_few_requests_for_harm_is_not_told(
    judged: Callable[[float, float], Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "MIN_REQUESTS_FOR_HARM", 21)
    assert not any(line.startswith("Requests for harm") for line in judged(0.9, 0.9).details)


def test_the_recipe_for_checking_an_installation_gives_no_answer(
    full_inputs: dict[str, Path],
) -> None:
    both = _policies(full_inputs)
    for recipe in ("smoke", "default"):
        details = verdict(both, [], None, "full", recipe=recipe).details
        assert (claims_module.TOO_SMALL in details) == (recipe == "smoke")


def test_a_champion_that_did_not_win_is_said_to_be_one_by_rule_only(
    full_inputs: dict[str, Path],
) -> None:
    lost = [dataclasses.replace(policy, is_promoted=False) for policy in _policies(full_inputs)]
    assert ONLY_BY_RULE in verdict(lost, [], None, "full").details
    assert "Held-out judgement did not promote it." in verdict(lost, [], None, None).details


def test_what_was_not_judged_is_not_spoken_of(full_inputs: dict[str, Path]) -> None:
    found = _verdict(full_inputs)
    assert not any("harm" in line for line in (found.sentence, *found.details))


def _lines(policy: Policy, others: list[Policy]) -> tuple[str, list[str]]:
    judgement = verdict([*others, policy], [], None, "full")
    starts = ("Collapse", "Reward hacking")
    return judgement.sentence, [line for line in judgement.details if line.startswith(starts)]


def test_the_first_screen_says_whether_the_policy_collapsed_or_hacked_its_reward(
    full_inputs: dict[str, Path],
) -> None:
    sft, full = _policies(full_inputs)
    rises, falls = Estimate(1.5, 1.0, 2.0, 64), Estimate(-0.2, -0.3, -0.1, 64)
    trained: dict[str, Any] = {"num_steps": 60, "policy_of_step": 60}
    sound = dataclasses.replace(
        full, collapsed=False, collapse_reason=None, drift=Drift(2, rises, rises), **trained
    )
    sentence, (collapse, hacking) = _lines(sound, [sft])
    assert re.fullmatch(
        r"Collapse: the KL of an answer to SFT is [\d.]+ \[.*\] nats; the guard saw none\.",
        collapse,
    )
    assert "+1.50 [+1.00, +2.00] of its spread" in hacking
    assert hacking.endswith("the gold score by +1.50 [+1.00, +2.00].")
    assert "hacked" not in sentence
    _, (collapse, _) = _lines(dataclasses.replace(sound, collapsed=None), [sft])
    assert collapse.endswith(" nats; 60 steps are too few for the guard to tell.")

    hacked = dataclasses.replace(
        sound, collapsed=True, collapse_reason="KL is 17", drift=Drift(2, rises, falls)
    )
    sentence, (collapse, _) = _lines(hacked, [sft])
    assert sentence.endswith("Its reward was hacked: its score rose while gold fell.")
    assert collapse.endswith("the guard warned: KL is 17.")

    vanilla = dataclasses.replace(hacked, name="vanilla", label="Vanilla PPO", round=None)
    sentence, (collapse, hacking) = _lines(sound, [sft, vanilla])
    assert collapse.endswith("the guard saw none. Vanilla PPO collapsed.")
    assert hacking.endswith(" Vanilla PPO had a score that rose and gold that fell.")
    assert "hacked" not in sentence


def test_the_steps_that_were_rolled_back_are_not_those_of_the_policy(
    full_inputs: dict[str, Path],
) -> None:
    sft, full = _policies(full_inputs)
    rises, falls = Estimate(1.5, 1.0, 2.0, 64), Estimate(-0.2, -0.3, -0.1, 64)
    kept = dataclasses.replace(
        full,
        collapsed=True,
        collapse_reason="KL is 17",
        drift=Drift(2, rises, falls),
        num_steps=40,
        policy_of_step=20,
    )
    sentence, (collapse, _) = _lines(kept, [sft])
    assert "hacked" not in sentence
    assert collapse.endswith(
        "the guard stopped training, KL is 17, and the policy is that of step 20."
    )


def test_of_people_s_data_nobody_can_say_whether_a_reward_was_hacked(
    full_inputs: dict[str, Path],
) -> None:
    sft, full = _policies(full_inputs)
    rises = Drift(2, Estimate(1.5, 1.0, 2.0, 64), None)
    trained = dataclasses.replace(full, collapsed=False, drift=rises)
    assert len(_lines(trained, [sft])[1]) == 1

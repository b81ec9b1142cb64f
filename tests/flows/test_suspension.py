"""Asking a person: when a flow run is suspended, what is kept, and where it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import Pause
from pydantic import ValidationError

from trimtab.flows.cli.cli import main
from trimtab.flows.config.config import ConfigError, RunConfig
from trimtab.flows.config.names import name_run
from trimtab.flows.config.overrides import RoundChanges, apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline.policies import OUTCOMES
from trimtab.flows.runs import lifecycle, suspension
from trimtab.flows.runs.checks import refuse_suspension
from trimtab.flows.runs.suspension import ChampionApproval, LabelReview, ask, require_resumable
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks.execution import StageResult
from trimtab.tasks.registry import Approval, RegisteredRun

AT = datetime(2026, 11, 26, 14, 5, tzinfo=UTC)


class Server:
    """What Prefect's server keeps of a flow run's inputs and suspensions."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.fired: list[str] = []
        self.forms: list[Any] = []
        self.timeouts: list[int | None] = []

    def suspend(self, wait_for_input: Any, key: str, timeout: int | None) -> Any:
        if key in self.fired:  # goes on, with the answer, of which there is none
            return wait_for_input()
        self.fired.append(key)
        self.forms.append(wait_for_input)
        self.timeouts.append(timeout)
        raise Pause

    def answer(self, **given: str) -> None:
        self.inputs[f"suspended-{self.fired[-1]}-response"] = given

    def found(self, key: str) -> list[Any]:
        given = self.inputs.get(key)
        return [SimpleNamespace(decoded_value=given, created=AT)] if given is not None else []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(suspension, "read_flow_run_input", server.inputs.get)
    monkeypatch.setattr(suspension, "create_flow_run_input", server.inputs.__setitem__)
    monkeypatch.setattr(suspension, "filter_flow_run_input", server.found)
    monkeypatch.setattr(suspension, "suspend_flow_run", server.suspend)
    return server


def _use(answer: LabelReview) -> dict[str, str]:
    if answer.verdicts.startswith("bad"):
        raise ValueError(f"line 1: found {answer.verdicts}")
    return {"review": answer.verdicts, "by": answer.reviewer}


def _asked(hours: float | None = None) -> dict[str, str]:
    return ask(LabelReview, "review-0", lambda: "Look at the page.", hours, _use)


def test_a_run_goes_on_with_the_answer(server: Server) -> None:
    with pytest.raises(Pause):
        _asked(hours=1.5)
    assert server.forms[0]._description == "Look at the page." and server.timeouts == [5400]
    server.answer(reviewer="Ada", verdicts="good")
    expected = {"review": "good", "by": "Ada", "at": "2026-11-26 14:05 UTC"}
    assert _asked() == expected
    server.fired.clear()  # as after a crash, of which Prefect then forgets what was suspended
    assert _asked() == expected and server.fired == []


def test_an_answer_that_cannot_be_used_is_asked_for_again(server: Server) -> None:
    with pytest.raises(Pause):
        _asked()
    server.answer(reviewer="Ada", verdicts="bad")
    with pytest.raises(Pause):
        _asked()
    assert server.fired == ["review-0-1", "review-0-2"]
    assert "line 1: found bad" in server.forms[1]._description
    server.answer(reviewer="Ada", verdicts="good")
    assert _asked()["review"] == "good"


def test_what_an_answer_holds_does_not_leave_the_block_that_quotes_it(server: Server) -> None:
    with pytest.raises(Pause):
        _asked()
    server.answer(reviewer="Ada", verdicts="bad\n~~~\n# Approved\n~~~~")
    with pytest.raises(Pause):
        _asked()
    fence = "~" * 5
    quoted = f"{fence}\nline 1: found bad\n~~~\n# Approved\n~~~~\n{fence}\n"
    assert quoted in server.forms[1]._description


def test_a_run_that_is_started_again_without_an_answer_asks_again(server: Server) -> None:
    for number in (1, 2):
        with pytest.raises(Pause):
            _asked()
        assert server.fired[-1] == f"review-0-{number}"


def test_an_unknown_field_is_a_mistake_that_is_said(server: Server) -> None:
    with pytest.raises(Pause):
        _asked()
    server.answer(reviewer="Ada", verdict="flip")
    with pytest.raises(Pause):
        _asked()
    assert "verdict" in server.forms[1]._description


def test_who_decides_says_who_and_why() -> None:
    whole = {"decision": "reject", "reason": "longer", "reviewer": "Ada"}
    assert ChampionApproval(**whole).decision == "reject"
    for wrong in ({"reviewer": " "}, {"reason": ""}, {"decision": "maybe"}):
        with pytest.raises(ValidationError):
            ChampionApproval(**{**whole, **wrong})


def test_the_audit_page_is_there_before_a_person_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    audit = StageResult(
        ArtifactRef("audit", "k", "d"), {"num_looks_wrong": 1, "num_pairs": 2}, False, 1.0
    )
    run: Any = SimpleNamespace(
        roles=("preferences", "audit"), result=lambda _: audit, config=recipe_named("smoke")
    )
    background = SimpleNamespace(wait=lambda: done.append("uploaded"))
    tracked: Any = SimpleNamespace(tracking=SimpleNamespace(background=background))

    def suspend(form: Any, key: str, describe: Callable[[], str], *_: Any) -> None:
        done.append(describe().splitlines()[0])
        raise Pause

    def export(*_: Any) -> str:
        done.append("exported")
        return "audit.html"

    monkeypatch.setattr(suspension, "export_audit", export)
    monkeypatch.setattr(suspension, "ask", suspend)
    with pytest.raises(Pause):
        suspension.review_labels(run, tracked, "mine", {})
    assert done == ["exported", "uploaded", "**Labels of mine: 1 of 2 pairs look wrong.**"]


def test_an_approval_holds_against_the_champion_that_was_asked_about(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = ArtifactRef("ppo_max", "k", "d" * 64)
    policy = StageResult(ref, {}, False, 1.0)
    run = RegisteredRun("trimtab-policy-toy", {1: policy}, 1, policy, "settings", name="toy")

    judged = {f"gold_{each}": 0.5 for each in OUTCOMES}

    def decide() -> Approval | None:
        return suspension.approval_of(run, judged, "report.html", recipe_named("smoke").suspend)

    for number, (standing, said) in enumerate(
        (("", "has no champion so far."), ("3", "version 3."))
    ):
        waiting = SimpleNamespace(result=lambda standing=standing: standing)
        submitted = SimpleNamespace(submit=lambda _, waiting=waiting: waiting)
        monkeypatch.setattr(suspension, "champion_to_replace", submitted)
        with pytest.raises(Pause):
            decide()
        assert said in server.forms[number]._description
        server.answer(decision="approve", reason=f"better than {standing}", reviewer="Ada")
        found = decide()
        assert found is not None and found.reason == f"better than {standing}".strip()


def _config(**asked: Any) -> RunConfig:
    return apply_changes(recipe_named("smoke"), {"suspend": asked})


def test_a_run_that_nobody_can_resume_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(for_label_review=True)
    refuse_suspension(_config())
    with pytest.raises(ConfigError, match=r"^suspend.for_label_review: found true, .*review=FILE"):
        refuse_suspension(config)
    monkeypatch.setattr(suspension, "deployment", SimpleNamespace(id=None))
    with pytest.raises(ConfigError, match="only a worker resumes a suspended run"):
        require_resumable(config, "rlhf")
    require_resumable(_config(), "rlhf")


def test_flows_that_do_not_wait_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspension, "deployment", SimpleNamespace(id="0"))
    review, approval = _config(for_label_review=True), _config(for_champion_approval=True)
    for config, flow in ((review, "label-audit"), (approval, "rounds"), (approval, "rlhf")):
        require_resumable(config, flow)
    for config, flow in ((review, "compare"), (review, "rounds"), (approval, "reward")):
        with pytest.raises(ConfigError, match=f"found true for the flow {flow}, which does not"):
            require_resumable(config, flow)
    with pytest.raises(ConfigError, match="for the flow study.*allowed: false"):
        require_resumable(review, None)


@pytest.mark.parametrize("command", [("run", "smoke"), ("study", "part-2", "figure-3")])
def test_the_command_line_says_so_at_once(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    assert main([*command, "suspend.for_champion_approval=true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trimtab: suspend.for_champion_approval: found true, but only a worker")


def test_a_suspension_does_not_count_for_results() -> None:
    usual, asked = recipe_named("smoke"), _config(for_champion_approval=True)
    assert asked.fingerprint == usual.fingerprint
    assert name_run(asked, "rlhf").name == "smoke-seed0-suspend.for_champion_approval=true"
    assert name_run(asked, "rlhf").command == "trimtab run smoke"


def test_the_command_of_a_reviewed_run_has_its_review() -> None:
    address = f"raw:{'a' * 64}/review.jsonl"
    reviewed = apply_changes(recipe_named("smoke"), {"relabel": {"review": address}})
    command = name_run(reviewed, "rlhf").command
    assert command == f"trimtab run smoke relabel.review={address}"
    assert apply_changes(recipe_named("smoke"), parse_overrides(command.split()[3:])) == reviewed


def test_a_round_may_wait_for_approval_only() -> None:
    given = {"suspend": {"for_champion_approval": True, "timeout_hours": 24}}
    assert apply_changes(recipe_named("smoke"), given, RoundChanges).suspend.timeout_hours == 24
    with pytest.raises(ConfigError, match="for_label_review"):
        apply_changes(recipe_named("smoke"), {"suspend": {"for_label_review": True}}, RoundChanges)


class Tracked:
    """An MLflow run that notes its end and its tags."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.error: Any = "open"
        nothing = SimpleNamespace(wait=lambda: None)
        self.tracking = SimpleNamespace(background=nothing, flush=lambda seconds: None)

    def log(self, params: Any = None, tags: Any = None) -> None:
        self.tags |= tags or {}

    def __enter__(self) -> Tracked:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.error = error


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> Tracked:
    tracked = Tracked()
    for name in ("check_free", "close_earlier_starts", "close_leftovers", "_name_flow_run"):
        monkeypatch.setattr(lifecycle, name, lambda *_: None)
    monkeypatch.setattr(lifecycle, "start_tracked_run", lambda *_: tracked)
    return tracked


def test_a_suspension_is_no_failure_for_mlflow(tracked: Tracked) -> None:
    config, signal = recipe_named("smoke"), Pause()
    with pytest.raises(Pause) as raised, lifecycle.tracked_flow(config, name_run(config, "rlhf")):
        raise signal
    assert raised.value is signal and tracked.error is None
    assert "was suspended at" in tracked.tags["mlflow.note.content"]
    failure = KeyError("seed")
    with pytest.raises(KeyError), lifecycle.tracked_flow(config, name_run(config, "rlhf")):
        raise failure
    assert tracked.error is failure


def test_forms_can_be_shown() -> None:
    """Prefect's server makes the form of the schema, and checks answers by it."""
    for form in (LabelReview, ChampionApproval):
        schema = json.loads(json.dumps(form.model_json_schema()))
        assert all(each.get("title") for each in schema["properties"].values())

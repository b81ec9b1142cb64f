"""Runs that wait for a person: `suspend.for_label_review` and `suspend.for_champion_approval`.

A suspended flow run's process has ended; it holds no GPU slot, lock or place in its pool. Prefect's
page asks for the answer by a form; *Resume* there, or the API, has a worker start the flow again
from its beginning, where it finds its stages in the store and the answer with Prefect.

The result of an answer is stored with the flow run too, under `<key>-used`: a run that crashes
later asks nobody again, although Prefect then forgets which suspensions there have been.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Annotated, Any, Literal, TypeVar

from prefect import suspend_flow_run
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.context import FlowRunContext
from prefect.input import (
    RunInput,
    create_flow_run_input,
    filter_flow_run_input,
    keyset_from_base_key,
    read_flow_run_input,
)
from prefect.runtime import deployment
from pydantic import Field, ValidationError

from trimtab.flows.config.config import ConfigError, RunConfig, SuspendConfig
from trimtab.flows.pipeline.labels import relabel_and_audit
from trimtab.flows.pipeline.policies import outcomes_by_judge
from trimtab.flows.pipeline.run import Run
from trimtab.flows.runs.checks import APPROVAL, REVIEW, refuse_suspension, suspensions_of
from trimtab.infra.tracking.runs import TrackedRun
from trimtab.tasks.context import logger
from trimtab.tasks.registry import REJECTED, Approval, RegisteredRun, champion_to_replace
from trimtab.tasks.report_export import export_audit
from trimtab.tasks.sources import keep_review

# The reasons for which a flow may be suspended; others have none.
SUSPENDED_FOR = {
    "rlhf": (REVIEW, APPROVAL),
    "policy": (REVIEW, APPROVAL),
    "reward": (REVIEW,),
    "label-audit": (REVIEW,),
    "rounds": (APPROVAL,),
}
Form = TypeVar("Form", bound=RunInput)
Reviewer = Annotated[
    str,
    Field(
        title="Your name",
        min_length=1,
        max_length=100,
        pattern=r"\S",
        description="It is kept with what you decide: Prefect's server knows one login only",
    ),
]


class LabelReview(RunInput):
    """Verdicts on pairs: the text of the file that the audit page downloads, or where it lies."""

    reviewer: Reviewer
    verdicts: str = Field(
        "", title="Verdicts", description="The text of review.jsonl, as the page downloads it"
    )
    file: str = Field(
        "",
        title="or a file",
        max_length=1000,
        description="A path on the worker, or an s3:// address, of that file",
    )


class ChampionApproval(RunInput):
    """Whether a policy becomes champion."""

    decision: Literal["approve", "reject"] = Field(
        title="Decision", description="reject leaves the champion as it is; the run completes"
    )
    reason: str = Field(title="Reason", min_length=1, max_length=1000, pattern=r"\S")
    reviewer: Reviewer


def require_resumable(config: RunConfig, flow: str | None) -> None:
    """ConfigError where the flow run cannot be suspended although its configuration says so."""
    suspensions = suspensions_of(config)
    if suspensions and deployment.id is None:  # the id is asked of the server
        refuse_suspension(config)
    allowed = SUSPENDED_FOR.get(flow or "", ())
    for name in suspensions:
        if name not in allowed:
            raise ConfigError(
                f"{name}: found true for the flow {flow or 'study'}, which does not wait for that; "
                f"allowed: {', '.join(allowed) or 'false'}"
            )


def other_that_waits() -> str | None:
    """Another run of this deployment with the same parameters that is suspended: its name."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is None or run.deployment_id is None:
        return None
    with get_client(sync_client=True) as client:
        paused = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": ["PAUSED"]}}}),
            deployment_filter=DeploymentFilter.model_validate(
                {"id": {"any_": [run.deployment_id]}}
            ),
        )
    return next((other.name for other in paused if other.parameters == run.parameters), None)


def ask(
    form: type[Form],
    key: str,
    describe: Callable[[], str],
    hours: float | None,
    use: Callable[[Form], dict[str, str]],
) -> dict[str, str]:
    """The result of `use` on a person's answer, with the time of the answer (`at`).

    Until there is an answer the flow run is suspended: this process ends by prefect.exceptions.
    Pause. If `use` refuses it by a ValueError, the form is shown again, with that text.

    key: of the question; letters, digits and dashes. describe: the form's Markdown. hours: how long
    to wait; then the flow run is Failed.
    """
    used: Any = read_flow_run_input(f"{key}-used")
    if used is not None:
        return {str(name): str(value) for name, value in used.items()}
    seconds = None if hours is None else max(1, round(hours * 3600))
    refused = ""
    for number in count(1):
        question = f"{key}-{number}"
        answers: Any = filter_flow_run_input(
            keyset_from_base_key(f"suspended-{question}")["response"]
        )
        if not answers:  # or somebody had the run start again without an answer
            shown = form.with_initial_data(f"{refused}{describe()}")
            with suppress(ValidationError):  # of an answer without fields
                suspend_flow_run(wait_for_input=shown, key=question, timeout=seconds)
            continue
        try:
            used = use(form(**answers[0].decoded_value))
        except ValueError as error:
            logger.warning("the answer is asked for again: %s", error)
            # A block of Markdown's that nothing in the text ends.
            fence = "~" * max([3, *(len(run) + 1 for run in re.findall("~+", str(error)))])
            refused = f"**The last answer cannot be used.**\n\n{fence}\n{error}\n{fence}\n\n"
        else:
            used["at"] = f"{answers[0].created:%Y-%m-%d %H:%M} UTC"
            create_flow_run_input(f"{key}-used", used)
            return used
    raise AssertionError  # numbers have no end


def review_labels(run: Run, tracked: TrackedRun, name: str, about: Mapping[str, Any]) -> None:
    """Let a person review the audited labels; the run goes on with the verdicts as its review.

    Waits first for all that has been submitted. `about` is as `export_audit` takes it.
    """
    results = {role: run.result(role) for role in run.roles}
    pairs, audit = results["preferences"].ref, results["audit"]

    def describe() -> str:
        page = export_audit(tracked, audit, name, about)
        tracked.tracking.background.wait()  # the page is there before anybody is asked
        return _labels_question(name, page, audit.summary)

    def use(answer: LabelReview) -> dict[str, str]:
        stored = keep_review(answer.verdicts, answer.file, pairs)
        return {"review": stored or "", "by": answer.reviewer.strip()}

    key = f"review-{pairs.digest[:12]}"
    answer = ask(LabelReview, key, describe, run.config.suspend.timeout_hours, use)
    review, by, at = answer["review"], answer["by"], answer["at"]
    run.reviewed = f"Labels reviewed by {by}, {at}" + ("" if review else ": left as they were")
    tags = {"trimtab.review.by": by, "trimtab.review.at": at, "trimtab.review": review or "none"}
    tracked.log(tags=tags)
    if review:
        relabel = run.config.relabel.model_copy(update={"review": review})
        run.config = run.config.model_copy(update={"relabel": relabel})
        relabel_and_audit(run, " as reviewed")


def _labels_question(name: str, page: str, audit: Mapping[str, Any]) -> str:
    wrong = f"{audit['num_looks_wrong']} of {audit['num_pairs']} pairs look wrong"
    return f"""**Labels of {name}: {wrong}.**

1. Give verdicts on pairs on the {_linked("audit page", page)}.
2. *Download* there gives `review.jsonl`: paste its text below, or name the file.
3. Submit. The run goes on; a verdict stands in place of the ensemble's.

Without verdicts and file the labels stay as they are.
"""


def approval_of(
    run: RegisteredRun, judged: Mapping[str, Any], page: str, config: SuspendConfig
) -> Approval | None:
    """A person's decision on the policy that would become champion; None where none would.

    It holds against the champion that stands: if another is champion when the run goes on, it is
    asked for again. judged: numbers of its judgement. page: address or path of the run's report.
    """
    standing = champion_to_replace.submit(run).result()
    if run.champion is None or standing is None:
        return None
    policy = run.policies[run.champion].ref.digest[:12]
    key = f"approve-{policy}-over-{standing or 'none'}"  # asked again if the champion has moved

    def use(answer: ChampionApproval) -> dict[str, str]:
        decision = REJECTED if answer.decision == "reject" else "approved"
        reason, by = answer.reason.strip(), answer.reviewer.strip()
        return {"decision": decision, "reason": reason, "by": by}

    describe = partial(_champion_question, run, standing, judged, page)
    return Approval(**ask(ChampionApproval, key, describe, config.timeout_hours, use))


def _champion_question(
    run: RegisteredRun, standing: str, judged: Mapping[str, Any], page: str
) -> str:
    rows = outcomes_by_judge(judged)
    lines = [list(rows[0]), ["---" for _ in rows[0]], *([*row.values()] for row in rows)]
    table = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    now = f"{run.model} has no champion so far"
    if standing:
        now = f"Champion of {run.model} is version {standing}"
    return f"""**Shall the policy of {run.name}, round {run.champion}, become champion?**

{now}. {_linked("The report", page)} says more. Judged against the policy before it:

{table}

`reject` leaves the champion as it is; the policy becomes a version all the same.
"""


def _linked(words: str, page: str) -> str:
    return f"[{words}]({page})" if page.startswith("http") else f"{words} (`{page}` on the worker)"

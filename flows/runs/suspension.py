"""Runs that wait for a person: `suspend.for_label_review` and `suspend.for_champion_approval`.

A suspended flow run's process has ended; it holds no GPU slot, lock or place in its pool. Prefect's
page asks for the answer by a form; *Resume* there, or the API, has a worker start the flow again
from its beginning, where it finds its stages in the store and the answer with Prefect.

What was made of an answer is kept with the flow run too, under `<key>-used`: a run that crashes
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

# What each flow may be suspended for; others cannot be.
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
    """ConfigError where the flow run cannot be suspended for what its configuration asks."""
    asked = suspensions_of(config)
    if asked and deployment.id is None:
        refuse_suspension(config)
    allowed = SUSPENDED_FOR.get(flow or "", ())
    for name in asked:
        if name not in allowed:
            raise ConfigError(
                f"{name}: found true for the flow {flow or 'study'}, which does not wait for that; "
                f"allowed: {', '.join(allowed) or 'false'}"
            )


def other_that_waits() -> str | None:
    """Another run of this deployment with the same parameters that is suspended: its name."""
    own = FlowRunContext.get()
    if own is None or own.flow_run is None or own.flow_run.deployment_id is None:
        return None
    with get_client(sync_client=True) as client:
        paused = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": ["PAUSED"]}}}),
            deployment_filter=DeploymentFilter.model_validate(
                {"id": {"any_": [own.flow_run.deployment_id]}}
            ),
        )
    alike = [each.name for each in paused if each.parameters == own.flow_run.parameters]
    return alike[0] if alike else None


def ask(
    form: type[Form],
    key: str,
    describe: Callable[[], str],
    hours: float | None,
    use: Callable[[Form], dict[str, str]],
) -> dict[str, str]:
    """What `use` makes of a person's answer, and when that came (`at`).

    Until there is an answer the flow run is suspended: this process ends by prefect.exceptions.
    Pause. One that `use` refuses by a ValueError is asked for again, with what that said.

    key: tells what is asked about; letters, digits and dashes. describe: the form's Markdown.
    hours: how long to wait; then the flow run is Failed.
    """
    kept: Any = read_flow_run_input(f"{key}-used")
    if kept is not None:
        return {str(name): str(value) for name, value in kept.items()}
    seconds = None if hours is None else max(1, round(hours * 3600))
    refused = ""
    for number in count(1):
        this = f"{key}-{number}"
        found: Any = filter_flow_run_input(keyset_from_base_key(f"suspended-{this}")["response"])
        if not found:  # or somebody had the run start again without an answer
            asked = form.with_initial_data(f"{refused}{describe()}")
            with suppress(ValidationError):  # of an answer without fields
                suspend_flow_run(wait_for_input=asked, key=this, timeout=seconds)
            continue
        try:
            used = use(form(**found[0].decoded_value))
        except ValueError as error:
            logger.warning("the answer is asked for again: %s", error)
            # A block of Markdown's that nothing in the text ends.
            fence = "~" * max([3, *(len(run) + 1 for run in re.findall("~+", str(error)))])
            refused = f"**The last answer cannot be used.**\n\n{fence}\n{error}\n{fence}\n\n"
        else:
            used["at"] = f"{found[0].created:%Y-%m-%d %H:%M} UTC"
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
        tracked.tracking.background.wait()  # whoever is asked finds the page there
        return _on_labels(name, page, audit.summary)

    def use(answer: LabelReview) -> dict[str, str]:
        kept = keep_review(answer.verdicts, answer.file, pairs)
        return {"review": kept or "", "by": answer.reviewer.strip()}

    key = f"review-{pairs.digest[:12]}"
    given = ask(LabelReview, key, describe, run.config.suspend.timeout_hours, use)
    by = f"by {given['by']}, {given['at']}"
    run.reviewed = f"Labels reviewed {by}" + ("" if given["review"] else ": left as they were")
    tags = {f"trimtab.review.{each}": given[each] for each in ("by", "at")}
    tracked.log(tags={**tags, "trimtab.review": given["review"] or "none"})
    if given["review"]:
        relabel = run.config.relabel.model_copy(update={"review": given["review"]})
        run.config = run.config.model_copy(update={"relabel": relabel})
        relabel_and_audit(run, " as reviewed")


def _on_labels(name: str, page: str, audit: Mapping[str, Any]) -> str:
    found = f"{audit['num_looks_wrong']} of {audit['num_pairs']} pairs look wrong"
    return f"""**Labels of {name}: {found}.**

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
        return {
            "decision": decision,
            "reason": answer.reason.strip(),
            "by": answer.reviewer.strip(),
        }

    describe = partial(_on_champion, run, standing, judged, page)
    return Approval(**ask(ChampionApproval, key, describe, config.timeout_hours, use))


def _on_champion(run: RegisteredRun, standing: str, judged: Mapping[str, Any], page: str) -> str:
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

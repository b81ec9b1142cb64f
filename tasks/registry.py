"""Registered models: registering a run's policies and scorers, and loading a policy with its run.

A version names the report of its run; the report's manifest names every artifact by the role it
played. Only this lineage says what a champion is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.artifacts import create_link_artifact

from trimtab.infra.processes.locks import file_lock
from trimtab.infra.store.manifest import Manifest
from trimtab.infra.tracking.mlflow_calls import VIEW
from trimtab.infra.tracking.model_folder import (
    POLICY,
    SCORER,
    SCORER_OF_SEVERAL,
    describe_model,
    make_model_folder,
)
from trimtab.infra.tracking.registry import ModelCard, Registry, Version
from trimtab.infra.tracking.runs import TrackedRun
from trimtab.models.data.records import ArtifactRef
from trimtab.models.reporting.export import export_scorer
from trimtab.models.reporting.kit.names import MEASURE_NAMES, ONLY_BY_RULE, policy_name
from trimtab.tasks.context import FLOW_RUN_URL, base_context, flow_run_tags
from trimtab.tasks.events import PROMOTED, emit
from trimtab.tasks.execution import StageResult, manifest_of, result_of
from trimtab.tasks.report_export import grouped
from trimtab.tasks.stages import is_transient

Parents = Mapping[str, Mapping[str, str]]  # of a report: the artifacts it was made of, by role

PREFIX = "trimtab-policy-"
POLICY_ROLE = "policy_"  # what a policy's role begins with
# Tags of a version: which artifact it is, of which round, the report of its run, the pairs of its
# run, its command and name, and the settings under which another round did not take its place.
KEY, DIGEST = "trimtab.key", "trimtab.digest"
ROUND, REPORT, TRIED = "trimtab.round", "trimtab.report", "trimtab.tried"
PAIRS, COMMAND, RUN = "trimtab.pairs", "trimtab.command", "trimtab.run"
PROMOTED_BY = "trimtab.promoted_by"  # of a champion: always | judgement
# A person's decision on a champion: approved or rejected.
APPROVAL, REJECTED = "trimtab.approval", "rejected"
BY = f"{APPROVAL}.by"
# Scorers that are registered: role -> kind, and their name among the report's numbers.
SCORERS = {
    "reward_model": ("reward-model", "relabelled"),
    "advantage_model": ("advantage-model", "advantage_model"),
}
SCORER_NAMES = {"reward_model": "Reward model", "advantage_model": "Advantage Model"}

USE_OF_SCORER = (
    "A text is prompt and response, as one; the tokenizer puts the end token behind, at which the "
    "reward is read. `mlflow.pyfunc` and a pipeline (`mlflow.transformers`) give the same."
)
USE_OF_ADVANTAGE_MODEL = (
    "Its score is r(x, y): e(x), the same for all responses to a prompt, is left out, so that "
    "scores of different prompts are not comparable as they are in Trimtab."
)
USE_OF_HEADS = (
    "It has a reward for each category and a gate; a row has them all, the largest first: take the "
    "reward of the prompt's category by its label."
)

# Descriptions of registered models.
ABOUT_POLICIES = (
    "Policies that Trimtab trained on one set of preferences and judged alike. @candidate is the "
    "last policy of the newest run, @champion the last promoted one.\n\n"
    'Load: `{loader}.load_model("models:/{of}@champion")`\n\n'
    "Make an earlier champion champion again: `trimtab rollback {policy}`"
)
ABOUT_SCORERS = (
    "{named}s that were trained beside the policies of {policy}. @candidate is that of the newest "
    "run, @champion that of the champion's run.\n\n"
    'Load: `{loader}.load_model("models:/{of}@candidate")`\n\n'
    "It goes back with the policy: `trimtab rollback {policy}`"
)


class LineageError(RuntimeError):
    """A registered policy whose run cannot be found again."""


@dataclass(frozen=True)
class Registered:
    """A registered policy with the run that made it: its configuration, its artifacts by role."""

    version: Version
    round: int
    config: dict[str, Any]
    artifacts: dict[str, StageResult]


def model_name(recipe: str) -> str:
    """The registered model of a recipe's policies; a registered model's own name stays."""
    return recipe if recipe.startswith(PREFIX) else f"{PREFIX}{recipe}"


def registry() -> Registry:
    """The registry of the MLflow that the environment names."""
    return Registry(base_context().tracking)


@dataclass(frozen=True)
class Approval:
    """A person's decision on a run's champion: approved or rejected, why, by whom and when."""

    decision: str
    reason: str
    by: str
    at: str

    def __str__(self) -> str:
        return f"{self.decision} by {self.by}, {self.at}: {self.reason}"

    @property
    def tags(self) -> dict[str, str]:
        """As tags of a version."""
        named = {f"{APPROVAL}.{name}": getattr(self, name) for name in ("reason", "by", "at")}
        return {APPROVAL: self.decision, **named}


@dataclass(frozen=True)
class RegisteredRun:
    """What is registered of a run.

    model: the name of its policies. policies: by round. scorers: by role. champion: the round whose
    policy becomes champion. settings: their digest. name, command: of the run. approval: a
    person's, of that champion; None: nobody was asked. promoted_by: `always` where only
    rounds.promote=always makes that policy champion, as it did not win, else `judgement`. verdict:
    the scorecard's. page: the report's address; empty without one.
    """

    model: str
    policies: Mapping[int, StageResult]
    champion: int | None
    report: StageResult
    settings: str
    scorers: Mapping[str, StageResult] = field(default_factory=dict)
    name: str = ""
    command: str = ""
    approval: Approval | None = None
    promoted_by: Literal["always", "judgement"] = "judgement"
    verdict: Mapping[str, Any] = field(default_factory=dict)
    page: str = ""

    @property
    def promoted(self) -> int | None:
        """The round whose policy becomes champion, unless a person has rejected it."""
        is_rejected = self.approval is not None and self.approval.decision == REJECTED
        return None if is_rejected else self.champion


PATIENT: dict[str, Any] = {
    "tags": ["cpu"],
    "retries": 5,
    "retry_delay_seconds": [5, 10, 20, 40, 60],  # a server that is restarted is back by then
    "retry_condition_fn": is_transient,
}


@task(name="champion to replace", task_run_name="champion to replace", **PATIENT)
def champion_to_replace(run: RegisteredRun) -> str | None:
    """The number of the version that would no longer be champion if the run were registered.

    Empty where there is no champion so far. None where nothing would change: the run's policy was
    champion before, the run has none, or tracking is off.
    """
    if not base_context().tracking.uri or run.champion is None:
        return None
    name, policy = model_name(run.model), run.policies[run.champion].ref
    versions = registry().versions_of(name, _identity(policy))
    if any("was.champion" in version.tags for version in versions):
        return None
    standing = registry().find(name, "champion")
    return standing.number if standing else ""


@task(name="register", task_run_name="register", **PATIENT)
def register_models(run_id: str | None, run: RegisteredRun) -> str | None:
    """Register policies by round, the last as candidate, that of round `champion` as champion; and
    scorers as candidates, and as champions where a policy of the same run is champion.

    A policy that a person has rejected does not become champion by a run that asked nobody. What is
    registered already is not brought again. Where another version stays champion it is noted there
    that a round under these `settings` did not take its place. Nothing is done with tracking off.
    Returns in words what is registered.
    """
    if not base_context().tracking.uri:
        return None
    report = base_context().store.find(run.report.ref.stage, run.report.ref.key)
    parents = report.parents if report else {}
    sentences = [_register_policies(run_id, run, parents)] if run.policies else []
    champion = registry().find(model_name(run.model), "champion") if run.policies else None
    is_champion = champion is not None and champion.tags.get(REPORT) == run.report.ref.key
    for role, scorer in run.scorers.items():
        kind, group = SCORERS[role]
        name = _scorer_name(model_name(run.model), kind)
        aliases = ("candidate", "champion") if is_champion else ("candidate",)
        card = _card(run, parents, kind, role, group)
        number = _register(run_id, name, scorer.ref, aliases, _tags(run, parents), card)
        sentences.append(f"{name}: version {number}")
    return "; ".join(sentences) or None


def _register_policies(run_id: str | None, run: RegisteredRun, parents: Parents) -> str:
    last, name = max(run.policies), model_name(run.model)
    before, withheld = registry().find(name, "champion"), _rejection(name, run)
    promoted = None if withheld else run.promoted
    numbers = {}
    for number, policy in run.policies.items():
        rounds = {"candidate": last, "champion": promoted}
        aliases = tuple(alias for alias, round_ in rounds.items() if round_ == number)
        roles = (role for role, parent in parents.items() if parent["key"] == policy.ref.key)
        role = next(roles, policy.ref.stage)
        rule = {PROMOTED_BY: run.promoted_by} if number == promoted else {}
        card = _card(run, parents, "policy", role, role.removeprefix(POLICY_ROLE))
        if rule.get(PROMOTED_BY) == "always":
            card = replace(card, description=f"{card.description}\n\n{ONLY_BY_RULE}")
        decided = run.approval.tags if run.approval and number == run.champion else {}
        tags = {ROUND: str(number), **_tags(run, parents), **rule, **decided}
        if role == f"{POLICY_ROLE}{run.verdict.get('policy')}":
            tags["trimtab.verdict"] = run.verdict["answer"]
        numbers[number] = _register(run_id, name, policy.ref, aliases, tags, card)
        if decided:  # of a version without a new alias as well
            registry().tag(Version(name, numbers[number], {}), tags)
    now = registry().find(name, "champion")
    if now is not None and now.number != numbers[last]:
        registry().tag(now, {TRIED: run.settings})
    if now is not None and now.number != (before and before.number):
        emit(PROMOTED, name, version=now.number, report=run.report.ref.key)
    standing = {"candidate": registry().find(name, "candidate"), "champion": now}
    holders = [
        f"{alias} version {version.number}" for alias, version in standing.items() if version
    ]
    if now is not None and now.tags.get(PROMOTED_BY) == "always":
        holders[-1] += " (only because rounds.promote=always)"
    words = ", ".join([*holders, *withheld])
    _link(name, numbers[last], words)
    return f"{name}: {words}"


def _rejection(name: str, run: RegisteredRun) -> list[str]:
    """In words that a person rejected the policy that would become champion; else nothing.

    A decision on this run counts instead.
    """
    if run.promoted is None or run.approval is not None:
        return []
    policy = _identity(run.policies[run.promoted].ref)
    return [
        f"version {version.number} not champion, as {version.tags.get(BY)} rejected it"
        for version in registry().versions_of(name, policy)
        if version.tags.get(APPROVAL) == REJECTED
    ]


def _identity(model: ArtifactRef) -> dict[str, str]:
    """The tags that say which model a version is."""
    return {DIGEST: model.digest, KEY: model.key}


def _tags(run: RegisteredRun, parents: Parents) -> dict[str, str]:
    """The tags of every version of a run, by which it is traced; `parents` are its report's."""
    tags = {
        REPORT: run.report.ref.key,
        COMMAND: run.command,
        PAIRS: parents.get("preferences", {}).get("digest", ""),
        RUN: run.name,
        "trimtab.report_url": run.page,
    }
    return {name: value for name, value in tags.items() if value} | flow_run_tags()


def _card(run: RegisteredRun, parents: Parents, kind: str, role: str, group: str) -> ModelCard:
    """A version's description, and its numbers in the report: those of its group."""
    groups = [name.removeprefix(POLICY_ROLE) for name in parents if name.startswith(POLICY_ROLE)]
    groups += [name for _, name in SCORERS.values()]
    numbers = {
        name: value
        for name, value in grouped(run.report.summary, groups).items()
        if name.startswith(f"{group}/")
    }
    named = SCORER_NAMES.get(role) or policy_name(group)
    lines = [f"{named} of {run.name}. {_measured(run, kind, group, numbers)}".strip()]
    pages = {"Report": run.page, "flow run": flow_run_tags().get(FLOW_RUN_URL)}
    lines.append(" ".join(f"[{words}]({page})" for words, page in pages.items() if page))
    if role in SCORERS:
        lines.append(USE_OF_SCORER)
        if role == "advantage_model":
            lines.append(USE_OF_ADVANTAGE_MODEL)
        if run.scorers[role].summary.get("num_category_heads"):
            lines.append(USE_OF_HEADS)
    if run.command:
        lines.append(f"Made by `{run.command}`")
    loader = "mlflow.transformers" if kind == "policy" else "mlflow.pyfunc"
    policies = model_name(run.model)
    about = (ABOUT_SCORERS if role in SCORERS else ABOUT_POLICIES).format(
        named=named,
        loader=loader,
        policy=policies,
        of=_scorer_name(policies, kind) if role in SCORERS else policies,
    )
    return ModelCard(kind, "\n\n".join(filter(None, lines)), numbers, loader, about)


def _measured(run: RegisteredRun, kind: str, group: str, numbers: Mapping[str, float]) -> str:
    """The verdict, of the policy that was judged; a scorer's agreement with the test labels."""
    if kind == "policy" and group == run.verdict.get("policy"):
        judges, net = MEASURE_NAMES[run.verdict["judged_by"]], run.verdict["net"]
        return f"{run.verdict['sentence']} Judged by {judges} on {net['count']} prompts."
    measures = {
        "agreement with the test labels": f"{group}/label_accuracy",
        "calibration error": f"{group}/label_ece_width",
    }
    text = ", ".join(
        f"{words} {100 * numbers[key]:.1f} %" for words, key in measures.items() if key in numbers
    )
    return f"{text[:1].upper()}{text[1:]}." if text and kind != "policy" else ""


def _register(
    run_id: str | None,
    name: str,
    model: ArtifactRef,
    aliases: tuple[str, ...],
    tags: Mapping[str, str],
    card: ModelCard,
) -> str:
    """Make a model a version; where MLflow was down when the run began, in a run of its own."""
    context = base_context()
    is_in_store = context.settings.registers_in_store and card.kind == "policy"
    bring = _prepare_in_store if is_in_store else _bring
    manifest = manifest_of(context.store, model)
    tracking, work = context.tracking, context.settings.work
    run = (
        TrackedRun(tracking, run_id)
        if run_id
        else tracking.start_run("register", tags=flow_run_tags())
    )
    try:
        with _folder_to_register(name, work) as folder:
            version = registry().register(
                run,
                name,
                partial(bring, manifest, folder, card.kind),
                identity=_identity(model),
                aliases=aliases,
                tags=tags,
                card=card,
            )
    finally:
        if run_id is None:
            run.end()
    return version.number


@contextmanager
def _folder_to_register(name: str, work: Path) -> Iterator[Path]:
    """An empty folder for the files of a version. One process at a time has the folder of a model:
    two that register one model would make two versions of it.
    """
    folder = work / f"register-{name}"
    with file_lock(work / ".locks" / f"register-{name}.lock"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _bring(manifest: Manifest, folder: Path, kind: str) -> Path:
    """A folder for MLflow, of the model of an artifact of the store; scorers as exported."""
    store, artifact, target = base_context().store, folder / "artifact", folder / "mlflow"
    store.materialise(manifest, artifact, lambda name: name.startswith("model/"))
    if kind == "policy":
        model_kind = POLICY
    else:
        num_labels = len(export_scorer(artifact / "model").labels)
        model_kind = SCORER_OF_SEVERAL if num_labels > 1 else SCORER
    target.mkdir()
    make_model_folder(artifact / "model", target, model_kind)
    return target


def _prepare_in_store(manifest: Manifest, folder: Path, _: str) -> str:
    """Put beside a policy's weights in the store what MLflow loads them by; their address.

    Scorers are other files in MLflow than in the store, and are copied.
    """
    store, artifact, target = base_context().store, folder / "artifact", folder / "mlflow"
    store.materialise(
        manifest,
        artifact,
        lambda name: name.startswith("model/") and not name.endswith(".safetensors"),
    )
    target.mkdir()
    describe_model(artifact / "model", target, POLICY, ".")
    store.put_beside(manifest, target, "model")
    return f"{store.address(manifest)}/model"


def roll_back(recipe: str, to: str | None) -> list[Version]:
    """Make the champion's predecessor, or version `to`, champion again; RegistryError if none.

    The registered scorers of the run that made it are champions with it. They move first: until
    the policy has moved, the same call does all of it again. Returns the versions that are champion
    now, the policy's first.
    """
    name = model_name(recipe)
    policy = registry().find_earlier(name, "champion", to)
    key = policy.tags.get(REPORT)
    report = base_context().store.find("report", key) if key else None
    scorers = []
    for role, (kind, _) in SCORERS.items():
        if report and role in report.parents:
            identity = _identity(ArtifactRef(**report.parents[role]))
            scorers += registry().versions_of(_scorer_name(name, kind), identity)[-1:]
    for version in (*scorers, policy):
        registry().give_alias(version, "champion")
    return [policy, *scorers]


def _scorer_name(policies: str, kind: str) -> str:
    """The registered model of the scorers that are trained beside those policies."""
    return f"trimtab-{kind}-{policies.removeprefix(PREFIX)}"


def _link(name: str, number: str, description: str) -> None:
    """A link to a version on the flow run's page, where MLflow is a server."""
    address = base_context().tracking.uri
    if address.startswith("http"):
        create_link_artifact(
            key="trimtab-policy",
            link=f"{address}/#/models/{name}/versions/{number}{VIEW}",
            link_text=f"{name}, version {number}",
            description=description[:1].upper() + description[1:],
        )


def reports_of_registered() -> set[str]:
    """Keys of the reports that registered models name."""
    if not base_context().tracking.uri:
        return set()
    return registry().tag_values("trimtab-", REPORT)


def registered(recipe: str, which: str) -> Registered | None:
    """A policy by alias or version number, with its run; None where there is none.

    Raises LineageError where the store no longer has its run, or has it without that policy:
    MLflow's tags may be anybody's, and what is not in the store under its digest is no run's.
    """
    version = registry().find(model_name(recipe), which)
    if version is None:
        return None
    store = base_context().store
    key = version.tags.get(REPORT, "")
    manifest = store.find("report", key) if key else None
    if manifest is None:
        raise LineageError(
            f"version {version.number} of {version.name} was made by a run whose report {key!r} is "
            f"not in the store {store.url}; open the store it was published to, or run the recipe"
        )
    artifacts = {}
    for name, parent in manifest.parents.items():
        artifact = store.find(parent["stage"], parent["key"])
        if artifact is None or artifact.digest != parent["digest"]:
            raise LineageError(
                f"version {version.number} of {version.name}: its {name} ({parent['stage']} "
                f"{parent['key'][:16]}) is not in the store {store.url} any more; run the recipe"
            )
        artifacts[name] = artifact
    is_policy_of_run = any(
        {KEY: artifact.key, DIGEST: artifact.digest}.items() <= version.tags.items()
        for role, artifact in artifacts.items()
        if role.startswith(POLICY_ROLE)
    )
    number = version.tags.get(ROUND, "")
    if not number.isdecimal() or not is_policy_of_run:
        raise LineageError(
            f"version {version.number} of {version.name} says that it is policy "
            f"{version.tags.get(KEY, '')[:16]!r} of round {number!r}, and its run, of report "
            f"{key[:16]}, has no such policy: nothing continues from it. Give the alias to a "
            f"version of a run: `trimtab rollback {version.name} NUMBER`"
        )
    in_order = sorted(artifacts, key=lambda name: artifacts[name].created)
    results = {name: result_of(artifacts[name]) for name in in_order}
    return Registered(version, int(number), manifest.config["config"], results)

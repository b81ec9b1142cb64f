"""Malformed bodies sent to the API that starts runs, on the one-server stack with flows deployed.

    python -m tests.tools.malformed_bodies --bodies 200 --seed 0

Each must be refused (4xx), or, where no schema can tell, its run must have Failed within ten
seconds of the answer, with no stage begun. What is wrong around the parameters may be nothing to
Prefect, which ignores fields that it does not know: such a run must end Completed. Bodies that the
server answers with an error of its own (5xx) make no run; they are counted by themselves. Otherwise
the exit status is 1. The seed chooses among the bodies: wrong in one place by the schema of a
deployment, sent past that schema (`enforce_parameter_schema: false`), impossible together, naming
what the worker does not have, and wrong around the parameters. Prints the table of
docs/reference/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import Any

import requests

from tests.flows.malformed import FLOW, SCHEMA, impossible_changes, malformed
from tests.flows.running_stack import ENDS, Running, running_stack

LATEST = 10.0  # seconds after the answer by which a run must have failed
PATIENCE = 60.0  # seconds to look on; a run that goes on then is cancelled
COMPLETION = 900.0  # the same, where a run may be Completed
FLOWS = ("rlhf", "policy", "reward", "label-audit", "rounds", "evaluate", "study", "compare")
BY_SCHEMA, PAST_SCHEMA, TOGETHER, ABSENT, AROUND = (
    "wrong by the schema",
    "the same, sent past the schema",
    "impossible together",
    "not there",
    "wrong around the parameters",
)
FAULTS = ("failed late", "not refused")
# Of each hundred bodies; the rest are wrong by the schema.
SHARES = {PAST_SCHEMA: 8, TOGETHER: 12, ABSENT: 8, AROUND: 17}

NOTHING = "00000000-0000-0000-0000-000000000000"
# Well-formed changes that need a package which the worker may lack; then they are malformed.
NEEDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deepspeed", {"sft": {"train": {"zero": {"stage": 2}}}}),
    ("deepspeed", {"ppo": {"zero": {"stage": 3}}}),
    ("bitsandbytes", {"sft": {"train": {"optimiser": "adamw_8bit"}}}),
    ("bitsandbytes", {"dpo": {"train": {"optimiser": "adamw_8bit"}}}),
    ("vllm", {"sft": {"model": {"hidden_size": 128}}, "ppo": {"vllm": {"cache_gib": 1}}}),
)
# Well-formed parameters that name what is not there, or need more than any worker has.
NOT_THERE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rlhf", {"changes": {"sft": {"model": {"base": "no-such-model-at-all"}}}}),
    ("rlhf", {"changes": {"sft": {"model": {"base": "smollm2-360m-instruct"}}}}),
    ("rlhf", {"changes": {"sft": {"model": {"hidden_size": 65536, "num_layers": 1024}}}}),
    ("label-audit", {"changes": {"sft": {"model": {"hidden_size": 65536, "num_layers": 1024}}}}),
    ("rlhf", {"changes": {"preferences": {"sources": ["/srv/none.jsonl"]}}}),
    ("rlhf", {"changes": {"relabel": {"review": "review.jsonl"}}}),
    ("rlhf", {"changes": {"judge_preferences": {"judge": {"local_model": "none"}}}}),
    ("evaluate", {"recipe": "no-such-recipe"}),
    ("evaluate", {"recipe": "smoke", "policy": "99"}),
    ("evaluate", {"recipe": "smoke", "policy": "candidate", "against": "99"}),
    ("evaluate", {"recipe": "smoke", "policy": ""}),
    ("evaluate", {"recipe": "../../etc", "policy": "1"}),
    ("study", {"paper": "part-1", "exhibit": "table-2", "scale": "smoke"}),
    ("study", {"paper": "part-1", "exhibit": "figure-13", "scale": "smoke", "seeds": [2]}),
    ("compare", {"recipe": "smoke", "arms": ["full", "full"]}),
    ("compare", {"recipe": "smoke", "seeds": [1, 1]}),
)
# Bodies whose mistake is not in the parameters: raw text, sent as it is.
RAW: tuple[bytes, ...] = (
    *(b"", b"null", b"[]", b"3", b'"text"', b"{", b'{"parameters": ', b"not JSON at all"),
    *(b'{"parameters": {}}}', b"{'parameters': {}}", b"\xff\xfe{}", b'{"parameters": {"a": \xff}}'),
    b"\x00",
    b'{"parameters": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"parameters": ' + b'{"changes": ' * 900 + b"{}" + b"}" * 900 + b"}",
    *(
        b'{"parameters": {"recipe": "smoke", "changes": {"seed": ' + n + b"}}}"
        for n in (
            b"NaN",
            b"-Infinity",
            b"1e400",
            b"1" * 400,
            b"1" * 5000,
            b"0x10",
            b"1_000",
            b"+1",
            b"01",
        )
    ),
    b'{"parameters": {"recipe": "smoke\x00"}}',
    b'{"parameters": {"recipe": "smoke", "name": "a\\u0000b"}}',
    b'{"parameters": {"recipe": "smoke", "name": "a\\ud800b"}}',
    b'{"parameters": {"recipe": "smoke", "changes": {"evaluate": {"instruction": "\\ud800"}}}}',
    b'{"parameters": {"recipe": "smoke", "changes": {"evaluate": {"instruction": "\\u0000"}}}}',
    b'{"parameters": {"recipe": "smoke", "name": "' + b"a" * 1_000_000 + b'"}}',
)
# Fields beside the parameters.
FIELDS: tuple[dict[str, Any], ...] = (
    {"parameters": None},
    {"parameters": []},
    {"parameters": "recipe=smoke"},
    {"parameters": 3},
    {"no_such_field": 1},
    {"job_variables": {"command": "/bin/sh"}},
    {"job_variables": {"env": {"A": "B"}}},
    {"job_variables": []},
    {"state": {"type": "NO_SUCH_STATE"}},
    {"state": "RUNNING"},
    {"state": {}},
    {"tags": "a"},
    {"tags": [{"a": 1}]},
    {"name": {"a": 1}},
    {"name": "a\0b"},
    {"idempotency_key": ["a"]},
    {"parent_task_run_id": "no UUID"},
    {"parent_task_run_id": NOTHING},
    {"enforce_parameter_schema": "perhaps"},
    {"enforce_parameter_schema": None},
    {"work_queue_name": ["a"]},
    {"labels": {"a": {"b": 1}}},
    {"context": 3},
    {"infrastructure_document_id": "no UUID"},
    {"empirical_policy": {"retries": "many"}},
    {"empirical_policy": {"retry_delay": {"a": 1}}},
)


@dataclass(frozen=True)
class Body:
    """A body for a flow's deployment: what is wrong with it, and its bytes."""

    kind: str
    flow: str
    what: str
    content: bytes


@dataclass(frozen=True)
class Answer:
    """What became of a body: the status, and of a run that was made the end and its seconds."""

    body: Body
    status: int
    said: str
    end: str = ""
    seconds: float = 0.0
    num_tasks: int = 0

    @property
    def outcome(self) -> str:
        if self.status >= 500:
            return "server's error"
        if self.status >= 400:
            return "refused"
        if self.end == "COMPLETED" and self.body.kind == AROUND:
            return "ran well"
        if self.end == "FAILED" and self.seconds <= LATEST and not self.num_tasks:
            return "failed in time"
        return "failed late" if self.end == "FAILED" else "not refused"

    @property
    def is_fault(self) -> bool:
        return self.outcome in FAULTS


def main() -> int:
    """Send them all and look at what becomes of each; 1 if one is accepted and does not fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.malformed_bodies")
    parser.add_argument("--bodies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of bodies")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stack is to end, too
    answers: list[Answer] = []
    with running_stack() as stack:
        bodies = _bodies(stack, options.bodies, random.Random(options.seed))
        for number, body in enumerate(bodies, start=1):
            answers.append(_send(stack, body))
            _say(number, len(bodies), answers[-1])
        left = _left(stack)
    for each in filter(lambda each: each.is_fault, answers):
        print(
            f"FAULT  {each.body.flow}: {each.body.what}: {each.end} after {each.seconds:.1f} s, "
            f"{each.num_tasks} task runs: {each.said[:300]}"
        )
    for text in left:
        print(f"FAULT  {text}")
    print(
        f"load of the machine (1, 5, 15 minutes): {' '.join(f'{n:.1f}' for n in os.getloadavg())}"
    )
    print(_table(answers))
    return int(any(each.is_fault for each in answers) or bool(left))


def _say(number: int, of: int, answer: Answer) -> None:
    run = f", {answer.end} after {answer.seconds:.1f} s" if answer.end else ""
    what = f"{answer.body.flow}: {answer.body.what}"[:80]
    print(f"{number:4} of {of}  {answer.outcome:<15} {answer.status}{run}  {what}", flush=True)


def _bodies(stack: Running, number: int, chance: random.Random) -> list[Body]:
    """So many, by SHARES; `chance` chooses."""
    chosen: list[Body] = []
    kinds = {
        PAST_SCHEMA: list(_past_schema()),
        TOGETHER: list(_together()),
        ABSENT: list(_not_there()),
        AROUND: list(_around()),
    }
    for kind, bodies in kinds.items():
        chosen += chance.sample(bodies, min(len(bodies), number * SHARES[kind] // 100))
    by_schema = list(_by_schema(stack))
    chosen += chance.sample(by_schema, number - len(chosen))
    chance.shuffle(chosen)
    return chosen


def _by_schema(stack: Running) -> Iterator[Body]:
    for flow in FLOWS:
        for path, parameters in malformed(stack.deployment(flow)["parameter_openapi_schema"]):
            what = f"{path}: {json.dumps(parameters)}"
            yield Body(BY_SCHEMA, flow, what, _json({"parameters": parameters}))
    for what, changes, layer in impossible_changes():
        if layer == SCHEMA:
            parameters = {"recipe": "smoke", "changes": changes}
            yield Body(BY_SCHEMA, "rlhf", what, _json({"parameters": parameters}))


def _past_schema() -> Iterator[Body]:
    for what, changes, layer in impossible_changes():
        if layer == SCHEMA:
            body = {"parameters": {"recipe": "smoke", "changes": changes}}
            content = _json({**body, "enforce_parameter_schema": False})
            yield Body(PAST_SCHEMA, "rlhf", what, content)
    for flow, parameters in (
        ("rlhf", {"recipe": "nope"}),
        ("rlhf", {"recipe": "smoke", "foo": 1}),
        ("rlhf", {"recipe": ["smoke"]}),
        ("rlhf", {"recipe": "smoke", "name": "../../x"}),
        ("rlhf", {"recipe": "smoke", "name": "a" * 1000}),
        ("study", {"paper": "part-9"}),
        ("compare", {"recipe": "smoke", "arms": []}),
        ("evaluate", {"recipe": "smoke", "seed": -1}),
        ("rounds", {"recipe": "smoke", "changes": {"seed": 1}}),
    ):
        content = _json({"parameters": parameters, "enforce_parameter_schema": False})
        yield Body(PAST_SCHEMA, flow, json.dumps(parameters)[:200], content)


def _together() -> Iterator[Body]:
    for what, changes, layer in impossible_changes():
        if layer == FLOW and "null" not in what and not _is_unfinite(changes):
            content = _json({"parameters": {"recipe": "smoke", "changes": changes}})
            yield Body(TOGETHER, "rlhf", what, content)


def _is_unfinite(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_unfinite, value.values()))
    return isinstance(value, float) and not math.isfinite(value)


def _not_there() -> Iterator[Body]:
    lacking = [("rlhf", {"changes": each}) for name, each in NEEDS if find_spec(name) is None]
    for flow, parameters in (*NOT_THERE, *lacking):
        given = {"recipe": "smoke", **parameters} if "changes" in parameters else parameters
        yield Body(ABSENT, flow, json.dumps(parameters), _json({"parameters": given}))


def _around() -> Iterator[Body]:
    for content in RAW:
        yield Body(AROUND, "label-audit", repr(content[:70]), content)
    for fields in FIELDS:
        content = _json({"parameters": {"recipe": "smoke"}, **fields})
        yield Body(AROUND, "label-audit", json.dumps(fields), content)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _send(stack: Running, body: Body) -> Answer:
    user, _, password = stack.environment["PREFECT_API_AUTH_STRING"].partition(":")
    identity = stack.deployment(body.flow)["id"]
    answer = requests.post(
        f"{stack.environment['PREFECT_API_URL']}/deployments/{identity}/create_flow_run",
        data=body.content,
        headers={"Content-Type": "application/json"},
        auth=(user, password),
        timeout=60,
    )
    if not answer.ok:
        return Answer(body, answer.status_code, answer.text)
    run = answer.json()
    return _watch(stack, body, answer.status_code, run)


def _watch(stack: Running, body: Body, status: int, run: dict[str, Any]) -> Answer:
    """Look at a run until it ends; one that goes on is cancelled."""
    deadline = time.monotonic() + (COMPLETION if body.kind == AROUND else PATIENCE)
    while (state := stack.state_of(run))["type"] not in ENDS and time.monotonic() < deadline:
        time.sleep(0.2)
    if state["type"] not in ENDS:
        cancelling = {"state": {"type": "CANCELLING"}}
        stack.prefect("POST", f"flow_runs/{run['id']}/set_state", cancelling)
        stack.end_of(run)
    tasks = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    number = stack.prefect("POST", "task_runs/count", tasks).json()
    seconds = _time(state["timestamp"]) - _time(run["created"])
    return Answer(body, status, str(state["message"]), state["type"], seconds, number)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _left(stack: Running) -> list[str]:
    """What is still said to run, and whether the server is well."""
    stack.wait_for_prefect()
    open_ = {"state": {"type": {"not_any_": list(ENDS)}}}
    runs = stack.prefect("POST", "flow_runs/filter", {"flow_runs": open_, "limit": 200}).json()
    # The nightly rounds are scheduled.
    left = [f"{run['name']} is {run['state_name']}" for run in runs if not run["auto_scheduled"]]
    return left + [
        f"MLflow run {each}" for each in stack.mlflow_runs("attributes.status='RUNNING'")
    ]


def _table(answers: list[Answer]) -> str:
    outcomes = ("refused", "server's error", "failed in time", "ran well", *FAULTS)
    lines = [
        f"| bodies | number | {' | '.join(outcomes)} | slowest failure, s |",
        "|---|---|" + "---|" * (len(outcomes) + 1),
    ]
    for kind in (BY_SCHEMA, PAST_SCHEMA, TOGETHER, ABSENT, AROUND, "all"):
        of_kind = [each for each in answers if kind in (each.body.kind, "all")]
        counts = Counter(each.outcome for each in of_kind)
        slowest = max((each.seconds for each in of_kind if each.end == "FAILED"), default=0.0)
        numbers = " | ".join(str(counts[outcome]) for outcome in outcomes)
        lines.append(f"| {kind} | {len(of_kind)} | {numbers} | {slowest:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

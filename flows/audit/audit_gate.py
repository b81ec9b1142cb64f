"""The label audit as a gate: the exit status of `trimtab audit --fail-over --max-refused`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Exit statuses: too much is wrong or refused, and nothing can be told.
TOO_MUCH, CANNOT_TELL = 3, 4
MAX_REFUSED = 0.05


@dataclass(frozen=True)
class Gate:
    """Whether an audit lets its labels pass: the exit status, and why it is not 0."""

    status: int
    reasons: list[str]


def gate_of_audit(
    audit: Mapping[str, Any], fail_over: float | None, max_refused: float | None = None
) -> Gate:
    """Whether the labels of an audit pass.

    fail_over: the largest share of wrong labels, by the audit's estimate without its false alarms;
    with a baseline, of the labels that are not in it. None: any. max_refused: the largest share of
    rows that may be refused; None: MAX_REFUSED with fail_over, else any.
    Status TOO_MUCH: either share is above its limit. Else CANNOT_TELL: the self-test failed or is
    missing, or the interval of wrong labels reaches from 0 to above fail_over. Else 0.
    """
    reasons, rows = [], audit.get("rows")
    if max_refused is None and fail_over is not None:
        max_refused = MAX_REFUSED
    if max_refused is not None and rows and rows["refused"] > max_refused * rows["read"]:
        counts = [f"{count:,} {reason}" for reason, count in rows["refused_by_reason"].items()]
        reasons.append(
            f"{rows['refused']:,} of {rows['read']:,} rows were refused and are not audited "
            f"({', '.join(counts)}): {rows['refused'] / rows['read']:.1%}, more than --max-refused "
            f"{max_refused:g}"
        )
    described, estimates, num_labels = "the labels", audit, audit["num_pairs"]
    if "baseline" in audit:
        described, estimates = "the labels that are not in the baseline", audit["baseline"]
        num_labels = estimates["num_changed"]
    undecided: list[str] = []
    can_estimate = audit.get("can_be_believed") and "num_really_wrong" in estimates
    if fail_over is not None and num_labels and not can_estimate:
        undecided.append(
            "which labels are wrong cannot be told: the self-test does not tell labels turned "
            "round on purpose from the others, or there was none, so that --fail-over means "
            "nothing here"
        )
    elif fail_over is not None and num_labels:
        wrong, low, high = (
            estimates[f"num_really_wrong{end}"] / num_labels for end in ("", "_low", "_high")
        )
        if wrong > fail_over:
            reasons.append(
                f"{wrong:.1%} of {described} are wrong [{low:.1%}, {high:.1%}], more than "
                f"--fail-over {fail_over:g}"
            )
        elif low == 0 and high > fail_over:
            undecided.append(
                f"whether more than --fail-over {fail_over:g} of {described} are wrong cannot be "
                f"told: the 95 % interval is 0 to {high:.1%}"
            )
    status = TOO_MUCH if reasons else CANNOT_TELL if undecided else 0
    return Gate(status, [*reasons, *undecided])

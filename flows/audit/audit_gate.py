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

    fail_over: the largest share of labels that may be wrong, by the audit's estimate, which leaves
    out its false alarms; where the audit was compared with an earlier one, of the labels that were
    not in it. None: any. max_refused: the largest share of rows that may be refused; None:
    MAX_REFUSED with fail_over, else any. A share that is too large is TOO_MUCH; otherwise, an audit
    whose self-test cannot tell wrong labels from right, or that had none, is CANNOT_TELL, and one
    whose interval holds 0 as well as more than fail_over.
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
    labels, numbers, count = "the labels", audit, audit["num_pairs"]
    if "baseline" in audit:
        labels, numbers = "the labels that are not in the baseline", audit["baseline"]
        count = numbers["num_changed"]
    undecided: list[str] = []
    can_tell = audit.get("can_be_believed") and "num_really_wrong" in numbers
    if fail_over is not None and count and not can_tell:
        undecided.append(
            "which labels are wrong cannot be told: the self-test does not tell labels turned "
            "round on purpose from the others, or there was none, so that --fail-over means "
            "nothing here"
        )
    elif fail_over is not None and count:
        wrong, low, high = (
            numbers[f"num_really_wrong{end}"] / count for end in ("", "_low", "_high")
        )
        if wrong > fail_over:
            reasons.append(
                f"{wrong:.1%} of {labels} are wrong [{low:.1%}, {high:.1%}], more than --fail-over "
                f"{fail_over:g}"
            )
        elif low == 0 and high > fail_over:
            undecided.append(
                f"whether more than --fail-over {fail_over:g} of {labels} are wrong cannot be "
                f"told: the 95 % interval is 0 to {high:.1%}"
            )
    status = TOO_MUCH if reasons else CANNOT_TELL if undecided else 0
    return Gate(status, [*reasons, *undecided])

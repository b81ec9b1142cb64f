"""Task `win_matrix`: every two policies of one or more seeds against each other."""

from __future__ import annotations

from prefect import task

from models.config.reporting import WinMatrixConfig
from tasks.execution import StageResult
from tasks.perform import perform
from tasks.retries import CPU


@task(name="win_matrix", task_run_name="win matrix", **CPU)
def win_matrix(
    config: WinMatrixConfig,
    evaluations: list[StageResult],
    names: list[str],
    verdicts: list[StageResult],
) -> StageResult:
    """Outcomes, ratings and agreement; names: `<seed>.<policy>` of each evaluation.

    verdicts: what each judge model says of the same evaluations.
    """
    inputs = dict(zip(names, evaluations, strict=True)) | {
        f"verdicts_{number}": each for number, each in enumerate(verdicts)
    }
    return perform("win_matrix", config, inputs, "win matrix")

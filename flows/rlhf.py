"""The whole experiment: noisy preferences in, a steadier policy out."""

from trimtab.flows.pipeline import experiment
from trimtab.flows.runs.lifecycle import experiment_flow

rlhf = experiment_flow(
    "rlhf",
    experiment.rlhf,
    """Preferences, label audit, scorers, policies, MetaRM rounds, report.

    Returns the report's key numbers and where the report lies.""",
)

"""The experiment's label audit."""

from trimtab.flows.pipeline import experiment
from trimtab.flows.runs.lifecycle import experiment_flow

label_audit = experiment_flow(
    "label-audit",
    experiment.label_audit,
    "Preferences to strength, relabelled pairs and report.",
    """Settings to start from: models, data and size. On two cores audit (5,000 pairs of
            yours) takes 1 min; `trimtab recipes` lists all""",
)

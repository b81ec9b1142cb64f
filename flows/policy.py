"""The experiment without MetaRM rounds."""

from trimtab.flows.pipeline import experiment
from trimtab.flows.runs.lifecycle import experiment_flow

policy = experiment_flow(
    "policy",
    experiment.policy,
    "Everything up to the policies of all arms, judged and reported; no MetaRM rounds.",
)

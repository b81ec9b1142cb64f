"""The experiment up to its scorers."""

from trimtab.flows.pipeline import experiment
from trimtab.flows.runs.lifecycle import experiment_flow

reward = experiment_flow(
    "reward",
    experiment.reward,
    "Preferences to strength, relabelled pairs, reward model, Advantage Model and report.",
)

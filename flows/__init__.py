"""The wiring: Prefect flows, run configuration and recipes."""

# The flows of `trimtab run`: parts of the experiment.
FLOWS = ("rlhf", "policy", "reward", "label-audit", "compare")

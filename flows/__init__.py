"""The wiring: Prefect flows, run configuration and recipes."""

# What `trimtab run` runs: parts of the experiment by name.
FLOWS = ("rlhf", "policy", "reward", "label-audit", "compare")

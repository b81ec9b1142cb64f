"""What a server loads that forks the trainers of many runs: beside its own, what few stages of a
run need, so that it is loaded once."""

import matplotlib.figure  # noqa: F401
import sentence_transformers  # noqa: F401
import sklearn.cluster
import sklearn.linear_model
import sklearn.mixture  # noqa: F401

import trimtab.models.stages.rehearsal
import trimtab.models.stages.study
import trimtab.models.training.preload  # noqa: F401

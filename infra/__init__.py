"""Location: where bytes, metrics and processes live. Knows nothing of models, tasks or flows."""

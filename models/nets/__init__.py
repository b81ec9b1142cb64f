"""Networks: loading, saving, scalar heads (transformers)."""

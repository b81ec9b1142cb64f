"""A run from its plan and checks to its report."""

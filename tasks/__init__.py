"""The seam that joins one function (models) to one location (infra)."""

"""Artifacts by content: a folder or an S3 bucket."""

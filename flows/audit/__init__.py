"""What `trimtab audit` and `trimtab look` have beside a run."""

"""The parts of `trimtab audit` and `trimtab look` that no other run has."""

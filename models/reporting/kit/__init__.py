"""What all pages share: artifacts, charts, filters, names."""

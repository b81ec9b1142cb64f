"""Style sheets of the pages."""

"""Several ways to optimise a policy side by side: every two judged, over seeds, on one page."""

"""The label audit for a person: a page to review pairs with, and the audited set."""

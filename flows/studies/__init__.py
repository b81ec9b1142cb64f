"""What the runs of a study have to make: the arms of every table and figure, by paper."""

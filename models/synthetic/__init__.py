"""A synthetic world whose truth is known: tasks, gold scorer, demonstrations, annotators."""

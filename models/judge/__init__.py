"""All that asks a language model: to compare responses, to rate them, to revise them.

`build` makes a judge of a configuration. `judge` turns answers into probabilities and ratings,
`revise` into revised responses, `reward` into rewards. `batch` asks and remembers, `budget` counts.
`client`, `local` and `gold` answer.
"""

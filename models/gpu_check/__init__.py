"""`trimtab gpu-check`: what a GPU does with this project, measured part by part in ten minutes.

A part is a process of its own with a deadline (`driver`), a row of `parts.PARTS` and a function of
`correctness` or `speed`. It needs torch, transformers, accelerate, peft, sentence-transformers and
the wheels of `make gpu-bundle`, no network and no hub: models have random weights, texts are made
up or from a file. Without a GPU all of it is rehearsed on the CPU with tiny models.
"""

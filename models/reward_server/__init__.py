"""`trimtab serve-reward`: a reward over HTTP, for other people's RL trainers.

A request is read by its keys (`formats`), each text becomes tokens of every scorer (`ensemble`),
waits with those of all clients (`batching`) and is scored with as many of them as a pass takes.
"""

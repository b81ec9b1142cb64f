"""Trainer processes: launching, locks, GPUs, environments."""

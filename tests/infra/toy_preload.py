"""Stands for the slow imports: remembers in which process it was loaded."""

import os

print("this must not get into the protocol")
PROCESS = os.getpid()

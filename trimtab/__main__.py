"""Run the command line: `python -m trimtab`."""

import sys

from trimtab.flows.cli.cli import main

if __name__ == "__main__":
    sys.exit(main())

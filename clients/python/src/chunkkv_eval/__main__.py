"""`python -m chunkkv_eval` is chunkkv-eval."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())

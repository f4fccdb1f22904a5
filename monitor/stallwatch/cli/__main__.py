"""`python -m stallwatch.cli`: the same command where no console script is installed."""

import sys

from stallwatch.cli import main

sys.exit(main())

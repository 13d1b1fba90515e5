"""`python -m tt_core` is `tt`."""

from tt_core.cli.app import main

main()

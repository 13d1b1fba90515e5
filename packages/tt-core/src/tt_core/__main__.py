"""`python -m tt_core` is `tt`."""

import sys

from tt_core.interrupt import listen

__all__ = ["main"]


def main() -> None:
    """Entry point of the command; a signal ends it with 130 from its first moment to its last."""
    ended = listen()
    try:
        from tt_core.cli.app import main as command  # takes half a second

        code = command()
    except KeyboardInterrupt:
        code = 130
    ended()
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Keeping TVM's C++ warnings off the user's terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Send this process's stderr, C++ included, to a file; shown again if the block fails with anything unexpected."""
    from tt_core.errors import UserError

    try:
        sys.stderr.flush()
        saved = os.dup(2)
    except (OSError, ValueError, AttributeError):  # no stderr to keep
        yield
        return
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        except UserError:
            raise
        except BaseException:
            os.dup2(saved, 2)
            sink.seek(0)
            os.write(2, sink.read()[-4000:])
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)

"""The contract of model formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tt_spec.errors import UserError

__all__ = ["ModelFormatContract"]


class ModelFormatContract:
    """Subclass it and override `piece` and `path`."""

    @pytest.fixture
    def piece(self) -> Any:
        """A reader."""
        raise NotImplementedError("override the fixture `piece`")

    @pytest.fixture
    def path(self) -> Path:
        """A good file whose shapes are fixed."""
        raise NotImplementedError("override the fixture `path`")

    def test_reads_a_file(self, piece: Any, path: Path) -> None:
        assert piece.read(path, {}) is not None

    def test_reading_leaves_the_file_alone(self, piece: Any, path: Path) -> None:
        before = path.read_bytes()
        piece.read(path, {})
        assert path.read_bytes() == before

    @pytest.mark.parametrize("content", [b"", b"\x00\xff not a model", b"PK\x03\x04"])
    def test_another_file_is_refused_in_one_line(self, piece: Any, path: Path, tmp_path: Path, content: bytes) -> None:
        bad = tmp_path / f"bad{path.suffix}"
        bad.write_bytes(content)
        with pytest.raises(UserError) as caught:
            piece.read(bad, {})
        assert "bad" in str(caught.value) and "\n" not in str(caught.value), "one line that names the file"

    def test_an_unknown_input_is_refused(self, piece: Any, path: Path) -> None:
        with pytest.raises(UserError, match="nobody"):
            piece.read(path, {"nobody": (1, 2)})

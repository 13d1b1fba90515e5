"""Shapes that the user fixes: checked against what the model says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tt_spec import nearest

from tt_core.errors import ModelError

__all__ = ["agree", "fix", "known", "shown"]


def fix(name: str, dims: Sequence[int | str] | None, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The fixed shape of an input.

    Args:
        dims: The model's own: a number where it is fixed, a name or "?" where it is not; None where even the rank is
            open.
        shapes: What the user gave, by input name.

    Raises:
        ModelError: With an option that would do.
    """
    given = shapes.get(name)
    option = f"--shape {name}={','.join(map(str, given or ()))}"
    if given is not None and any(d < 1 for d in given):
        raise ModelError(f"--shape {name}: every dimension must be positive, got {given}")
    if dims is None:
        if given is None:
            raise ModelError(f"input {name!r} has no shape in the file: give one, e.g. --shape {name}=1,3,224,224")
        return given
    text = ",".join(map(str, dims))
    if given is None:
        if all(isinstance(d, int) for d in dims):
            return tuple(int(d) for d in dims)
        example = ",".join(str(d) if isinstance(d, int) else "1" if i == 0 else "224" for i, d in enumerate(dims))
        raise ModelError(f"input {name!r} has no fixed shape, it is [{text}]: add e.g. --shape {name}={example}")
    if len(given) != len(dims):
        raise ModelError(f"{option} has {len(given)} dimensions, the input has {len(dims)}: [{text}]")
    if any(isinstance(d, int) and d != g for d, g in zip(dims, given, strict=True)):
        raise ModelError(f"{option} contradicts the file, which fixes [{text}]")
    return given


def agree(dims: Mapping[str, Sequence[int | str] | None], fixed: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ModelError` if a dimension that several inputs share by name has two sizes."""
    first: dict[str, tuple[str, int]] = {}
    for name, shape in fixed.items():
        for dim, size in zip(dims[name] or (), shape, strict=False):
            if isinstance(dim, int) or dim == "?":
                continue
            other, before = first.setdefault(dim, (name, size))
            if before != size:
                raise ModelError(
                    f"{dim!r} is {before} in input {other!r} and {size} in {name!r}: --shape must give it one size"
                )


def known(shapes: Mapping[str, tuple[int, ...]], inputs: Iterable[str]) -> None:
    """Raise `ModelError` if the user named an input that the model does not have."""
    inputs = list(inputs)
    for extra in sorted(set(shapes) - set(inputs)):
        raise ModelError(f"--shape names {extra!r}, which is no input{nearest(extra, inputs)}")


def shown(shapes: Mapping[str, Sequence[int]]) -> str:
    """`x=1,3,224,224 y=4`."""
    return " ".join(f"{n}={','.join(map(str, s))}" for n, s in shapes.items()) or "no shapes"

"""Jobs as they come in. A large one is megabytes of knobs, which take a second to parse and check: a process of its own
does that, so that meanwhile the server answers."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from pydantic import ValidationError
from tt_spec import child
from tt_spec.errors import UserError

from tt_service.bounds import BoundsError, checked
from tt_service.wire import JobIn, TaskWire

__all__ = ["APART", "Misread", "first_fault", "read_apart", "read_here"]

APART = 2**18
"""Bytes of a job beyond which it is read apart."""

MEMORY, READ_S = 4 * 2**30, 60.0
"""Bytes and seconds that the reading of one job may take."""


class Misread(UserError):
    """A body that is no job.

    Args:
        status: Of HTTP.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def read_here(body: bytes) -> JobIn:
    """The job in a body whose bounds were checked. Raises `Misread`."""
    try:
        job = JobIn.model_validate_json(body)
        for task in job.tasks:
            task.thing()
    except ValidationError as e:
        raise Misread(422, f"body.{first_fault(e)}") from e
    except ValueError as e:
        raise Misread(422, str(e)) from e
    return job


def read_apart(body: bytes) -> JobIn:
    """The same of any body, its bounds checked, too, in a process of its own: it hands back a line for each task, and
    none of them keeps this one for long. Raises `Misread`."""
    environment = {k: v for k, v in os.environ.items() if k != "TT_KEY"}
    command = child.command("tt_service.reading")
    try:
        done = subprocess.run(command, input=body, capture_output=True, timeout=READ_S, env=environment, check=False)
    except subprocess.TimeoutExpired as e:
        raise Misread(422, f"the job takes more than {READ_S:g} s to read") from e
    lines = done.stdout.splitlines()
    if done.returncode == REFUSED:
        raise Misread(**json.loads(lines[0]))
    if done.returncode:
        raise Misread(422, f"the job takes more than {MEMORY / 2**30:g} GiB to read, or its reader was killed")
    head, first, *others = lines
    job = JobIn.model_validate_json(head[:-1] + b',"tasks":[' + first + b"]}")
    return job.model_copy(update={"tasks": [*job.tasks, *map(TaskWire.model_validate_json, others)]})


def first_fault(e: ValidationError) -> str:
    """The first of them in one line."""
    found = e.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


REFUSED = 3
"""Exit code of the process for a body that is no job."""


def main() -> int:
    """Entry point: a body in, lines of JSON out: the job without its tasks, then each of them."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    body = sys.stdin.buffer.read()
    try:
        checked(body)
        job = read_here(body)
    except (BoundsError, Misread) as e:
        text = json.dumps({"status": e.status if isinstance(e, Misread) else 400, "text": str(e)})
        sys.stdout.buffer.write(text.encode())
        return REFUSED
    for part in (job.model_dump_json(exclude={"tasks"}), *(t.model_dump_json() for t in job.tasks)):
        sys.stdout.buffer.write(part.encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

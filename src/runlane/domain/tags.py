"""Tags of runs: short words by which lists find them. They have no effect on how a run is executed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from runlane.errors import InvalidRequest

MAX_TAGS: Final = 20
MAX_TAG: Final = 64
TAG_PATTERN: Final = rf"^[A-Za-z0-9][A-Za-z0-9_.:/=@+-]{{0,{MAX_TAG - 1}}}$"
# No tag begins with this character: lists also find runs by marks, which are stored like tags and which no reader sees.
MARK: Final = "#"
_TAG: Final = re.compile(TAG_PATTERN[1:-1])


@dataclass(frozen=True, slots=True)
class TagChange:
    """A change of tags: `replace` sets all of them; otherwise `add` and `remove` change some, and the rest stays."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    replace: tuple[str, ...] | None = None

    def apply(self, tags: Iterable[str]) -> tuple[str, ...]:
        """Return the tags after the change. Raises InvalidRequest if they are too many."""
        if self.replace is not None:
            return self.replace
        return _bounded({*tags} - {*self.remove} | {*self.add})


def schedule_mark(schedule_id: str) -> str:
    """Return the mark of the runs that a schedule has started."""
    return f"{MARK}schedule:{schedule_id}"


def fork_mark(run_id: str) -> str:
    """Return the mark of the forks of a run."""
    return f"{MARK}fork:{run_id}"


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags in order and without duplicates, if they are valid."""
    if not tags:
        return ()
    if isinstance(tags, str):
        raise InvalidRequest(f"tags={tags!r} must be a list of strings.")
    for tag in tags:
        if not isinstance(cast("object", tag), str) or _TAG.fullmatch(tag) is None:
            raise InvalidRequest(
                f"{tag!r} is not a valid tag: it must have 1 to {MAX_TAG} of A-Z, a-z, 0-9 and _ . : / = @ + -, "
                "and begin with a letter or digit."
            )
    return _bounded(set(tags))


def check_change(
    add: Sequence[str] = (), remove: Sequence[str] = (), replace: Sequence[str] | None = None
) -> TagChange:
    """Return the change if it is valid."""
    if replace is None and not add and not remove:
        raise InvalidRequest("Nothing to change: give tags to add, to remove, or all tags of the run.")
    if replace is not None and (add or remove):
        raise InvalidRequest("Give either all tags of the run, or tags to add and remove.")
    both = sorted({*add} & {*remove})
    if both:
        raise InvalidRequest(f'The tag "{both[0]}" cannot be added and removed at once.')
    return TagChange(check_tags(add), check_tags(remove), None if replace is None else check_tags(replace))


def _bounded(tags: set[str]) -> tuple[str, ...]:
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"The run would have {len(tags)} tags; at most {MAX_TAGS} are allowed. Remove some.")
    return tuple(sorted(tags))

"""The redactor of one attempt of a run, with the secrets that the attempt has used and no others.

A value is added before the run receives it, and never removed. All parts of a run share the redactor: steps, agents,
parallel branches, calls that are in flight when their step has ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from runlane.errors import TooManySecrets
from runlane.redaction.forms import HEAD, SecretForms, value_of
from runlane.redaction.search import ValueIndex, ValueSearch, forms_in, spans

# Enough for hundreds of tokens, or a dozen values of the largest size.
MAX_BYTES: Final = 4 * 1024 * 1024

# (tenant, names) -> values; names that do not exist are absent.
Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]


class Redactor(ValueSearch):
    """A set of values that only grows. Use it in one thread."""

    __slots__ = ("_index", "_max_bytes", "_opened", "_ordered")

    def __init__(self, values: Iterable[str] = (), *, max_bytes: int = MAX_BYTES) -> None:
        # Created by the first value, because most runs use no secret.
        self._index: ValueIndex | None = None
        self._max_bytes = max_bytes
        self._ordered: list[str] | None = None
        self._opened: tuple[SecretForms, tuple[str, ...]] | None = None
        self.learn_all(values)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no values."""
        return self._index is None

    @property
    def size_bytes(self) -> int:
        """Memory of the values."""
        return 0 if self._index is None else self._index.size_bytes

    def learn(self, value: str) -> None:
        """Replace this value from now on, unless it is too short or has too few different characters.

        Raises TooManySecrets if it does not fit: a run must not receive a value that would not be replaced.
        """
        known = value_of(value)
        if known is None or (self._index is not None and known in self._index.values):
            return
        if self.size_bytes + known.size_bytes > self._max_bytes:
            raise TooManySecrets(self._max_bytes)
        if self._index is None:
            self._index = ValueIndex()
        self._index.add(known, known)
        self._ordered = None

    def learn_all(self, values: Iterable[str]) -> None:
        """Add several values."""
        for value in values:
            self.learn(value)

    def learning(self, values: Values) -> Values:
        """Return the same source of secrets, wrapped so that each value is added before it is returned."""

        async def learned(tenant: str, names: Collection[str]) -> Mapping[str, str]:
            found = await values(tenant, names)
            self.learn_all(found.values())
            return found

        return learned

    def snapshot(self) -> Redactor:
        """Return a redactor of the same values for another thread."""
        copy = Redactor(max_bytes=self._max_bytes)
        if self._index is not None:
            copy._index = ValueIndex()
            for value in self._index.values.values():
                copy._index.add(value, value)
        return copy

    def clean_value(self, value: Any) -> Any:
        """Return a JSON value without the secrets; the same object if the redactor is empty."""
        return value if self._index is None else super().clean_value(value)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Return the positions of values in the text."""
        return spans(text, forms_in(text, self._candidates(text)))

    def unfinished(self, text: str, begin: int = 0) -> int:
        """Return where a beginning of a value starts that ends the text; the text's length if there is none."""
        if self._index is None:
            return len(text)
        longest = max(value.longest for value in self._index.values.values())
        ordered = self._heads_in_order()
        for at in range(max(begin, len(text) - longest + 1), len(text)):
            if self._may_go_on(text[at:], ordered):
                return at
        return len(text)

    def _candidates(self, text: str) -> Collection[SecretForms]:
        return () if self._index is None else self._index.candidates(text)

    def _heads_in_order(self) -> list[str]:
        if self._ordered is None:
            values = () if self._index is None else self._index.values.values()
            self._ordered = sorted({head for value in values for head in value.heads})
        return self._ordered

    def _may_go_on(self, text: str, ordered: list[str]) -> bool:
        """Return whether a form begins with this text and is longer."""
        start = text[:HEAD]
        at = bisect_left(ordered, start)
        if len(text) >= HEAD:
            return at < len(ordered) and ordered[at] == start and self._long_form_goes_on(text)
        if at < len(ordered) and ordered[at] == start:
            at += 1
        return at < len(ordered) and ordered[at].startswith(start)

    def _long_form_goes_on(self, text: str) -> bool:
        values = () if self._index is None else self._index.values.values()
        return any(
            form.startswith(text) and len(form) > len(text)
            for value in values
            if text[:HEAD] in value.heads
            for form in self._forms(value)
        )

    def _forms(self, value: SecretForms) -> tuple[str, ...]:
        # A long value arrives in thousands of pieces, so the forms of the last value are cached.
        if value.is_short:
            return value.heads
        if self._opened is None or self._opened[0] is not value:
            self._opened = (value, value.forms())
        return self._opened[1]

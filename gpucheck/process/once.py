"""What is made at most once in a run, for whoever asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucheck.process.deadline import Deadline

T = TypeVar("T")


class Once(Generic[T]):
    """A thing, or why there is none: whoever asks later gets the same answer, and waits for nothing.

    Only that the time of one who asked was over says nothing to the others: the next one tries again.
    """

    def __init__(self, make: Callable[[Deadline], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._error: Unable | NotApplicable | None = None

    def get(self, deadline: Deadline) -> T:
        """The thing. Raises Unable or NotApplicable, as making it did."""
        if self._error is not None:
            raise self._error
        if self._made is None:
            try:
                self._made = self._make(deadline)
            except (Unable, NotApplicable) as error:
                if not deadline.is_over:
                    self._error = error
                raise
        return self._made

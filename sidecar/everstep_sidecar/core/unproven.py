"""Which connection has to go when too many wait to be proven. A connection is proven once a signed request was heard on it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

STRANGERS = 128
OF_ONE_MEMBER = 8
K = TypeVar("K", bound=Hashable)


class Unproven(Generic[K]):
    """Unproven connections by address, the oldest first.

    Those from addresses of members are bounded for each address. All others are bounded together: when they are too many, the oldest
    one of the address that has the most goes; a caller that proves itself in milliseconds is never it, unless that many others
    came after it.
    """

    def __init__(self, *, strangers: int = STRANGERS, of_one_member: int = OF_ONE_MEMBER) -> None:
        self._most_strangers = strangers
        self._most_of_one_member = of_one_member
        self._members: dict[str, dict[K, int]] = {}
        self._strangers: dict[str, dict[K, int]] = {}
        self._num_strangers = 0
        self._places: dict[K, tuple[dict[str, dict[K, int]], str]] = {}
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self._places)

    def all(self) -> tuple[K, ...]:
        """Every connection that is held."""
        return tuple(self._places)

    def add(self, connection: K, address: str, *, is_member: bool) -> K | None:
        """Hold one more, or one whose address has become a member's or a stranger's. Returns whom to close for it."""
        self.discard(connection)
        room = self._members if is_member else self._strangers
        own = room.setdefault(address, {})
        own[connection] = next(self._serials)
        self._places[connection] = (room, address)
        if is_member:
            return next(iter(own)) if len(own) > self._most_of_one_member else None
        self._num_strangers += 1
        return self._worst_stranger() if self._num_strangers > self._most_strangers else None

    def discard(self, connection: K) -> None:
        """It is proven, or closed."""
        if connection not in self._places:
            return
        room, address = self._places.pop(connection)
        del room[address][connection]
        if not room[address]:
            del room[address]
        if room is self._strangers:
            self._num_strangers -= 1

    def _worst_stranger(self) -> K:
        most = max(self._strangers.values(), key=lambda own: (len(own), -next(iter(own.values()))))
        return next(iter(most))

"""Where the replicas of one process meet while their steps are traced."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp import tf_seam

Values = Mapping[int, Any]


class _Post(NamedTuple):
    """What a replica waits for.

    Attributes:
        name: of the call, the same on all who meet in it.
        members: who meet.
        function: values by replica -> results by replica; one is called for all.
        value: of this replica.
    """

    name: str
    members: tuple[int, ...]
    function: Callable[[Values], Values]
    value: Any


class _Room:
    """Who waits, and what is there for whom, in one graph."""

    def __init__(self) -> None:
        self.posts: dict[int, _Post] = {}
        self.results: dict[int, Any] = {}


class Meeting:
    """Lets replicas of this process see each other's tensors: all of them, or some at a time.

    TensorFlow traces the replicas of a process one by one, and changes from one to the next where they merge their
    calls, which all must do equally often. Here some may meet while the others go on to wait for the next call of all:
    so the last call of a step must be one of all.
    """

    def __init__(self, replicas: Sequence[int]) -> None:
        """Holds the replicas of this process.

        Args:
            replicas: their global ranks.
        """
        self.replicas = tuple(replicas)
        self._rooms: weakref.WeakKeyDictionary[Any, _Room] = weakref.WeakKeyDictionary()

    def of_all(self, replica: int, name: str, function: Callable[[Values], Values], value: Any) -> Any:
        """Returns this replica's result of `function`, called once with the values of all replicas of the process."""
        return self.of(self.replicas, replica, name, function, value)

    def of(
        self,
        members: Sequence[int],
        replica: int,
        name: str,
        function: Callable[[Values], Values],
        value: Any,
    ) -> Any:
        """Returns this replica's result of `function`, called once with the values of `members`.

        Args:
            members: replicas of this process, who all call this.
            replica: who calls.
            name: of the call, the same on all members.
            function: values by replica -> results by replica, in cross-replica context where there are several.
            value: of this replica.

        Raises:
            RuntimeError: replicas wait for each other in different calls.
        """
        if len(self.replicas) == 1:
            return function({replica: value})[replica]
        room = self._rooms.setdefault(tf_seam.outermost_graph(), _Room())
        room.posts[replica] = _Post(name, tuple(members), function, value)
        while replica not in room.results:
            tf.distribute.get_replica_context().merge_call(lambda _: self._serve(room))
        return room.results.pop(replica)

    def _serve(self, room: _Room) -> None:
        """Calls the functions of those who have all come."""
        complete = {
            (post.name, post.members)
            for post in room.posts.values()
            if all(
                member in room.posts and room.posts[member][:2] == (post.name, post.members) for member in post.members
            )
        }
        if not complete:
            waiting = {replica: post.name for replica, post in room.posts.items()}
            room.posts.clear()
            raise RuntimeError(f"Replicas of one process wait for each other in different calls: {waiting}.")
        for _, members in sorted(complete):
            posts = {member: room.posts.pop(member) for member in members}
            function = posts[members[0]].function
            room.results |= function({member: post.value for member, post in posts.items()})

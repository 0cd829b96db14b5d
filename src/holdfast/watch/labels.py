"""What the metrics of servers and workers have in common."""

# Names with a label of their own; the others share one, so that no caller can grow the metrics of a
# fleet without end by making names up.
MOST_KINDS = 100
MOST_QUEUES = 500
OTHER = "other"


class Names:
    """The names that have a label of their own: the first to be seen, for as long as this lives.

    A name never changes its label, or counters would go back.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        """Return the label of a name: itself, or `other`."""
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name

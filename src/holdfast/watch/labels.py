"""Code that the metrics of servers and workers share."""

# How many names have their own label; the others share one, so that made-up names cannot grow the
# metrics without limit.
MOST_KINDS = 100
MOST_QUEUES = 500
OTHER = "other"


class Names:
    """The names that have their own label: the first that are seen.

    A name never changes its label; otherwise counters would decrease.
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

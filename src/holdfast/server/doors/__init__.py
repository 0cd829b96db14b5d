"""Who calls, and the ways in."""

"""What runs besides requests: streams, waits, followers of the log."""

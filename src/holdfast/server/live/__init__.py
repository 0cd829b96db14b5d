"""What goes on while no request is handled: streams, waits, followers of the log."""

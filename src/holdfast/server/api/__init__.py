"""The handlers of `/v1`, one file for each kind of work."""

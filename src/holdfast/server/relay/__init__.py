"""The routes and words of Relay, for the same jobs."""

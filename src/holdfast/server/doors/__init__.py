"""Authentication: who calls, and ways to sign in."""

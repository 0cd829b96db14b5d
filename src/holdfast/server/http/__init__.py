"""What every request passes: what it may say, how answers and refusals look."""

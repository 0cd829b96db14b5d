"""What is measured, logged, traced and reported."""

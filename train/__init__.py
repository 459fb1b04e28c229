"""Training, evaluation, and the offline quickstart."""

"""The pipeline: preference pairs, training, evaluation, report and export, and the tiny world of the quickstart."""

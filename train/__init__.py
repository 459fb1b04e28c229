"""The pipeline: preference pairs, training, evaluation, report and export; and the world of the quickstart."""

"""The report of a run: one HTML file that tells whether the rewriter helped, why, and what to look at."""

"""What every stage shares: records, files, settings, logging, loading a language model."""

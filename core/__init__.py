"""Shared by all stages: records, files, settings, logging, language models."""

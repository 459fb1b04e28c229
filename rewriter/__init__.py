"""Conversations in, candidate rewrites out."""

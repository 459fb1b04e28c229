"""Collections, retrievers, rankings and retrieval measures."""

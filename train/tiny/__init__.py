"""The quickstart's tiny world of invented entities, and the pretraining of its small chat model."""

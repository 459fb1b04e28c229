"""The quickstart's world of invented entities, and the small chat model that is pretrained on it."""

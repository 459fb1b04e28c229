"""Rewards: how useful a list of retrieved documents is to the generator."""

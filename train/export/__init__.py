"""Exports of a run: a merged model, its preference pairs, uploads to the Hub, each with a card."""

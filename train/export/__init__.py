"""Export a run: merged model, preference pairs, and uploads to the Hub, each with a card."""

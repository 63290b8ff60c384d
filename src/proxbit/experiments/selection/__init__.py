"""Which method suits a model and its data."""

"""From a float model to a trainable binary one, through training, to exact ±scale weights."""

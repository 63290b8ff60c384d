"""Parts of a training run: distillation and norms for transformers."""

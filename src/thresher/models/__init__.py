"""Surgery on Hugging Face models: one file per family, one way to attach gates, one checkpoint format."""

"""The paper's tables and figures as experiments: one file each, run by name, resumable, published from records."""

"""Checkpoints with training libraries. Each module imports its library; import the one you use."""

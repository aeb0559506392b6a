"""What a job ran and what it left: the version of its code, its checkpoints."""

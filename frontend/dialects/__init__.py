"""What clients speak. A dialect translates to and from `operations`, and does nothing else."""

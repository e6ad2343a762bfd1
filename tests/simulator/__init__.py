"""The scheduler's policies in a simulated host: many devices and models, hours in a moment."""

"""Registries of models: OCI distribution, which is the Docker registry protocol v2."""

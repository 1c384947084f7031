"""The pure core: values in, decisions out. No clock, no network, no randomness (import-linter holds it)."""

"""What a user writes and reads: pydantic models, the source of `crds/`."""

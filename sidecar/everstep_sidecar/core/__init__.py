"""What the sidecar decides, without I/O, clock or randomness: values in, values out. One file a policy."""

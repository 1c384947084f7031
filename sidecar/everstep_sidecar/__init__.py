"""The sidecar: one process in each pod that starts attempts once, persists checkpoints, commits them and watches its peers.

Order of reading: `main` (what is started), `agent` (this pod as a member), `run` (one attempt on it), `coordinator` (what the members'
sidecars ask the coordinator's), `saver` (from memory to storage), `core` (the decisions, pure), `store` (the file system).
"""

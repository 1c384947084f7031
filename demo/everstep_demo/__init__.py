"""The live demo: a training job on a real Kubernetes, one of whose nodes loses its power.

Order of reading: `looks` (what is seen of the job), `story` (what happens next), `ledger` (what it came to), `screen` (how it
is shown), then the edges: `api` (asks the API server), `stage` (cluster, image, chart, job) and `__main__`.
"""

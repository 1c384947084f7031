"""The operator. Order of reading: `api` (what a user writes), `core.model` (what is seen and what is decided), `core.decide`
(how), `cluster` (the edges: reflect, observe, apply, report), `handlers` (kopf), `main`.
"""

"""What operator, sidecar, launcher and trainer library say to each other.

Standard library only, so that every part (and every image with a python3) can import it.
Order of reading: `names`, `plan`, `lineage`, `records`, `storage`, `verdict`, `complete`, `resume`, `messages`, `local`, `shared_memory`.
"""

__version__ = "0.1.0"

"""What runs at the start of every Python process below the launcher, before any line of the user's.

The launcher puts the folder `path` first on PYTHONPATH; Python itself imports `sitecustomize` from there, which calls `begin` and then
the sitecustomize that the image has. Who starts Python with -E, -I or -S, or sets PYTHONPATH anew, goes without.
It costs a process a millisecond, imports nothing but what Python has imported anyway, and never lets an error out.
Order of reading: `path/sitecustomize`, `hooks` (the one place that says what is done), `after_import`, `hand_over`, `worlds`.
"""

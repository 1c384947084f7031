"""The launcher: PID 1 of a trainer's container. It starts what the sidecar says go to, and ends it whole.

Standard library only, and nothing else of `everstep`: it runs on any python3 (3.10 or newer) that the image has, without torch.
Order of reading: `main` (what is refused), `supervisor` (what is obeyed, when it ends), `trainers` (the processes of one attempt),
`processes` (spawn, reap, kill: the only place), `cause`, `finish`, `pages`, `environment`, `interpreter`,
`output` (with `lines`), `activity`, `link`, `loop`, `shim`, `reverse_dns`.
What runs in the processes that it starts, before the user's code, is in `everstep.start`.
"""

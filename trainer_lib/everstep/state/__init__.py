"""What a script's state is made of, how it becomes flat keys with tensors and plain values, and how it gets back into use.

Order of reading: `items` (what an entry is), `objects`, `models`, `optimizers` (the entries), `state` (all of them together),
`tree`, `values` (with `tagged`) and `tensors` (what can be saved, bit for bit and type for type), `agreement` and `report` (what ranks must
agree on).
"""

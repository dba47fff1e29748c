"""The emulated metadata server of Compute Engine, with the machine it speaks of and the faults it can have.

Sources: the pages "View and query VM metadata", "Predefined metadata keys" and "Set and query guest attributes" of the
Compute Engine documentation.
"""

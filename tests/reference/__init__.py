"""A slow and obvious twin of the drift tracker, written from its formulas alone.

Nothing here imports kl_proteus: the twin keeps every pair in a list and recomputes everything at
every step, so that the fast implementation has something independent to agree with.
"""
